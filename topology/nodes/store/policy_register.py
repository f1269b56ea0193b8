"""The record of a data store where it lies: read, replaced by its successor, and leased to one writer."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import final

from topology.clock import Clock
from topology.errors import LeaseHeld, LeaseLost, StoreClosed, StoreDeadlineExceeded, StoreError
from topology.nodes.store.lease_watch import LeaseWatch
from topology.nodes.store.policies import Lease
from topology.nodes.store.policy_medium import Medium
from topology.nodes.store.policy_record import Record
from topology.nodes.store.policy_waits import Wait

__all__ = ["HeldLease", "Register", "holder_of", "term_of"]

_logger = logging.getLogger(__name__)


@final
class Register:
    """The record in its medium. Thread-safe.

    Args:
        medium: where it lies.
        clock: of leases.
    """

    def __init__(self, medium: Medium, clock: Clock) -> None:
        self._medium = medium
        self._clock = clock
        self._watch = LeaseWatch(clock)
        self._closed = False

    def read(self) -> Record:
        """The newest.

        Raises:
            StoreClosed: `close` was called.
            StoreDataError: it is not one of ours.
        """
        if self._closed:
            raise StoreClosed(f"the data store at {self._medium!r} is closed")
        data = self._medium.read()
        return Record() if data is None else Record.from_bytes(data, repr(self._medium))

    def write(self, record: Record, blobs: Sequence[str] = ()) -> bool:
        """Makes `record` the newest; False when another is its equal or later. For `blobs` see `Medium.write`."""
        if self._medium.write(record.revision, record.to_bytes(), blobs):
            return True
        # A request that was sent twice on the way is refused the second time.
        return self.read().id == record.id

    def change(self, change: Callable[[Record, float], Record]) -> Record:
        """Replaces the newest by what `change` makes of it and of the time; however many others do so too."""
        while True:
            after = change(self.read(), self._clock.time())
            if self.write(after):
                return after

    def discard(self, names: Iterable[str]) -> None:
        """Removes bytes that nobody needs. That it fails does not undo what was done before."""
        doomed = list(names)
        try:
            self._medium.delete(doomed)
        except StoreError as error:
            _logger.warning("data store: %d unused files stay in %r: %s", len(doomed), self._medium, error)

    def close(self) -> None:
        """Later reads raise `StoreClosed`."""
        self._closed = True

    # --- the lease ----------------------------------------------------------------------------------------------------

    def is_over(self, record: Record) -> bool:
        """Whether the lease that somebody has by `record`, just read, is over; also when nobody has one."""
        return not self._watch.left_s(record)

    def take(self, owner: str, ttl_s: float, wait: Wait) -> HeldLease:
        """See `DataStore.lease`."""
        if not isinstance(owner, str) or not owner:
            raise ValueError(f"the owner of a lease is a name, got {owner!r}")
        if not 0 < ttl_s < math.inf:
            raise ValueError(f"ttl_s={ttl_s!r}: a lease lasts a number of seconds above 0, and not for ever")
        while True:
            current = self.read()
            left_s = self._watch.left_s(current)
            try:
                after = current.leased(owner, ttl_s, self._clock.time(), over=not left_s)
            except LeaseHeld as held:
                try:
                    wait.check()
                except StoreDeadlineExceeded:
                    raise held from None
                self._medium.wait_changed(current.revision, wait, left_s)
                continue
            if self.write(after):
                break
        self._sweep(after.term)
        return HeldLease(self, owner, ttl_s, after)

    def _sweep(self, term: int) -> None:
        """Removes what writers before this one left unfinished."""
        try:
            leftovers = self._medium.leftovers()
        except StoreError as error:
            _logger.warning("data store: what earlier writers left unfinished stays in %r: %s", self._medium, error)
            return
        current = self.read()
        # Still ours: nobody else has begun to write anything since before the names were listed.
        if current.term == term:
            self.discard(set(leftovers) - current.blob_names())


@final
class HeldLease(Lease):
    """See `Lease`. The term is what the record is compared with."""

    def __init__(self, register: Register, owner: str, ttl_s: float, record: Record) -> None:
        self._register = register
        self.owner = owner
        self.ttl_s = ttl_s
        self.term = record.term
        self.renewed(record)

    def __repr__(self) -> str:
        return f"<lease of {self.owner!r}, term {self.term}>"

    @property
    def expires_at(self) -> float:
        return self._expires_at

    def renewed(self, record: Record) -> None:
        """The record has been written with a later end."""
        self._expires_at = record.holder.expires_at if record.holder is not None else 0.0

    def renew(self) -> None:
        self.renewed(self._register.change(lambda record, now: record.renewed(self.term, self.ttl_s, now)))

    def release(self) -> None:
        try:
            self._register.change(lambda record, _: record.released(self.term))
        except LeaseLost:
            return  # it is not ours to give back


def holder_of(lease: Lease | None) -> HeldLease | None:
    """The lease, if it is one of these.

    Raises:
        TypeError: it is something else.
    """
    if lease is None or isinstance(lease, HeldLease):
        return lease
    raise TypeError(f"lease is what the store's lease() returned, got {lease!r}")


def term_of(lease: HeldLease | None) -> int | None:
    """What the record is compared with."""
    return None if lease is None else lease.term
