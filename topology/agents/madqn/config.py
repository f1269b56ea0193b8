"""Settings of MADQN."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, final

from topology.agents.core.config import MOST_ITEMS, ReplayConfig

__all__ = ["MADQNConfig"]


@final
@dataclass(frozen=True, kw_only=True)
class MADQNConfig(ReplayConfig):
    """Settings of a distributed MADQN. The defaults suit small games.

    Its nodes are called trainer and executors where those of other agents are called learner and actors; the settings
    and the counts of a run have the same names everywhere. What replay counts (`batch_size`, `min_replay_size`,
    `max_replay_size`, `samples_per_insert`) are sequences.

    Attributes:
        shared_weights: whether agents of one kind ("agent_0" and "agent_1") have one network, which is told which of
            them it is; else each agent has its own.
        mixing: how the agents' values are learned. "none": each from its own reward; "vdn": their sum, from the mean
            of all rewards; "qmix": a function of theirs that grows with each, and depends on what all of them see.
        mixing_size: width of the mixing network of "qmix".
        recurrent: whether the networks have a memory. A sequence is then one of an episode's, filled up at its end, and
            begins with the memory that the executor had there: make it as long as an episode if that is possible.
        hidden_sizes: widths of the layers of each network.
        memory_size: width of the memory.
        sequence_length: steps of a sequence, the last of which is only where the one before it led.
        replay_period: steps from the beginning of one sequence to the next; at most `sequence_length - 1`.
        discount: factor for each step.
        n_step: steps of a target.
        learning_rate: of Adam, at the beginning.
        final_learning_rate: at the end: it falls linearly in between, where `max_actor_steps` and `samples_per_insert`
            say how many updates there will be.
        max_gradient_norm: gradients are scaled down to this global norm.
        target_update_period: updates from one copy of the networks to the target networks to the next.
        epsilon_initial: probability of a random action at the beginning, of each agent by itself.
        epsilon_min: the least it falls to.
        epsilon_decay: how much it falls with each update.
    """

    environment: str = "two_step"
    num_actors: int = 2
    max_actor_steps: int | None = 20_000
    num_caches: int = 0
    batch_size: int = 32
    max_in_flight: int = 4
    min_replay_size: int = 100
    max_replay_size: int = 10_000
    samples_per_insert: float | None = 32.0
    shared_weights: bool = True
    mixing: Literal["none", "vdn", "qmix"] = "none"
    mixing_size: int = 32
    recurrent: bool = False
    hidden_sizes: tuple[int, ...] = (64, 64)
    memory_size: int = 64
    sequence_length: int = 9
    replay_period: int = 8
    discount: float = 0.99
    n_step: int = 1
    learning_rate: float = 1e-3
    final_learning_rate: float = 1e-4
    max_gradient_norm: float = 10.0
    target_update_period: int = 100
    epsilon_initial: float = 1.0
    epsilon_min: float = 0.05
    epsilon_decay: float = 1e-3

    @property
    def num_updates(self) -> int | None:
        """About how many updates the run will make; None when nobody can know."""
        steps = self.max_actor_steps
        return None if steps is None else self.updates_of_inserts(steps // self.replay_period)

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        yield from self.below_one("mixing_size", "memory_size", "n_step", "target_update_period", "replay_period")
        yield from self.above(MOST_ITEMS, "target_update_period")
        yield from self.not_positive("learning_rate", "final_learning_rate", "max_gradient_norm")
        yield from self.outside_unit("discount", "epsilon_initial", "epsilon_min", "epsilon_decay")
        if self.mixing not in ("none", "vdn", "qmix"):
            yield f"mixing={self.mixing!r}: one of 'none', 'vdn', 'qmix'"
        if self.epsilon_min > self.epsilon_initial:
            yield f"epsilon_min={self.epsilon_min} is above epsilon_initial={self.epsilon_initial}: it only falls"
        if any(size < 1 for size in self.hidden_sizes) or not self.hidden_sizes:
            yield f"hidden_sizes={self.hidden_sizes}: at least one, each at least 1"
        if self.sequence_length < 2:
            yield f"sequence_length={self.sequence_length}: at least 2, the second for where the first step led"
        elif self.replay_period > self.sequence_length - 1:
            yield (
                f"replay_period={self.replay_period} is above sequence_length - 1 ({self.sequence_length - 1}): steps "
                "between the sequences would be lost"
            )
