"""Storing in a memory behind the courier, several on their way."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple, final

from topology.clock import Deadline
from topology.errors import StoreClosed
from topology.nodes.store.memory_offers import Ticket
from topology.nodes.store.memory_writer import MemoryWriter
from topology.nodes.store.parcel import Parcel

__all__ = ["MemoryPipeline"]


class _UnderWay(NamedTuple):
    steps: int
    stored: Future[str]


@final
class MemoryPipeline(MemoryWriter):
    """Sends one after the other, and asks later what became of them.

    Requests may overtake one another on their way: each names the one before it, behind which the service puts it.

    Args:
        submit: sends what was prepared to the service.
        wait: for the service's answer; it is told of how many steps. Raises StoreFull when the deadline passes first.
        prepare: makes of a parcel what is sent, or raises what `store` is to raise.
        max_in_flight: experiences under way.
    """

    def __init__(
        self,
        submit: Callable[[Ticket, Parcel], Future[str]],
        wait: Callable[[Future[str], Deadline, int], object],
        prepare: Callable[[Parcel], Parcel],
        max_in_flight: int,
    ) -> None:
        self._submit = submit
        self._wait = wait
        self._prepare = prepare
        self._most = max_in_flight
        self._under_way: deque[_UnderWay] = deque()
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._writer = secrets.token_hex(12)
        self._number = 0

    def _store(self, parcel: Parcel, deadline: Deadline) -> None:
        if self._closed:
            raise StoreClosed("this writer is closed; open another")
        parcel = self._prepare(parcel)
        self._settle(self._most - 1, deadline)
        stored = self._submit(Ticket(self._writer, self._number + 1, after=self._number), parcel)
        self._number += 1
        self._under_way.append(_UnderWay(parcel.steps, stored))

    def flush(self, timeout_s: float | None = None) -> None:
        self._settle(0, Deadline(timeout_s))

    def close(self) -> None:
        self._closed = True
        self._under_way.clear()

    def _settle(self, most: int, deadline: Deadline) -> None:
        """Waits until at most so many are under way."""
        while len(self._under_way) > most:
            self._wait_for_the_oldest(deadline)

    def _wait_for_the_oldest(self, deadline: Deadline) -> None:
        steps, stored = self._under_way[0]
        try:
            self._wait(stored, deadline, steps)
        except BaseException:
            if stored.done():  # not an interrupt of this thread
                # Nobody knows what became of those behind it, and none may wait for one that never came.
                self._under_way.clear()
                self._begin()
            raise
        self._under_way.popleft()
