"""Settings of DQN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from topology.errors import ProgramError

__all__ = ["DQNConfig"]


@final
@dataclass(frozen=True, kw_only=True)
class DQNConfig:
    """Settings of a distributed DQN. The defaults suit small environments, Catch and CartPole among them.

    Attributes:
        environment: a name (catch, gym:CartPole-v1) or where a function is that makes one (module:function,
            path/to/file.py:function); see `topology.environments.make_environment`.
        num_actors: how many actors; each has its own epsilon, see `epsilon_ladder`.
        seed: of everything random, together with each node's own seed.
        max_actor_steps: steps of all actors after which the program ends; None for never.
        num_caches: cachers between the learner and the actors, which use them in turn.
        hidden_sizes: widths of the hidden layers after the flattened input, or after the convolutions of an image.
        discount: factor for each step.
        n_step: steps of a transition.
        max_abs_reward: rewards of a transition are clipped to this; None to leave them as they are.
        learning_rate: of Adam, at the beginning.
        final_learning_rate: at the end: it falls linearly in between, where `max_actor_steps` and `samples_per_insert`
            say how many updates there will be.
        max_gradient_norm: gradients are scaled down to this global norm.
        huber_delta: the loss is quadratic up to this error and linear above.
        batch_size: transitions of an update.
        updates_per_call: updates made in one call of the compiled learner, with one request for all their batches.
        target_update_period: updates from one copy of the network to the target network to the next.
        min_replay_size: transitions in the table before the first update.
        max_replay_size: the oldest leave above this.
        samples_per_insert: how often a transition is sampled on average; None lets actors and learner run freely.
        samples_per_insert_tolerance: how far samples may run from that, as a part of `min_replay_size`.
        priority_exponent: how strongly errors decide what is sampled; 0 for uniform.
        importance_sampling_exponent: how much of the resulting bias is weighted away; 1 for all.
        max_in_flight: transitions of an actor that may be on their way to the table before it waits.
        variable_update_period: steps of an actor between two requests for weights.
        cache_refresh_ms: how often a cacher asks the learner for weights.
        cache_stale_ms: age of weights above which a cacher does not serve them.
        evaluation_period: actor steps between two evaluations.
        evaluation_episodes: episodes of each evaluation.
        final_evaluation_episodes: episodes of the evaluation after the last step; 0 for none.
        evaluator_epsilon: of the evaluator.
        checkpoint_period_s: seconds between two states of the learner on disk; one more is saved at the end.

    Raises:
        ProgramError: settings that cannot work; the text lists all of them.
    """

    environment: str = "catch"
    num_actors: int = 4
    seed: int = 0
    max_actor_steps: int | None = 50_000
    num_caches: int = 1
    hidden_sizes: tuple[int, ...] = (256, 256)
    discount: float = 0.99
    n_step: int = 3
    max_abs_reward: float | None = None
    learning_rate: float = 1e-3
    final_learning_rate: float = 5e-5
    max_gradient_norm: float = 40.0
    huber_delta: float = 1.0
    batch_size: int = 64
    updates_per_call: int = 8
    target_update_period: int = 200
    min_replay_size: int = 1_000
    max_replay_size: int = 100_000
    samples_per_insert: float | None = 32.0
    samples_per_insert_tolerance: float = 0.25
    priority_exponent: float = 0.6
    importance_sampling_exponent: float = 0.4
    max_in_flight: int = 32
    variable_update_period: int = 50
    cache_refresh_ms: int = 200
    cache_stale_ms: int = 10_000
    evaluation_period: int = 2_000
    evaluation_episodes: int = 10
    final_evaluation_episodes: int = 100
    evaluator_epsilon: float = 0.0
    checkpoint_period_s: float = 60.0

    def __post_init__(self) -> None:
        faults = [*self._range_faults(), *self._replay_faults()]
        if faults:
            raise ProgramError(
                "These settings of DQN cannot work:\n" + "\n".join(f"  - {fault}" for fault in faults),
                faults=tuple(faults),
            )

    @property
    def error_buffer(self) -> float:
        """How far inserts and samples may run from `samples_per_insert`, in samples, either way."""
        if self.samples_per_insert is None:
            raise ValueError("samples_per_insert is None: there is no ratio to keep")
        tolerance = self.samples_per_insert_tolerance * self.min_replay_size * self.samples_per_insert
        # The learner takes the samples of two calls at once, one of them ahead; below that it would wait in steps.
        return max(tolerance, 2 * self.updates_per_call * self.batch_size, self.samples_per_insert)

    @property
    def num_updates(self) -> int | None:
        """About how many updates the run will make; None when nobody can know."""
        if self.max_actor_steps is None or self.samples_per_insert is None:
            return None
        inserts = self.max_actor_steps - self.min_replay_size
        return max(1, round(inserts * self.samples_per_insert / self.batch_size))

    def _range_faults(self) -> list[str]:
        at_least_one = (
            "num_actors num_caches n_step batch_size updates_per_call target_update_period min_replay_size "
            "max_replay_size max_in_flight variable_update_period cache_refresh_ms evaluation_period "
            "evaluation_episodes"
        )
        faults = [
            f"{name}={getattr(self, name)}: at least 1" for name in at_least_one.split() if getattr(self, name) < 1
        ]
        above_zero = "learning_rate final_learning_rate max_gradient_norm huber_delta checkpoint_period_s"
        faults += [
            f"{name}={getattr(self, name)}: above 0" for name in above_zero.split() if not getattr(self, name) > 0
        ]
        unit = "discount priority_exponent importance_sampling_exponent evaluator_epsilon"
        faults += [
            f"{name}={getattr(self, name)}: between 0 and 1"
            for name in unit.split()
            if not 0 <= getattr(self, name) <= 1
        ]
        if self.max_actor_steps is not None and self.max_actor_steps < 1:
            faults.append(f"max_actor_steps={self.max_actor_steps}: at least 1, or None for a run without end")
        if self.max_abs_reward is not None and self.max_abs_reward <= 0:
            faults.append(f"max_abs_reward={self.max_abs_reward}: above 0, or None to leave rewards as they are")
        if any(size < 1 for size in self.hidden_sizes):
            faults.append(f"hidden_sizes={self.hidden_sizes}: each at least 1")
        if self.final_evaluation_episodes < 0:
            faults.append(f"final_evaluation_episodes={self.final_evaluation_episodes}: at least 0")
        return faults

    def _replay_faults(self) -> list[str]:
        faults = []
        if self.min_replay_size > self.max_replay_size:
            faults.append(
                f"min_replay_size={self.min_replay_size} is above max_replay_size={self.max_replay_size}: the learner "
                "would wait for ever"
            )
        if self.max_actor_steps is not None and 1 <= self.max_actor_steps < self.min_replay_size:
            faults.append(
                f"max_actor_steps={self.max_actor_steps} is below min_replay_size={self.min_replay_size}: the program "
                "would end before the first update"
            )
        if self.samples_per_insert is not None and self.samples_per_insert <= 0:
            faults.append(
                f"samples_per_insert={self.samples_per_insert}: above 0, or None to let both sides run freely"
            )
        if self.samples_per_insert_tolerance < 0:
            faults.append(f"samples_per_insert_tolerance={self.samples_per_insert_tolerance}: at least 0")
        if self.cache_stale_ms <= self.cache_refresh_ms:
            faults.append(
                f"cache_stale_ms={self.cache_stale_ms} is not above cache_refresh_ms={self.cache_refresh_ms}: weights "
                "would be stale before they are refreshed"
            )
        return faults
