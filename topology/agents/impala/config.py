"""Settings of IMPALA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from topology.agents.core.config import MOST_ITEMS, AgentConfig

__all__ = ["IMPALAConfig"]


@final
@dataclass(frozen=True, kw_only=True)
class IMPALAConfig(AgentConfig):
    """Settings of a distributed IMPALA. The defaults suit small environments, Catch and CartPole among them.

    What the queue counts (`batch_size`, `max_queue_size`, `max_in_flight`) are sequences.

    Attributes:
        hidden_sizes: widths of the hidden layers after the flattened observation, or the convolutions of an image.
        lstm_size: width of the LSTM after them; None for a network without memory.
        shared_layers: whether policy and value share the hidden layers, which saves much time where observations are
            images; an LSTM they always share.
        sequence_length: rows of a sequence; all but the last, which only gives a value, are learned from.
        sequence_period: steps from the beginning of one sequence to the next; None for one after the other, each step
            in one.
        spans_episodes: whether a sequence goes on where an episode ends; otherwise its rest is filled, and masked.
        max_queue_size: sequences that wait for the learner before the actors wait.
        discount: factor for each step.
        max_abs_reward: rewards are clipped to this; None to leave them as they are.
        reward_scale: rewards are multiplied by this, after the clipping. Where values are far above 10 they take all of
            the gradient that `max_gradient_norm` leaves, and advantages dwarf `entropy_cost`; returns from 1 to 10 are
            well.
        learning_rate: of Adam, at the beginning.
        final_learning_rate: at the end: it falls linearly in between, where `max_actor_steps` says how long that is.
        max_gradient_norm: gradients are scaled down to this global norm.
        entropy_cost: weight of the entropy of the policy, which is to stay high.
        baseline_cost: weight of the error of the value.
        max_ratio: importance weights of the value are clipped to this; rho-bar in the paper.
        max_policy_ratio: importance weights of the policy gradient are clipped to this.
        trace_decay: how far corrections reach back in time; 1 for all the way. Lambda in the paper.
        greedy_evaluation: whether the evaluator takes the most likely action, or draws one.
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    lstm_size: int | None = None
    shared_layers: bool = False
    sequence_length: int = 21
    sequence_period: int | None = None
    spans_episodes: bool = True
    max_queue_size: int = 8
    discount: float = 0.99
    max_abs_reward: float | None = None
    reward_scale: float = 0.05
    learning_rate: float = 2e-3
    final_learning_rate: float = 1e-5
    max_gradient_norm: float = 40.0
    entropy_cost: float = 0.01
    baseline_cost: float = 0.5
    max_ratio: float = 1.0
    max_policy_ratio: float = 1.0
    trace_decay: float = 1.0
    greedy_evaluation: bool = True
    num_actors: int = 2
    environments_per_actor: int = 4
    batch_size: int = 8
    updates_per_call: int = 1
    # With a lag of six updates some runs of CartPole do not get on; with these it is one or two.
    max_in_flight: int = 1
    variable_update_period: int = 10
    cache_refresh_ms: int = 20
    max_actor_steps: int | None = 500_000
    evaluation_period: int = 25_000

    @property
    def period(self) -> int:
        """Steps from the beginning of one sequence to the next."""
        return self.sequence_length - 1 if self.sequence_period is None else self.sequence_period

    @property
    def num_updates(self) -> int | None:
        """About how many updates the run will make; None for one without end."""
        if self.max_actor_steps is None:
            return None
        return max(1, round(self.max_actor_steps / (self.period * self.batch_size)))

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        yield from self.below_one("max_queue_size")
        yield from self.above(MOST_ITEMS, "max_queue_size")
        yield from self.outside_unit("discount", "trace_decay")
        yield from self.not_positive("reward_scale", "learning_rate", "final_learning_rate", "max_gradient_norm")
        yield from self.not_positive("max_ratio", "max_policy_ratio")
        if self.num_caches != 1:
            yield f"num_caches={self.num_caches}: IMPALA has exactly 1"
        yield from self.one_below_one("hidden_sizes")
        if self.lstm_size is not None and self.lstm_size < 1:
            yield f"lstm_size={self.lstm_size}: at least 1, or None for a network without memory"
        if self.max_abs_reward is not None and self.max_abs_reward <= 0:
            yield f"max_abs_reward={self.max_abs_reward}: above 0, or None to leave rewards as they are"
        yield from self.negative("entropy_cost", "baseline_cost")
        if self.sequence_length < 2:
            yield f"sequence_length={self.sequence_length}: at least 2, one step and the row that it leads to"
        elif not 1 <= self.period <= self.sequence_length - 1:
            yield (
                f"sequence_period={self.sequence_period}: between 1 and sequence_length - 1 = "
                f"{self.sequence_length - 1}, so that no step is left out; None for one sequence after the other"
            )
