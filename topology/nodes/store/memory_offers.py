"""Experience that waits for room in a memory, in order."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from typing import NamedTuple, final

from topology.nodes.store.parcel import Parcel

__all__ = ["Offer", "Offers", "Ticket"]


class Ticket(NamedTuple):
    """Which writer stores, and its how manyth, from 1 on: sent again, it is not stored again.

    Attributes:
        after: the number of the one that must be ahead of it; 0 for none.
    """

    writer: str
    number: int
    after: int = 0


class Offer(NamedTuple):
    """Experience that a writer would like to store; `accepted` becomes its id."""

    ticket: Ticket
    parcel: Parcel
    nbytes: int
    accepted: Future[str]


@final
class Offers:
    """First come, first served, but for those that name another: they stand behind that one, even if it comes later.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._line: deque[Offer] = deque()
        self._early: dict[tuple[str, int], Offer] = {}  # by writer and number of the one that is still to come

    def __bool__(self) -> bool:
        return bool(self._line or self._early)

    @property
    def first(self) -> Offer | None:
        """Whose turn it is."""
        return self._line[0] if self._line else None

    @property
    def writers(self) -> int:
        """How many writers wait."""
        return len({offer.ticket.writer for offer in self._line})

    def add(self, offer: Offer, accepted: int) -> None:
        """Adds an offer of a writer whose offers up to number `accepted` are in the memory."""
        writer, _, after = offer.ticket
        if after > accepted and not any(other.ticket[:2] == (writer, after) for other in self._line):
            self._early[writer, after] = offer
            # Its writer may go away before the other one comes.
            offer.accepted.add_done_callback(lambda _: self._early.pop((writer, after), None))
            return
        turn: Offer | None = offer
        while turn is not None:
            self._line.append(turn)
            turn = self._early.pop(turn.ticket[:2], None)

    def pop(self) -> Offer:
        """The first one, which leaves."""
        return self._line.popleft()

    def withdraw(self, ticket: Ticket) -> None:
        """Takes an offer back."""
        self._line = deque(offer for offer in self._line if offer.ticket != ticket)

    def clear(self) -> list[Offer]:
        """All of them, which leave."""
        offers = [*self._line, *self._early.values()]
        self._line.clear()
        self._early.clear()
        return offers
