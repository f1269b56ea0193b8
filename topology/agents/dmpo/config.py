"""Settings of DMPO."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from topology.agents.core.config import MOST_ITEMS, ReplayConfig

__all__ = ["TABLE", "DMPOConfig"]

TABLE = "replay_table"
"""Name of the table that holds the transitions."""


@final
@dataclass(frozen=True, kw_only=True)
class DMPOConfig(ReplayConfig):
    """Settings of a distributed DMPO; see also `ReplayConfig`. The defaults suit gym:Pendulum-v1.

    Attributes:
        hidden_sizes: widths of the hidden layers of the policy and of the critic.
        initial_stddev: of the policy's actions, which lie in [-1, 1], before the first update.
        discount: factor for each step.
        n_step: steps of a transition. With more, rewards are known sooner, but so is what the policy of then did with
            them: runs of Pendulum end up to 60 lower with 5.
        num_atoms: returns that the critic tells apart.
        min_return: the least of them.
        max_return: the greatest of them. Discounted returns outside are taken as the nearest inside: the row
            `outside_support` of the learner's metrics says how many are.
        num_samples: actions sampled for each state.
        learning_rate: of Adam, for policy and critic, at the beginning.
        final_learning_rate: at the end: it falls linearly in between, where `max_actor_steps` and `samples_per_insert`
            say how many updates there will be.
        dual_learning_rate: of Adam, for the temperatures and the weights of the KL penalties.
        max_gradient_norm: gradients of policy and critic are scaled down to this global norm, each on its own.
        target_policy_update_period: updates from one copy of the policy to the target policy to the next.
        target_critic_update_period: alike, of the critic.
        epsilon: how far the improved distribution over the sampled actions may be from the policy; KL divergence.
        epsilon_mean: how far the policy's mean may move from the target policy's; KL divergence for each dimension.
        epsilon_stddev: how far its standard deviation may.
        action_penalization: whether actions outside [-1, 1] are made less likely whatever the critic says.
        epsilon_penalty: how far the distribution that penalizes them may be from the policy; KL divergence.
        initial_temperature: before the first update, of both distributions.
        initial_alpha_mean: weight of the penalty for a mean that moves, before the first update.
        initial_alpha_stddev: alike, for the standard deviation.
    """

    environment: str = "gym:Pendulum-v1"
    num_actors: int = 2
    num_caches: int = 0
    max_actor_steps: int | None = 30_000
    batch_size: int = 64
    final_evaluation_episodes: int = 100

    hidden_sizes: tuple[int, ...] = (64, 64)
    initial_stddev: float = 0.7
    discount: float = 0.99
    n_step: int = 1
    num_atoms: int = 101
    min_return: float = -1_000.0
    max_return: float = 0.0
    num_samples: int = 10
    learning_rate: float = 1e-3
    final_learning_rate: float = 3e-4
    dual_learning_rate: float = 1e-2
    max_gradient_norm: float = 40.0
    target_policy_update_period: int = 25
    target_critic_update_period: int = 50
    epsilon: float = 0.1
    epsilon_mean: float = 0.05
    epsilon_stddev: float = 3e-4
    action_penalization: bool = True
    epsilon_penalty: float = 1e-3
    initial_temperature: float = 10.0
    initial_alpha_mean: float = 1.0
    initial_alpha_stddev: float = 10.0

    @property
    def num_updates(self) -> int | None:
        """About how many updates the run will make; None when nobody can know."""
        return None if self.max_actor_steps is None else self.updates_of_inserts(self.max_actor_steps)

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        yield from self.below_one("n_step", "num_samples", "target_policy_update_period", "target_critic_update_period")
        yield from self.above(MOST_ITEMS, "target_policy_update_period", "target_critic_update_period")
        yield from self.not_positive("initial_stddev", "learning_rate", "final_learning_rate", "dual_learning_rate")
        yield from self.not_positive("max_gradient_norm")
        yield from self.not_positive("epsilon", "epsilon_mean", "epsilon_stddev", "epsilon_penalty")
        yield from self.not_positive("initial_temperature", "initial_alpha_mean", "initial_alpha_stddev")
        yield from self.outside_unit("discount")
        if not self.hidden_sizes or any(size < 1 for size in self.hidden_sizes):
            yield f"hidden_sizes={self.hidden_sizes}: at least one, and each at least 1"
        if self.num_atoms < 2:
            yield f"num_atoms={self.num_atoms}: at least 2"
        if not self.min_return < self.max_return:
            yield f"min_return={self.min_return} is not below max_return={self.max_return}"
