"""The record of a data store: one small value that says all there is to know but the bytes of the policies.

It is written last, as a whole, in place of the one before it, and only if that was the newest: whoever reads it sees a
state that was true, and two writers never write from the same one. All rules are here, without I/O and without a
clock of its own. Whether a lease is over is for the caller to know: see `LeaseWatch`.

| what | the record after it | refused when |
|---|---|---|
| `leased` | another term, nothing announced | another owner's lease is not over |
| `renewed` | a later end of the lease | the term is another |
| `released` | no lease | the term is another |
| `published` | one policy more, those too old gone, not finished | the term is another; without a term: it is leased |
| `announced_ready`, `announced_finished` | that | a term is given, and it is another |
"""

from __future__ import annotations

import datetime
import json
import secrets
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple, Self, final

from topology.errors import LeaseHeld, LeaseLost, PolicyNotFound, StoreDataError

__all__ = ["Blob", "Entry", "Holder", "Record"]

_FORMAT: Final = "topology data store 1"


class Blob(NamedTuple):
    """Bytes that lie in the store under a name, and never change."""

    name: str
    nbytes: int
    crc32: int


class Entry(NamedTuple):
    """One policy, and the state saved with it."""

    number: int
    policy: Blob
    state: Blob | None

    def blobs(self) -> tuple[Blob, ...]:
        """All its bytes."""
        return (self.policy,) if self.state is None else (self.policy, self.state)


class Holder(NamedTuple):
    """Who has the lease.

    Attributes:
        owner: its name.
        expires_at: when it is over unless it is renewed, in seconds since the epoch by the owner's clock: for people.
        ttl_s: for how long it lasts without being renewed, in seconds.
        renewed: revision of the record that renewed it last.
    """

    owner: str
    expires_at: float
    ttl_s: float
    renewed: int


@final
@dataclass(frozen=True, kw_only=True)
class Record:
    """The value.

    Attributes:
        revision: grows by one with every record.
        id: tells two records of one revision apart, when one was written in vain.
        entries: the policies that are there, oldest first.
        term: grows by one whenever the lease is taken, also when it is released since.
        holder: who has the lease.
        ready: whether the trainer is there.
        finished: why no policy will follow.
    """

    revision: int = 0
    id: str = ""
    entries: tuple[Entry, ...] = ()
    term: int = 0
    holder: Holder | None = None
    ready: bool = False
    finished: str | None = None

    # --- questions ----------------------------------------------------------------------------------------------------

    @property
    def newest(self) -> int:
        """Number of the newest policy, or -1."""
        return self.entries[-1].number if self.entries else -1

    def entry(self, number: int | None) -> Entry:
        """That of the policy.

        Raises:
            PolicyNotFound: it is not there.
        """
        if not self.entries:
            raise PolicyNotFound("no policy has been saved here yet")
        if number is None:
            return self.entries[-1]
        for entry in self.entries:
            if entry.number == number:
                return entry
        there = ", ".join(str(entry.number) for entry in self.entries)
        gone = "is not there any more" if number < self.newest else "has not been saved yet"
        raise PolicyNotFound(f"policy {number} {gone}: there are {there}; `keep` says how many are kept")

    def newest_state(self) -> Entry | None:
        """The newest entry that has a state."""
        return next((entry for entry in reversed(self.entries) if entry.state is not None), None)

    def blob_names(self) -> frozenset[str]:
        """Names of all bytes that are in use."""
        return frozenset(blob.name for entry in self.entries for blob in entry.blobs())

    def check_writer(self, term: int | None, *, over: bool) -> None:
        """Whether the holder of `term`, or somebody without a lease, may write.

        Args:
            term: of the lease; None without one.
            over: whether the lease that somebody has is over.

        Raises:
            LeaseLost: the term is another.
            LeaseHeld: there is no term, and the lease of somebody is not over.
        """
        if term is not None:
            self.check_term(term)
        elif self.holder is not None and not over:
            raise _held(self.holder)

    def check_term(self, term: int) -> None:
        """Whether the holder of `term` may write.

        Raises:
            LeaseLost: the term is another.
        """
        if not self.revision:
            raise LeaseLost(
                "what was in the data store is gone, this writer's lease with it: nothing was written. Somebody has "
                "emptied it; or it is a Redis server that was started again without `appendonly yes`"
            )
        if term != self.term or self.holder is None:
            owner = f" by {self.holder.owner!r}" if self.holder is not None else ""
            raise LeaseLost(
                f"this writer's lease is over, and was taken{owner} since: nothing was written. Renew it more "
                "often than it lasts, and let one writer run"
            )

    # --- what may happen ----------------------------------------------------------------------------------------------

    def leased(self, owner: str, ttl_s: float, now: float, *, over: bool) -> Self:
        """The lease is taken, or taken over by an owner of the same name. `over`: whether that of somebody is."""
        if self.holder is not None and self.holder.owner != owner and not over:
            raise _held(self.holder)
        return self._next(term=self.term + 1, holder=self._holder(owner, ttl_s, now), ready=False, finished=None)

    def renewed(self, term: int, ttl_s: float, now: float) -> Self:
        """The holder goes on."""
        self.check_term(term)
        return self._next(holder=self._extended(ttl_s, now))

    def released(self, term: int) -> Self:
        """The holder gives it back."""
        self.check_term(term)
        return self._next(holder=None)

    def published(self, entry: Entry, keep: int, term: int | None, ttl_s: float, now: float, *, over: bool) -> Self:
        """A policy is there; those beyond the newest `keep` are not, but for the newest that has a state."""
        self.check_writer(term, over=over)
        entries = (*self.entries, entry)
        with_state = [known for known in entries if known.state is not None][-1:]
        kept = [known for known in entries if known in entries[-keep:] or known in with_state]
        holder = self._extended(ttl_s, now) if term is not None else self.holder
        return self._next(entries=tuple(kept), holder=holder, finished=None)

    def announced_ready(self, term: int | None) -> Self:
        """The trainer is there."""
        if term is not None:
            self.check_term(term)
        return self._next(ready=True, finished=None)

    def announced_finished(self, reason: str, term: int | None) -> Self:
        """No policy will follow."""
        if term is not None:
            self.check_term(term)
        return self._next(finished=reason)

    def _extended(self, ttl_s: float, now: float) -> Holder | None:
        return None if self.holder is None else self._holder(self.holder.owner, ttl_s, now)

    def _holder(self, owner: str, ttl_s: float, now: float) -> Holder:
        return Holder(owner, now + ttl_s, ttl_s, self.revision + 1)

    def _next(self, **changes: Any) -> Self:
        return replace(self, revision=self.revision + 1, id=secrets.token_hex(8), **changes)

    # --- as text ------------------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """As JSON that people can read."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Self:
        """Back again.

        Raises:
            StoreDataError: it is not one.
        """
        try:
            fields = json.loads(data)
            if (found := fields.pop("format")) != _FORMAT:
                raise StoreDataError(f"{where} is of the format {found!r}; this release reads {_FORMAT!r}")
            holder = fields.pop("holder")
            entries = tuple(
                Entry(int(number), Blob(*policy), None if state is None else Blob(*state))
                for number, policy, state in fields.pop("entries")
            )
            return cls(entries=entries, holder=None if holder is None else Holder(*holder), **fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if isinstance(error, StoreDataError):
                raise
            raise StoreDataError(f"{where} holds no record of a data store ({error!r}): {data[:80]!r}") from error


def _held(holder: Holder) -> LeaseHeld:
    until = datetime.datetime.fromtimestamp(holder.expires_at, datetime.UTC).isoformat(timespec="seconds")
    return LeaseHeld(
        f"{holder.owner!r} holds the lease of this store until {until} by its clock, unless it renews it. For others "
        f"it is over once they have seen it for {holder.ttl_s:g} s without being renewed: wait so long, or stop it",
        owner=holder.owner,
        expires_at=holder.expires_at,
    )
