"""How workers play: several environments in step, for so many steps or whole episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import dm_env
import numpy as np
from numpy.typing import NDArray

from topology.agents.core.loop import EpisodeResult
from topology.agents.core.policy import PolicyOutput
from topology.agents.core.transitions import stored_action
from topology.errors import ProgramStopped

__all__ = ["Played", "Player", "Step"]


class Step(NamedTuple):
    """One step of one environment.

    Attributes:
        observation: before it.
        action: taken; int32 when it is discrete.
        timestep: what it led to.
        returns: discounted sum of the episode's rewards so far, the newest counting whole.
        extras: what the policy keeps with it, by name.
    """

    observation: Any
    action: Any
    timestep: dm_env.TimeStep
    returns: float
    extras: dict[str, NDArray[Any]]


class Played(NamedTuple):
    """What was played.

    Attributes:
        steps: of each environment, in order; in one that plays whole episodes they follow one another.
        episodes: that ended.
        oldest: number of the oldest policy that chose an action.
    """

    steps: list[list[Step]]
    episodes: list[EpisodeResult]
    oldest: int

    @property
    def num_steps(self) -> int:
        """Steps of all environments."""
        return sum(map(len, self.steps))


@final
class _Seat:
    """One environment, and where it is in its episode."""

    def __init__(self, environment: dm_env.Environment, discount: float, keep_steps: bool) -> None:
        self._environment = environment
        self._keep_steps = keep_steps
        self._discount = discount
        self._total, self._length, self._returns = 0.0, 0, 0.0
        self.observation: Any = None
        self.steps: list[Step] = []
        self.open = False

    def begin(self) -> None:
        """Begins an episode, whatever the last one was."""
        self.observation = self._environment.reset().observation
        self._total, self._length, self._returns = 0.0, 0, 0.0
        self.open = True

    def step(self, action: Any, extras: dict[str, NDArray[Any]]) -> EpisodeResult | None:
        """Takes an action; the result of the episode when that was its last."""
        timestep = self._environment.step(action)
        self._returns = self._discount * self._returns + float(timestep.reward)
        if self._keep_steps:
            self.steps.append(Step(self.observation, stored_action(action), timestep, self._returns, extras))
        self.observation = timestep.observation
        self._total += float(timestep.reward)
        self._length += 1
        if not timestep.last():
            return None
        self.open = False
        return EpisodeResult(self._total, self._length)

    def take(self) -> list[Step]:
        steps, self.steps = self.steps, []
        return steps


@final
class Player:
    """Plays several environments in step. For one thread.

    Args:
        environments: `N` of them; closed by `close`.
        act: the policy: from observations `[N, ...]` to actions.
        number: says which policy chose the last actions.
        discount: of `Step.returns`.
        should_stop: asked before every action.
        keep_steps: whether steps are wanted, or the results of episodes alone.
    """

    def __init__(
        self,
        environments: Sequence[dm_env.Environment],
        act: Callable[[NDArray[Any]], PolicyOutput],
        number: Callable[[], int],
        *,
        discount: float,
        should_stop: Callable[[], bool] = lambda: False,
        keep_steps: bool = True,
    ) -> None:
        self._environments = environments
        self._seats = [_Seat(environment, discount, keep_steps) for environment in environments]
        self._should_stop = should_stop
        self._act = act
        self._number = number
        self._episodes: list[EpisodeResult] = []
        self._oldest: int | None = None

    def play_steps(self, steps: int) -> Played:
        """So many steps, an equal number in each environment; episodes go on from call to call.

        Raises:
            ProgramStopped: the program stopped meanwhile; what was played is lost.
        """
        for _ in range(steps // len(self._seats)):
            for seat in self._seats:
                if not seat.open:
                    seat.begin()
            self._advance(self._seats)
        return self._take()

    def play_episodes(self, episodes: int) -> Played:
        """So many whole episodes. Those that were begun are all played to their end, so that long ones count too.

        Raises:
            ProgramStopped: the program stopped meanwhile; what was played is lost.
        """
        begun = 0
        for seat in self._seats:
            seat.open = False
        while True:
            for seat in self._seats:
                if not seat.open and begun < episodes:
                    seat.begin()
                    begun += 1
            playing = [seat for seat in self._seats if seat.open]
            if not playing:
                return self._take()
            self._advance(playing)

    def close(self) -> None:
        """Closes the environments."""
        for environment in self._environments:
            environment.close()

    def _advance(self, playing: list[_Seat]) -> None:
        if self._should_stop():
            raise ProgramStopped("the program stopped while an agent played")
        # Always of the same shape, so that the policy is compiled once.
        idle = [playing[0]] * (len(self._seats) - len(playing))
        output = self._act(np.stack([seat.observation for seat in playing + idle]))
        number = self._number()
        self._oldest = number if self._oldest is None else min(self._oldest, number)
        extras = output.extras or {}
        for index, seat in enumerate(playing):
            result = seat.step(output.action[index], {name: rows[index] for name, rows in extras.items()})
            if result is not None:
                self._episodes.append(result)

    def _take(self) -> Played:
        played = Played(
            [seat.take() for seat in self._seats], self._episodes, -1 if self._oldest is None else self._oldest
        )
        self._episodes, self._oldest = [], None
        return played
