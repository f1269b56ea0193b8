"""Batches on their way to replay nodes: bounded, and sent again where a node that went away is waited for."""

from __future__ import annotations

import itertools
import random
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, final

from topology.errors import ConnectionBroken
from topology.nodes.flow.actors import Actor
from topology.nodes.flow.batch import Batch
from topology.nodes.flow.events import Waker
from topology.nodes.flow.failures import Crew, Verdict

__all__ = ["Senders", "crew_of"]

MOST_UNDER_WAY = 16
"""Batches on their way to one node."""


def crew_of(actors: Sequence[Actor]) -> Crew:
    """The crew that these belong to; one of their own, of which every failure is raised, where there is none."""
    crew = actors[0].crew if actors else None
    return crew if crew is not None and all(actor.crew is crew for actor in actors) else Crew(actors)


class _Failed(NamedTuple):
    actor: Actor
    batch: Batch
    error: BaseException
    outages: int  # of the actor that were over when it was sent


@final
class Senders:
    """Sends each batch to one of several replay nodes, drawn at random. For the thread that drives the plan.

    Args:
        actors: the nodes.
        seed: of the drawing.
    """

    def __init__(self, actors: Sequence[Actor], seed: int | None) -> None:
        self._actors = list(actors)
        self._crew = crew_of(actors)
        self._random = random.Random(seed)
        self._chosen: Actor | None = None  # for a batch that could not go yet
        self._numbers = itertools.count()
        self._lock = threading.Lock()  # guards the next four
        self._late_at: dict[Actor, float] = {}  # when to give up those that are waited for
        self._under_way: dict[Actor, dict[int, Batch]] = {actor: {} for actor in actors}
        self._failed: deque[_Failed] = deque()
        self._wakers: set[Waker] = set()

    def try_send(self, batch: Batch, waker: Waker) -> bool:
        """Sends a batch if there is room for it; otherwise the waker is woken when there may be.

        Raises:
            Exception: an earlier batch could not be stored.
        """
        self._give_up_late_ones(waker)
        while self._failed:
            self._judge(self._failed.popleft(), waker)
        if self._chosen is None or self._crew.is_gone(self._chosen):
            self._chosen = self._draw()
        with self._lock:
            if len(self._under_way[self._chosen]) >= MOST_UNDER_WAY:
                self._wakers.add(waker)
                waker.arm()
                if self._late_at:
                    waker.wake_at(min(self._late_at.values()))
                return False
        self._send(self._chosen, batch)
        self._chosen = None
        return True

    def _draw(self) -> Actor:
        return self._random.choice([actor for actor in self._actors if not self._crew.is_gone(actor)])

    def _send(self, actor: Actor, batch: Batch) -> None:
        number = next(self._numbers)
        with self._lock:
            self._under_way[actor][number] = batch
        outages = self._crew.outages_over(actor)
        sent = actor.submit("add_batch", batch)
        sent.add_done_callback(lambda future: self._stored(actor, number, outages, future))

    def _stored(self, actor: Actor, number: int, outages: int, future: Future[Any]) -> None:
        with self._lock:
            batch = self._under_way[actor].pop(number, None)
            error = None if future.cancelled() else future.exception()
            if batch is None:
                return  # it went to another one
            if error is None:
                self._late_at.pop(actor, None)
                self._crew.end_outage(actor)
            else:
                self._failed.append(_Failed(actor, batch, error, outages))
            wakers, self._wakers = self._wakers, set()
        for waker in wakers:
            waker.wake()

    # --- failures ----------------------------------------------------------------------------------------------------

    def _judge(self, failed: _Failed, waker: Waker) -> None:
        actor, batch, error, _ = failed
        verdict = self._verdict(failed)
        if verdict is Verdict.RETRY:
            with self._lock:
                self._late_at.setdefault(actor, waker.clock.monotonic() + self._crew.failures.patience_s)
            self._send(actor, batch)
        elif verdict is Verdict.LEAVE_OUT:
            self._send(self._draw(), batch)
        else:
            error.add_note(f"raised by {actor.name} when it was given a batch to store")
            raise error

    def _verdict(self, failed: _Failed) -> Verdict:
        if not isinstance(failed.error, ConnectionBroken):
            return Verdict.RAISE  # what a node refuses it would refuse again
        return self._crew.judge(failed.actor, failed.error, failed.outages)

    def _give_up_late_ones(self, waker: Waker) -> None:
        now = waker.clock.monotonic()
        with self._lock:
            late = [actor for actor, late_at in self._late_at.items() if late_at <= now]
            given_up = {actor: list(self._under_way[actor].values()) for actor in late}
            for actor in late:
                self._under_way[actor] = {}
                del self._late_at[actor]
        for actor, batches in given_up.items():
            self._crew.end_outage(actor)
            error = ConnectionBroken(f"{actor.name} did not come back within {self._crew.failures.patience_s:g} s")
            outages = self._crew.outages_over(actor)
            self._failed.extend(_Failed(actor, batch, error, outages) for batch in batches)
