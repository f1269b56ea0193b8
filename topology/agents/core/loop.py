"""An actor in its environment."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, final

import dm_env

from topology.agents.core.observations import observation_fault
from topology.agents.core.types import Actor
from topology.errors import ProgramError

__all__ = ["EnvironmentLoop", "EpisodeResult"]

_logger = logging.getLogger(__name__)


class EpisodeResult(NamedTuple):
    """A finished episode.

    Attributes:
        episode_return: undiscounted sum of rewards.
        episode_length: number of actions.
    """

    episode_return: float
    episode_length: int


def _scalar(number: Any) -> float:
    return sum(map(float, number.values())) / len(number) if isinstance(number, Mapping) else float(number)


def _never() -> bool:
    return False


@final
class EnvironmentLoop:
    """Lets an actor play episodes.

    Args:
        environment: a `dm_env` environment with scalar rewards, or with one for each of several agents by id: their
            mean counts, which is the reward itself where they share it.
        actor: chooses the actions and sees every step.
        should_stop: asked before every action; when true the episode is abandoned.
        max_episode_steps: steps after which `run_episode` cuts an episode off; None for never.
        observations: spec of what the environment shows; None for whatever it is.
    """

    def __init__(
        self,
        environment: dm_env.Environment,
        actor: Actor,
        *,
        should_stop: Callable[[], bool] = _never,
        max_episode_steps: int | None = None,
        observations: Any = None,
    ) -> None:
        self._environment = environment
        self._actor = actor
        self._should_stop = should_stop
        self._max_episode_steps = max_episode_steps
        self._observations = observations
        self._has_warned = False
        self._timestep: dm_env.TimeStep | None = None
        self._return = 0.0
        self._length = 0

    def run_episode(self) -> EpisodeResult | None:
        """Plays until the end of the episode; None when asked to stop before. A call begins a new episode.

        Raises:
            ProgramError: as `run_step`.
        """
        self._timestep = None
        while not self._should_stop():
            if (result := self.run_step()) is not None:
                return result
            if self._length == self._max_episode_steps:
                return self._cut_off()
        return None

    def _cut_off(self) -> EpisodeResult:
        if not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "an episode of %s had not ended after %d steps: such episodes are cut off there, and what they gave "
                "until then counts",
                type(self._environment).__name__,
                self._length,
            )
        return EpisodeResult(self._return, self._length)

    def run_step(self) -> EpisodeResult | None:
        """Takes one action, beginning an episode if none is open; the result when that was its last one.

        Raises:
            ProgramError: the step has no reward or discount, or one that is not a finite number; or as `begin`.
        """
        action = self._actor.select_action(self.begin().observation)
        self._timestep = self._environment.step(action)
        reward = self._checked("reward", self._timestep.reward)
        self._checked("discount", self._timestep.discount)
        self._actor.observe(action, self._timestep)
        self._actor.update()
        self._return += reward
        self._length += 1
        if not self._timestep.last():
            return None
        self._timestep = None
        return EpisodeResult(self._return, self._length)

    def _checked(self, what: str, value: Any) -> float:
        """`value` as a number. One that is none would be learned from, and ruin the weights of all."""
        try:
            number = _scalar(value)
        except (TypeError, ValueError, ZeroDivisionError):
            number = math.nan
        if math.isfinite(number):
            return number
        raise ProgramError(
            f"step() of the environment {type(self._environment).__name__} gave the {what} {value!r} after "
            f"{self._length} steps of an episode, and a finite number is needed{self._hint(what, value)}"
        )

    def _hint(self, what: str, value: Any) -> str:
        if value is not None:
            return ": see to it in the environment"
        if self._timestep is not None and self._timestep.first():
            return ": it began an episode by itself, without one that ended; the last step of an episode is to say LAST"
        return f": only what reset() returns may have none; an environment without a {what} gives 0.0 (a discount, 1.0)"

    def begin(self) -> dm_env.TimeStep:
        """Begins an episode if none is open; what the next action is an answer to.

        Raises:
            ProgramError: it begins with something else than the environment's spec says.
        """
        if self._timestep is None:
            timestep = self._environment.reset()
            self._check_observation(timestep.observation)
            self._actor.observe_first(timestep)
            self._timestep, self._return, self._length = timestep, 0.0, 0
        return self._timestep

    def _check_observation(self, observation: Any) -> None:
        fault = None if self._observations is None else observation_fault(observation, self._observations)
        if fault is not None:
            raise ProgramError(
                f"reset() of the environment {type(self._environment).__name__} does not do what its "
                f"observation_spec() says: {fault}. Make the two agree, in step() as well"
            )

    def close(self) -> None:
        """Closes the environment."""
        self._environment.close()

    # --- as a loop of an `ActorRunner`

    num_environments = 1

    def run_steps(self) -> list[EpisodeResult]:
        """As `run_step`, with the result in a list."""
        result = self.run_step()
        return [] if result is None else [result]
