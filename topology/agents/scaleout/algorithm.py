"""What an algorithm is to the trainer and to the workers."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from topology.agents.flow.policy import JaxPolicy
from topology.agents.scaleout.acting import Acting, policy_arrays
from topology.agents.scaleout.config import ScaleOutConfig
from topology.agents.scaleout.normalising import RETURNS, Normaliser
from topology.agents.scaleout.playing import Played
from topology.agents.scaleout.trees import flatten, unflatten
from topology.environments.specs import EnvironmentSpec
from topology.nodes.store.experience import Experience

__all__ = ["Algorithm", "Columns", "PolicyLearner"]

Columns = dict[str, NDArray[Any]]
"""By name, `[T, ...]`."""

ConfigT = TypeVar("ConfigT", bound=ScaleOutConfig)

_STATE = "learner"
_COUNTS = "counts"


class PolicyLearner(abc.ABC):
    """What the trainer trains. For one thread.

    Args:
        policy: that learns.
        normaliser: its statistics.

    Attributes:
        steps: of the environments, taken so far.
        episodes: that ended in them.
        updates: made so far.
    """

    def __init__(self, policy: JaxPolicy, normaliser: Normaliser) -> None:
        self.policy = policy
        self.normaliser = normaliser
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

    def follow_schedules(self) -> None:
        """Sets what changes over a run, such as the learning rate, by the steps taken."""
        self.policy.on_global_vars_update({"timestep": self.steps})

    # --- what is saved -----------------------------------------------------------------------------------------------

    def policy_arrays(self) -> dict[str, NDArray[Any]]:
        """What acting needs."""
        return policy_arrays(self.policy, self.normaliser)

    def state_arrays(self) -> dict[str, NDArray[Any]]:
        """What going on needs beside that."""
        counts = np.array([self.steps, self.episodes, self.updates], np.int64)
        return {**flatten(self.policy.get_state(), _STATE), _COUNTS: counts}

    def restore(self, arrays: Mapping[str, NDArray[Any]], state: Mapping[str, NDArray[Any]]) -> None:
        """Takes `policy_arrays` and `state_arrays` back. Raises ProgramError for those of another network."""
        self.policy.set_state(unflatten(self.policy.get_state(), state, _STATE))
        self.normaliser.load(arrays)
        self.steps, self.episodes, self.updates = (int(count) for count in state[_COUNTS])
        self.follow_schedules()


class Algorithm(abc.ABC, Generic[ConfigT]):
    """Makes what trainer, workers and evaluator are made of, in their own places.

    Args:
        config: settings.
        spec: of the environment.
    """

    def __init__(self, config: ConfigT, spec: EnvironmentSpec) -> None:
        self.config = config
        self.spec = spec

    @abc.abstractmethod
    def make_policy(self, seed: int, worker: int | None) -> JaxPolicy:
        """The network. `worker`: whose; None for a policy that does not explore."""

    @abc.abstractmethod
    def make_columns(self, played: Played, acting: Acting) -> Columns:
        """What the trainer needs of what a worker played, at least one row; whole by itself."""

    @abc.abstractmethod
    def make_learner(self, seed: int) -> PolicyLearner:
        """What the trainer trains."""

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
