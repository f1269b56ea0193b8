"""How the workers of an agent play: the agent's own actors and adders, with policies out of a data store."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, cast, final

import dm_env

from topology.agents.core.loop import EpisodeResult
from topology.agents.core.types import Adder, Variables, Weights
from topology.agents.scaleout.agent_items import Catch
from topology.agents.scaleout.roles import Columns, Follow
from topology.agents.scaleout.trees import unflatten
from topology.clock import SYSTEM_CLOCK
from topology.errors import ProgramStopped
from topology.nodes.store.policies import Policy

__all__ = ["WEIGHTS", "AgentActing", "AgentPlayed", "AgentPlayer", "PolicySource", "RenewedAdder"]

WEIGHTS = "weights"
"""What the names of weights begin with in a data store."""


@final
class PolicySource:
    """Gives an agent's actors the weights of the policy that was loaded last; see `VariableSource`.

    Args:
        like: weights of the same network.
    """

    def __init__(self, like: Any) -> None:
        self._like = like
        self._variables: Variables | None = None

    def load(self, policy: Policy) -> None:
        """Gives this from now on. Raises ProgramError for the weights of another network."""
        values = unflatten(self._like, policy.arrays, WEIGHTS)
        self._variables = Variables(int(cast(Any, policy.meta["updates"])), SYSTEM_CLOCK.time(), [values])

    def get_variables(self, names: Sequence[str]) -> Variables:
        """The weights; `names` are those of the policy alone."""
        if self._variables is None:
            raise RuntimeError(f"{', '.join(names)} was asked for before a policy was loaded")
        return self._variables


@final
class AgentActing:
    """What an agent's actors act with; see `Acts`.

    Args:
        source: where they have their weights from.
        weights: of the actors.
    """

    def __init__(self, source: PolicySource, weights: Weights) -> None:
        self._source = source
        self._weights = weights
        self.number = -1

    def load(self, policy: Policy) -> None:
        self._source.load(policy)
        self._weights.update_and_wait()
        self.number = policy.number


@final
class RenewedAdder:
    """An adder, and after it another one like it, which knows nothing of what the first has seen.

    Args:
        make: makes them.
    """

    def __init__(self, make: Callable[[], Adder]) -> None:
        self._make = make
        self._adder = make()

    def renew(self) -> None:
        """The next step begins anew: no item reaches back over it."""
        self._adder.close()
        self._adder = self._make()

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        self._adder.observe_first(timestep)

    def observe(self, action: Any, next_timestep: dm_env.TimeStep, extras: Any = None, state: Any = None) -> None:
        self._adder.observe(action, next_timestep, extras=extras, state=state)

    def close(self) -> None:
        self._adder.close()


class AgentPlayed(NamedTuple):
    """What was played; see `WasPlayed`.

    Attributes:
        columns: items of the agent's table that it has made.
        num_steps: of all environments.
        episodes: that ended.
        oldest: number of the oldest policy that may have chosen an action in an item.
    """

    columns: Columns
    num_steps: int
    episodes: list[EpisodeResult]
    oldest: int


class _Loop(Protocol):
    @property
    def num_environments(self) -> int: ...

    def run_steps(self) -> list[EpisodeResult]: ...


class _Closable(Protocol):
    def close(self) -> None: ...


@final
class AgentPlayer:
    """Plays with an agent's own actors. For one thread.

    Args:
        loop: plays; what it keeps goes into `catch`.
        acting: the policy.
        catch: what was kept; None where nothing is.
        closables: closed at the end, before the catch.
        should_stop: asked before every action.
        follow: called before every action of all environments; None for nothing.
        run_episode: plays one; None when the program was stopped meanwhile. For `play_episodes`.
        begin_share: called before the first of them; None for nothing.
    """

    def __init__(
        self,
        *,
        loop: _Loop,
        acting: AgentActing,
        catch: Catch | None,
        closables: Sequence[_Closable],
        should_stop: Callable[[], bool],
        follow: Follow | None = None,
        run_episode: Callable[[], EpisodeResult | None] | None = None,
        begin_share: Callable[[], None] | None = None,
    ) -> None:
        self._loop = loop
        self._acting = acting
        self._catch = catch
        self._closables = closables
        self._should_stop = should_stop
        self._follow = follow
        self._run_episode = run_episode
        self._begin_share = begin_share
        self._numbers: deque[int] = deque()  # of the policies that chose the latest actions

    def play_steps(self, steps: int) -> AgentPlayed:
        """See `Plays`. Items may reach back into what was played before."""
        reach = 1 if self._catch is None else self._catch.longest
        while len(self._numbers) > reach:
            self._numbers.popleft()
        episodes: list[EpisodeResult] = []
        times = steps // self._loop.num_environments
        for _ in range(times):
            if self._should_stop():
                raise ProgramStopped("the program stopped while an agent played")
            if self._follow is not None:
                self._follow(self._acting)
            episodes += self._loop.run_steps()
            self._numbers.append(self._acting.number)
            if self._catch is not None:
                self._catch.gather()
        oldest = min(self._numbers, default=self._acting.number)
        return AgentPlayed(self._take(), times * self._loop.num_environments, episodes, oldest)

    def play_episodes(self, episodes: int) -> AgentPlayed:
        """See `Plays`. Items reach back to the first of these episodes at most."""
        assert self._run_episode is not None  # whoever plays episodes was made with it
        if self._begin_share is not None:
            self._begin_share()
        results = []
        for _ in range(episodes):
            if (result := self._run_episode()) is None:
                raise ProgramStopped("the program stopped while an agent played")
            results.append(result)
        return AgentPlayed(self._take(), sum(result.episode_length for result in results), results, self._acting.number)

    def _take(self) -> Columns:
        return {} if self._catch is None else self._catch.take()

    def close(self) -> None:
        """Closes environments and adders."""
        for closable in self._closables:
            closable.close()
        if self._catch is not None:
            self._catch.close()
