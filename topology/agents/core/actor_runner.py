"""An actor as a node: plays until the program stops or has made enough steps, counts, and reports."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any, Protocol, final

import dm_env

from topology.agents.core.counter import ChildCounter
from topology.agents.core.loop import EnvironmentLoop
from topology.agents.core.metrics import Averages, RowWriter
from topology.agents.core.stopping import until_stopped
from topology.agents.core.types import Actor
from topology.agents.core.variables import VariableClient
from topology.clock import SYSTEM_CLOCK, Clock
from topology.context import StopToken

__all__ = ["ActorRunner", "Closable"]

_FLUSH_STEPS = 64
"""While there is a limit, an actor hands on its count at least this often, and waits for that: so that none of them
makes more than this many steps too many, however busy the machine."""


class Closable(Protocol):
    """What is closed when an actor ends."""

    def close(self) -> None:
        """Lets go of what it holds."""


@final
class ActorRunner:
    """Drives one actor. Ends by itself when the actors of the program have made `max_actor_steps` together.

    Args:
        environment: played, and closed at the end.
        actor: plays.
        client: the actor's weights; the first ones are waited for.
        counter: courier client of the run's `Counter`.
        counts: counts under the prefix "actor"; closed at the end.
        metrics: gets a row about once a second, averaged over the episodes since the last.
        stop: of the program.
        max_actor_steps: the limit; None for none.
        closables: closed at the end, in this order.
        clock: for tests.
    """

    def __init__(
        self,
        *,
        environment: dm_env.Environment,
        actor: Actor,
        client: VariableClient,
        counter: Any,
        counts: ChildCounter,
        metrics: RowWriter,
        stop: StopToken,
        max_actor_steps: int | None = None,
        closables: tuple[Closable, ...] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._client = client
        self._counter = counter
        self._counts = counts
        self._averages = Averages(metrics, clock=clock)
        self._stop = stop
        self._max_actor_steps = max_actor_steps
        self._closables = (*closables, counts, environment)
        self._enough = threading.Event()
        self._loop = EnvironmentLoop(environment, actor, should_stop=self._should_stop, on_step=self._count_step)
        self._steps = 0
        self._reported_steps = 0

    def run(self) -> None:
        """Plays until there are enough steps, or the program stops."""
        try:
            with until_stopped(self._stop):
                self._play()
        finally:
            for closable in self._closables:
                closable.close()

    def _play(self) -> None:
        self._watch_limit()
        self._client.update_and_wait()
        while (result := self._loop.run_episode()) is not None:
            self._counts.increment(episodes=1)
            self._averages.add(episode_return=result.episode_return, episode_length=result.episode_length)
            if self._averages.due:
                self._report()

    def _should_stop(self) -> bool:
        return self._enough.is_set() or self._stop.is_set()

    def _count_step(self) -> None:
        self._steps += 1
        self._counts.increment(steps=1)
        if self._max_actor_steps is not None and self._steps % _FLUSH_STEPS == 0:
            self._counts.flush()

    def _watch_limit(self) -> None:
        """Has the counter say when it is enough: nothing is asked in between."""
        if self._max_actor_steps is not None:
            reached = self._counter.futures.when_reached("actor_steps", self._max_actor_steps)
            reached.add_done_callback(self._on_reached)

    def _on_reached(self, reached: Future[Any]) -> None:
        if not reached.cancelled() and reached.exception() is None:
            self._enough.set()

    def _report(self) -> None:
        made, self._reported_steps = self._steps - self._reported_steps, self._steps
        self._averages.write(
            rates={"steps_per_second": made},
            actor_steps=self._steps,
            weights_version=self._client.version,
            weights_age_s=self._client.age_s,
        )
