"""An actor in its environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, final

import dm_env

from topology.agents.core.types import Actor

__all__ = ["EnvironmentLoop", "EpisodeResult"]


class EpisodeResult(NamedTuple):
    """A finished episode.

    Attributes:
        episode_return: undiscounted sum of rewards.
        episode_length: number of actions.
    """

    episode_return: float
    episode_length: int


def _scalar(reward: Any) -> float:
    return sum(map(float, reward.values())) / len(reward) if isinstance(reward, Mapping) else float(reward)


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
    """

    def __init__(
        self,
        environment: dm_env.Environment,
        actor: Actor,
        *,
        should_stop: Callable[[], bool] = _never,
    ) -> None:
        self._environment = environment
        self._actor = actor
        self._should_stop = should_stop
        self._timestep: dm_env.TimeStep | None = None
        self._return = 0.0
        self._length = 0

    def run_episode(self) -> EpisodeResult | None:
        """Plays until the end of the episode; None when asked to stop before. A call begins a new episode."""
        self._timestep = None
        while not self._should_stop():
            if (result := self.run_step()) is not None:
                return result
        return None

    def run_step(self) -> EpisodeResult | None:
        """Takes one action, beginning an episode if none is open; the result when that was its last one."""
        action = self._actor.select_action(self.begin().observation)
        self._timestep = self._environment.step(action)
        self._actor.observe(action, self._timestep)
        self._actor.update()
        self._return += _scalar(self._timestep.reward)
        self._length += 1
        if not self._timestep.last():
            return None
        self._timestep = None
        return EpisodeResult(self._return, self._length)

    def begin(self) -> dm_env.TimeStep:
        """Begins an episode if none is open; what the next action is an answer to."""
        if self._timestep is None:
            self._timestep = self._environment.reset()
            self._actor.observe_first(self._timestep)
            self._return, self._length = 0.0, 0
        return self._timestep

    # --- as a loop of an `ActorRunner`

    num_environments = 1

    def run_steps(self) -> list[EpisodeResult]:
        """As `run_step`, with the result in a list."""
        result = self.run_step()
        return [] if result is None else [result]
