"""What an algorithm is to the trainer and to the workers."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import dm_env
import numpy as np
from numpy.typing import NDArray

from topology.agents.core.seeding import derive_seed
from topology.agents.flow.policy import JaxPolicy
from topology.agents.scaleout.acting import Acting, policy_arrays
from topology.agents.scaleout.config import ScaleOutConfig, ScaleOutSettings
from topology.agents.scaleout.normalising import RETURNS, Normaliser
from topology.agents.scaleout.playing import Played, Player
from topology.agents.scaleout.roles import Cast, Columns, Follow
from topology.agents.scaleout.trees import flatten, unflatten
from topology.environments import EnvironmentFactory, make_environment
from topology.environments.specs import EnvironmentSpec
from topology.nodes.store.experience import Experience

__all__ = ["Algorithm", "ExperienceLearner", "PlanAlgorithm", "PolicyLearner"]

SettingsT = TypeVar("SettingsT", bound=ScaleOutSettings)
ConfigT = TypeVar("ConfigT", bound=ScaleOutConfig)

_ENVIRONMENT, _POLICY, _LEARNING = range(3)  # uses of a node's seed
_STATE = "learner"
_COUNTS = "counts"


class ExperienceLearner(abc.ABC):
    """What the trainer trains. For one thread.

    Attributes:
        steps: of the environments, taken so far.
        episodes: that ended in them.
        updates: made so far.
    """

    def __init__(self) -> None:
        self.steps = self.episodes = self.updates = 0

    def take(self, experiences: Sequence[Experience]) -> None:
        """Takes experience to learn from, in this order; learns nothing yet."""
        for experience in experiences:
            self.keep(experience)
            self.steps += int(experience.meta["steps"] or 0)
            self.episodes += int(experience.meta["episodes"] or 0)

    @abc.abstractmethod
    def keep(self, experience: Experience) -> None:
        """Keeps the columns of one experience."""

    @property
    @abc.abstractmethod
    def wants_more(self) -> bool:
        """Whether it makes sense to take more before the next `learn`."""

    @abc.abstractmethod
    def learn(self) -> dict[str, float] | None:
        """Does one bounded piece of the learning that is due, and says how it went; None when nothing is due."""

    @abc.abstractmethod
    def policy_arrays(self) -> dict[str, NDArray[Any]]:
        """What acting needs."""

    @abc.abstractmethod
    def state_arrays(self) -> dict[str, NDArray[Any]]:
        """What going on needs beside that."""

    @abc.abstractmethod
    def restore(self, arrays: Mapping[str, NDArray[Any]], state: Mapping[str, NDArray[Any]]) -> None:
        """Takes `policy_arrays` and `state_arrays` back. Raises ProgramError for those of another network."""

    def counts_array(self) -> dict[str, NDArray[Any]]:
        """The attributes, as a part of `state_arrays`."""
        return {_COUNTS: np.array([self.steps, self.episodes, self.updates], np.int64)}

    def restore_counts(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Takes `counts_array` back."""
        self.steps, self.episodes, self.updates = (int(count) for count in state[_COUNTS])

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Lets go of what it holds."""


class PolicyLearner(ExperienceLearner):
    """One that trains a `JaxPolicy`.

    Args:
        policy: that learns.
        normaliser: its statistics.
    """

    def __init__(self, policy: JaxPolicy, normaliser: Normaliser) -> None:
        super().__init__()
        self.policy = policy
        self.normaliser = normaliser

    def follow_schedules(self) -> None:
        """Sets what changes over a run, such as the learning rate, by the steps taken."""
        self.policy.on_global_vars_update({"timestep": self.steps})

    def policy_arrays(self) -> dict[str, NDArray[Any]]:
        return policy_arrays(self.policy, self.normaliser)

    def state_arrays(self) -> dict[str, NDArray[Any]]:
        return {**flatten(self.policy.get_state(), _STATE), **self.counts_array()}

    def restore(self, arrays: Mapping[str, NDArray[Any]], state: Mapping[str, NDArray[Any]]) -> None:
        self.policy.set_state(unflatten(self.policy.get_state(), state, _STATE))
        self.normaliser.load(arrays)
        self.restore_counts(state)
        self.follow_schedules()


class Algorithm(abc.ABC, Generic[SettingsT]):
    """Makes what trainer, workers and evaluator are made of, in their own places.

    Args:
        config: settings.
        spec: of the environment.
        environment_factory: makes environments instead of `config.environment`.
    """

    def __init__(
        self, config: SettingsT, spec: EnvironmentSpec, environment_factory: EnvironmentFactory | None = None
    ) -> None:
        self.config = config
        self.spec = spec
        self.environment: str | EnvironmentFactory = environment_factory or config.environment

    @abc.abstractmethod
    def make_worker(self, index: int, *, seed: int, follow: Follow | None, should_stop: Callable[[], bool]) -> Cast:
        """Who plays in a worker.

        Args:
            index: of the worker.
            seed: of this life of it.
            follow: ASYNC: loads a newer policy, if there is one; called before every action. None in SYNC, where a
                policy is loaded between shares, never within one.
            should_stop: asked before every action.
        """

    @abc.abstractmethod
    def make_evaluation(self, *, seed: int, should_stop: Callable[[], bool]) -> Cast:
        """Who plays in the evaluator: as well as it can, keeping no steps."""

    @abc.abstractmethod
    def make_learner(self, seed: int) -> ExperienceLearner:
        """What the trainer trains. `seed`: of the trainer's node."""


class PlanAlgorithm(Algorithm[ConfigT]):
    """One whose networks and losses are those of an execution plan."""

    @abc.abstractmethod
    def make_policy(self, seed: int, worker: int | None) -> JaxPolicy:
        """The network. `worker`: whose; None for a policy that does not explore."""

    @abc.abstractmethod
    def make_columns(self, played: Played, acting: Acting) -> Columns:
        """What the trainer needs of what a worker played, at least one row; whole by itself."""

    @abc.abstractmethod
    def make_policy_learner(self, seed: int) -> PolicyLearner:
        """What the trainer trains; everything random in it is of this seed."""

    def make_normaliser(self) -> Normaliser:
        """Statistics of nothing yet."""
        config = self.config
        return Normaliser(
            tuple(self.spec.observations.shape),
            observations=config.normalise_observations,
            rewards=config.normalise_rewards,
        )

    def returns_columns(self, played: Played) -> Columns:
        """The column that rewards are normalised by, where they are."""
        if not self.config.normalise_rewards:
            return {}
        return {RETURNS: np.array([step.returns for steps in played.steps for step in steps], np.float32)}

    def make_worker(self, index: int, *, seed: int, follow: Follow | None, should_stop: Callable[[], bool]) -> Cast:
        policy = self.make_policy(derive_seed(seed, _POLICY), index)
        acting = Acting(policy, self.make_normaliser(), before_acting=follow or _stay)
        player = Player(
            self._make_environments(seed, self.config.environments_per_worker),
            acting.act,
            lambda: acting.number,
            discount=self.config.discount,
            should_stop=should_stop,
        )
        return Cast(player, acting, self.make_columns)

    def make_evaluation(self, *, seed: int, should_stop: Callable[[], bool]) -> Cast:
        acting = Acting(self.make_policy(0, None), self.make_normaliser())
        player = Player(
            self._make_environments(seed, self.config.evaluation_episodes),
            functools.partial(acting.act, greedy=True),
            lambda: acting.number,
            discount=self.config.discount,
            should_stop=should_stop,
            keep_steps=False,
        )
        return Cast(player, acting, self.make_columns)

    def make_learner(self, seed: int) -> PolicyLearner:
        return self.make_policy_learner(derive_seed(seed, self.config.seed, _LEARNING))

    def _make_environments(self, seed: int, count: int) -> list[dm_env.Environment]:
        seeds = [derive_seed(seed, _ENVIRONMENT, index) for index in range(count)]
        return [make_environment(self.environment, seed=one) for one in seeds]


def _stay(acting: Any) -> None:
    """Loads nothing."""
