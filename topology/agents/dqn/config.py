"""Settings of DQN."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from topology.agents.core.config import MOST_ITEMS, ReplayConfig

__all__ = ["DQNConfig"]


@final
@dataclass(frozen=True, kw_only=True)
class DQNConfig(ReplayConfig):
    """Settings of a distributed DQN. The defaults suit small environments, Catch and CartPole among them.

    What replay counts (`batch_size`, `min_replay_size`, `max_replay_size`, `samples_per_insert`) are transitions. Each
    actor has an epsilon of its own, see `epsilon_ladder`.

    Attributes:
        hidden_sizes: widths of the hidden layers after the flattened input, or after the convolutions of an image.
        dueling: whether the network has a stream for the value of the state and one for what each action adds to it.
        double_q: whether the network itself chooses the action whose value the target network gives, or the target
            network does both.
        num_quantiles: quantiles of the return that are learned, in place of its mean, by quantile regression; 1 for the
            mean.
        discount: factor for each step.
        n_step: steps of a transition.
        max_abs_reward: rewards of a transition are clipped to this; None to leave them as they are.
        learning_rate: of Adam, for the first `constant_rate_part` of the updates.
        final_learning_rate: at the end: from there it falls linearly, where `max_actor_steps` and `samples_per_insert`
            say how many updates there will be.
        constant_rate_part: how long it is constant: a run that gets on late is not slowed down before it does.
        max_gradient_norm: gradients are scaled down to this global norm.
        huber_delta: the loss is quadratic up to this error and linear above; also that of quantile regression.
        target_update_period: updates from one copy of the network to the target network to the next; the copy is made
            after the call of the learner (`updates_per_call`) in which the period ends.
        priority_exponent: how strongly errors decide what is sampled; 0 for uniform.
        importance_sampling_exponent: how much of the resulting bias is weighted away; 1 for all.
        evaluator_epsilon: of the evaluator.
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    dueling: bool = False
    double_q: bool = True
    num_quantiles: int = 1
    discount: float = 0.99
    n_step: int = 3
    max_abs_reward: float | None = None
    learning_rate: float = 1e-3
    final_learning_rate: float = 5e-5
    constant_rate_part: float = 0.6
    max_gradient_norm: float = 40.0
    huber_delta: float = 10.0
    target_update_period: int = 200
    priority_exponent: float = 0.6
    importance_sampling_exponent: float = 0.4
    evaluator_epsilon: float = 0.0
    # Actors that play with weights of hundreds of updates ago keep some runs of CartPole from ever getting on.
    variable_update_period: int = 20
    cache_refresh_ms: int = 50

    @property
    def num_updates(self) -> int | None:
        """About how many updates the run will make; None when nobody can know."""
        return None if self.max_actor_steps is None else self.updates_of_inserts(self.max_actor_steps)

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        yield from self.below_one("num_caches", "num_quantiles", "n_step", "target_update_period")
        yield from self.above(MOST_ITEMS, "target_update_period")
        yield from self.not_positive("learning_rate", "final_learning_rate", "max_gradient_norm", "huber_delta")
        yield from self.outside_unit("discount", "priority_exponent", "importance_sampling_exponent")
        yield from self.outside_unit("evaluator_epsilon", "constant_rate_part")
        if self.max_abs_reward is not None and self.max_abs_reward <= 0:
            yield f"max_abs_reward={self.max_abs_reward}: above 0, or None to leave rewards as they are"
        yield from self.one_below_one("hidden_sizes")
