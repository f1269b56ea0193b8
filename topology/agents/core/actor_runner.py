"""An actor as a node: plays until the program stops or has made enough steps, counts, and reports."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol, final

from topology.agents.core.counter import ChildCounter
from topology.agents.core.loop import EpisodeResult
from topology.agents.core.metrics import Averages, RowWriter
from topology.agents.core.stopping import until_stopped
from topology.agents.core.types import Weights
from topology.clock import SYSTEM_CLOCK, Clock
from topology.context import StopToken

__all__ = ["ActingLoop", "ActorParts", "ActorRunner", "Closable"]

_FLUSH_STEPS = 64
"""While there is a limit, an actor hands on its count at least this often, and waits for that: so that none of them
makes more than this many steps too many (and one for each further environment), however busy the machine."""


class Closable(Protocol):
    """What is closed when an actor ends."""

    def close(self) -> None:
        """Lets go of what it holds."""


class ActingLoop(Protocol):
    """What plays: an `EnvironmentLoop`, or a `VectorLoop`."""

    @property
    def num_environments(self) -> int:
        """Steps that a call of `run_steps` makes."""

    def run_steps(self) -> list[EpisodeResult]:
        """Takes one action in each environment; the results of the episodes that end with it."""


class ActorParts(NamedTuple):
    """What an actor is made of.

    Attributes:
        loop: plays.
        weights: that it plays with; the first ones are waited for.
        closables: closed when it ends, in this order.
    """

    loop: ActingLoop
    weights: Weights
    closables: tuple[Closable, ...] = ()


@final
class ActorRunner:
    """Drives one actor. Ends by itself when the actors of the program have made `max_actor_steps` together.

    Args:
        parts: what plays, and with what.
        counter: courier client of the run's `Counter`.
        counts: counts under the prefix "actor"; closed at the end.
        metrics: gets a row about once a second, averaged over the episodes since the last; where none ends, one every
            ten seconds, without a return.
        stop: of the program.
        max_actor_steps: the limit; None for none.
        clock: for tests.
    """

    def __init__(
        self,
        *,
        parts: ActorParts,
        counter: Any,
        counts: ChildCounter,
        metrics: RowWriter,
        stop: StopToken,
        max_actor_steps: int | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._loop = parts.loop
        self._weights = parts.weights
        self._closables = (*parts.closables, counts)
        self._counter = counter
        self._counts = counts
        self._averages = Averages(metrics, clock=clock)
        self._stop = stop
        self._max_actor_steps = max_actor_steps
        self._enough = threading.Event()
        self._steps = self._flushed_steps = self._reported_steps = 0

    def run(self) -> None:
        """Plays until there are enough steps, or the program stops."""
        with contextlib.ExitStack() as stack:
            for closable in reversed(self._closables):
                stack.callback(closable.close)
            with until_stopped(self._stop):
                self._play()

    def _play(self) -> None:
        self._watch_limit()
        self._weights.update_and_wait()
        while not self._enough.is_set() and not self._stop.is_set():
            results = self._loop.run_steps()
            self._count_steps(self._loop.num_environments)
            for result in results:
                self._counts.increment(episodes=1)
                self._averages.add(episode_return=result.episode_return, episode_length=result.episode_length)
            if self._averages.due if results else self._averages.overdue:
                self._report()

    def _count_steps(self, steps: int) -> None:
        self._steps += steps
        self._counts.increment(steps=steps)
        if self._max_actor_steps is not None and self._steps - self._flushed_steps >= _FLUSH_STEPS:
            self._flushed_steps = self._steps
            self._counts.flush()
            # Who was to say so may have died since.
            if self._counts.get_counts().get("actor_steps", 0) >= self._max_actor_steps:
                self._enough.set()

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
            weights_version=self._weights.version,
            weights_age_s=self._weights.age_s,
        )
