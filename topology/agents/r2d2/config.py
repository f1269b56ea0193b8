"""Settings of R2D2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from topology.agents.core.config import MOST_ITEMS, ReplayConfig

__all__ = ["R2D2Config"]


@final
@dataclass(frozen=True, kw_only=True)
class R2D2Config(ReplayConfig):
    """Settings of a distributed R2D2. The defaults suit small environments that need a memory of a dozen steps.

    What replay counts (`batch_size`, `min_replay_size`, `max_replay_size`, `samples_per_insert`) are sequences.

    Attributes:
        hidden_sizes: widths of the layers before the LSTM: after the flattened observation, or the convolutions of an
            image.
        lstm_size: width of the LSTM.
        head_size: width of the hidden layer of the values after it.
        burn_in_length: first steps of a sequence that only bring its stored state up to date with the weights; a
            sequence that begins with its episode needs none, and all of it is learned from.
        trace_length: steps of a sequence that are learned from.
        replay_period: steps from the beginning of one sequence to the next; at most `trace_length`.
        discount: factor for each step.
        n_step: steps of a target.
        learning_rate: of Adam, at the beginning.
        final_learning_rate: at the end: it falls linearly in between, where `max_actor_steps` and `samples_per_insert`
            say how many updates there will be.
        adam_epsilon: of Adam.
        max_gradient_norm: gradients are scaled down to this global norm.
        target_update_period: updates from one copy of the network to the target network to the next.
        priority_exponent: how strongly errors decide what is sampled; 0 for uniform.
        max_priority_weight: part of the largest error of a sequence in its priority; the rest is that of the mean.
        importance_sampling_exponent: how much of the resulting bias is weighted away; 1 for all.
        evaluator_epsilon: of the evaluator.
    """

    hidden_sizes: tuple[int, ...] = (64,)
    lstm_size: int = 64
    head_size: int = 64
    burn_in_length: int = 4
    trace_length: int = 12
    replay_period: int = 6
    discount: float = 0.99
    n_step: int = 5
    learning_rate: float = 1e-3
    final_learning_rate: float = 5e-5
    adam_epsilon: float = 1e-5
    max_gradient_norm: float = 40.0
    target_update_period: int = 50
    priority_exponent: float = 0.6
    max_priority_weight: float = 0.9
    importance_sampling_exponent: float = 0.6
    evaluator_epsilon: float = 0.0
    batch_size: int = 32
    updates_per_call: int = 4
    min_replay_size: int = 200
    max_replay_size: int = 20_000
    samples_per_insert: float | None = 32.0

    @property
    def sequence_length(self) -> int:
        """Rows of a sequence: burn-in, trace, and one more to take the last value from."""
        return self.burn_in_length + self.trace_length + 1

    @property
    def num_updates(self) -> int | None:
        """About how many updates the run will make; None when nobody can know. Short episodes make it a few more."""
        if self.max_actor_steps is None:
            return None
        return self.updates_of_inserts(self.max_actor_steps // self.replay_period)

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        yield from self.below_one("lstm_size", "head_size", "trace_length", "n_step", "target_update_period")
        yield from self.above(MOST_ITEMS, "target_update_period")
        yield from self.not_positive("learning_rate", "final_learning_rate", "adam_epsilon", "max_gradient_norm")
        yield from self.outside_unit("discount", "priority_exponent", "max_priority_weight")
        yield from self.outside_unit("importance_sampling_exponent", "evaluator_epsilon")
        if self.num_caches != 1:
            yield f"num_caches={self.num_caches}: R2D2 has exactly 1"
        yield from self.one_below_one("hidden_sizes")
        yield from self.negative("burn_in_length")
        if self.trace_length >= 1 and not 1 <= self.replay_period <= self.trace_length:
            yield (
                f"replay_period={self.replay_period}: between 1 and trace_length={self.trace_length}, so that every "
                "step is learned from"
            )
