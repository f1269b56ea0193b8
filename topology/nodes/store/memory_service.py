"""A memory in this process: what is stored, who waits for room, who waits for experience.

Nothing blocks and no thread is held: who has to wait gets a future, which the very call that ends the wait completes.
`memory_local` is the way to it within a process, `memory_served` from another one.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, final

from topology.errors import StoreClosed
from topology.nodes.store.bounds import check_fits, check_reachable
from topology.nodes.store.experience import Experience
from topology.nodes.store.memory import MemoryStats
from topology.nodes.store.memory_offers import Offer, Offers, Ticket
from topology.nodes.store.parcel import Parcel
from topology.nodes.store.shelf import Shelf, Wish

__all__ = ["MemoryService"]

_MOST_WRITERS = 65_536  # whose latest experience is remembered; the idlest are forgotten


class _Kept(NamedTuple):
    experience: Experience
    steps: int
    nbytes: int

    @property
    def whole_episode(self) -> bool:
        return self.experience.whole_episode


class _Wait(NamedTuple):
    reader: int
    wish: Wish
    there: Future[None]


@final
class MemoryService:
    """Thread-safe.

    Args:
        max_steps: most steps it keeps.
        max_bytes: most bytes of columns.
    """

    def __init__(self, max_steps: int, max_bytes: int) -> None:
        self.bounds = max_steps, max_bytes
        self._lock = threading.Lock()
        self._prefix = secrets.token_hex(4)
        self._shelf: Shelf[_Kept] = Shelf()
        self._held: dict[str, _Kept] = {}  # delivered and not acknowledged, in order
        self._steps = 0
        self._bytes = 0
        self._offers = Offers()
        self._waits: deque[_Wait] = deque()
        self._latest: OrderedDict[str, tuple[int, str]] = OrderedDict()
        self._reader = 0
        self._stored = 0
        self._acknowledged = 0
        self._closed = False

    # -- writers ------------------------------------------------------------------------------------------------------

    def store(self, ticket: Ticket, parcel: Parcel) -> Future[str]:
        """Takes `parcel`, whose arrays are its own from now on, when there is room. First come, first served.

        One whose ticket names another waits for that, too, whichever of them comes here first.

        Raises:
            ValueError: it is larger than the whole memory.
        """
        nbytes = sum(array.nbytes for array in parcel.columns.values())
        check_fits(parcel.steps, nbytes, *self.bounds)
        offer = Offer(ticket, parcel, nbytes, Future())
        with self._lock:
            self._check_open()
            number, known = self._latest.get(ticket.writer, (0, ""))
            if number == ticket.number:
                offer.accepted.set_result(known)
                return offer.accepted
            self._offers.add(offer, accepted=number)
            ended = self._advance()
        _run(ended)
        return offer.accepted

    def withdraw(self, ticket: Ticket) -> str | None:
        """Takes back what waits for room; the id when it was taken meanwhile."""
        with self._lock:
            number, known = self._latest.get(ticket.writer, (0, ""))
            if number == ticket.number:
                return known
            self._offers.withdraw(ticket)
            ended = self._advance()  # it may have been the one that did not fit
        _run(ended)
        return None

    # -- the reader ---------------------------------------------------------------------------------------------------

    def attach(self) -> int:
        """A new reader, by its number: everything that is not acknowledged will be delivered to it."""
        with self._lock:
            self._check_open()
            self._reader += 1
            self._shelf.add_first(self._held.values())
            self._held.clear()
            ended = self._advance()
        _run(ended)
        return self._reader

    def wait(self, reader: int, wish: Wish) -> Future[None]:
        """Done when the wish can be fulfilled.

        Raises:
            ValueError: it never can.
            StoreClosed: there is a newer reader.
        """
        check_reachable(wish, self.bounds[0])
        there: Future[None] = Future()
        with self._lock:
            self._check_reader(reader)
            self._waits.append(_Wait(reader, wish, there))
            ended = self._advance()
        _run(ended)
        return there

    def take(self, reader: int, wish: Wish) -> list[Experience] | None:
        """Delivers what fulfils the wish; None when another thread of the reader has taken it.

        Raises:
            StoreClosed: there is a newer reader.
        """
        with self._lock:
            self._check_reader(reader)
            return self._deliver(self._shelf.take(wish)) if self._shelf.has(wish) else None

    def take_available(self, reader: int, max_steps: int | None) -> list[Experience]:
        """Delivers what is there.

        Raises:
            StoreClosed: there is a newer reader.
        """
        with self._lock:
            self._check_reader(reader)
            return self._deliver(self._shelf.take_at_most(max_steps))

    def acknowledge(self, ids: list[str]) -> None:
        """Lets go of what was delivered; ids that are not held are ignored."""
        with self._lock:
            for kept in filter(None, (self._held.pop(id_, None) for id_ in ids)):
                self._steps -= kept.steps
                self._bytes -= kept.nbytes
                self._acknowledged += 1
            ended = self._advance()
        _run(ended)

    # -- both ---------------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Forgets what is there, delivered or not. Who waits for room gets it."""
        with self._lock:
            self._shelf.clear()
            self._held.clear()
            self._steps = self._bytes = self._stored = self._acknowledged = 0
            ended = self._advance()
        _run(ended)

    def stats(self) -> MemoryStats:
        """Counts at this moment."""
        with self._lock:
            shelf = self._shelf
            return MemoryStats(
                stored=self._stored,
                delivered=self._acknowledged + len(self._held),
                acknowledged=self._acknowledged,
                refused=0,
                waiting_steps=shelf.steps,
                waiting_episodes=shelf.episodes,
                waiting_bytes=shelf.nbytes,
                writers_blocked=self._offers.writers,
            )

    def explain(self) -> str:
        """Its state in one line, for those who waited in vain."""
        with self._lock:
            shelf, held = self._shelf, self._held.values()
            return (
                f"{shelf.steps} steps ({shelf.episodes} episodes, {shelf.nbytes} bytes) wait for the reader and "
                f"{sum(kept.steps for kept in held)} are delivered and not acknowledged, of max_steps="
                f"{self.bounds[0]} and max_bytes={self.bounds[1]}; {self._offers.writers} writers wait for room"
            )

    def is_empty(self) -> bool:
        """Whether nothing is here, and nobody waits to bring something."""
        with self._lock:
            return not (self._shelf or self._held or self._offers)

    def close(self) -> None:
        """Ends every wait with `StoreClosed`."""
        with self._lock:
            self._closed = True
            offers = self._offers.clear()
            futures: list[Future[Any]] = [*(o.accepted for o in offers), *(w.there for w in self._waits)]
            self._waits.clear()
        for future in futures:
            if future.set_running_or_notify_cancel():
                future.set_exception(StoreClosed("the memory was closed"))

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the memory was closed")

    def _check_reader(self, reader: int) -> None:
        self._check_open()
        if reader != self._reader:
            raise StoreClosed(
                "another handle has become the reader of this memory, and gets what was not acknowledged; a memory has "
                "one reader at a time. recover() takes it back"
            )

    def _deliver(self, taken: list[_Kept]) -> list[Experience]:
        self._held.update((kept.experience.id, kept) for kept in taken)
        return [kept.experience for kept in taken]

    def _advance(self) -> list[Callable[[], None]]:
        """Lets pass what can, the lock held; returns what is to be done without it."""
        ended: list[Callable[[], None]] = []
        while (offer := self._offers.first) is not None and self._fits(offer):
            self._offers.pop()
            if offer.accepted.set_running_or_notify_cancel():
                ended.append(_completion(offer.accepted, self._accept(offer)))
        waits, self._waits = self._waits, deque()
        for wait in waits:
            # All are told that could be served; who comes too late waits again.
            if wait.reader != self._reader or self._shelf.has(wait.wish):
                if wait.there.set_running_or_notify_cancel():
                    ended.append(_completion(wait.there, None))
            elif not wait.there.cancelled():
                self._waits.append(wait)
        return ended

    def _fits(self, offer: Offer) -> bool:
        if offer.accepted.cancelled():
            return True  # its writer has gone: it goes, too
        max_steps, max_bytes = self.bounds
        return self._steps + offer.parcel.steps <= max_steps and self._bytes + offer.nbytes <= max_bytes

    def _accept(self, offer: Offer) -> str:
        parcel, id_ = offer.parcel, f"{self._prefix}-{self._stored}"
        for array in parcel.columns.values():
            array.setflags(write=False)  # it may have to be delivered again
        experience = Experience(parcel.columns, parcel.meta, parcel.whole_episode, id_)
        self._shelf.add(_Kept(experience, parcel.steps, offer.nbytes))
        self._stored += 1
        self._steps += parcel.steps
        self._bytes += offer.nbytes
        self._latest[offer.ticket.writer] = offer.ticket.number, id_
        self._latest.move_to_end(offer.ticket.writer)
        if len(self._latest) > _MOST_WRITERS:
            self._latest.popitem(last=False)
        return id_


def _completion(future: Future[Any], result: object) -> Callable[[], None]:
    return lambda: future.set_result(result)


def _run(ended: list[Callable[[], None]]) -> None:
    for complete in ended:
        complete()
