"""The data store over any medium: bytes first, then the record that speaks of them.

A writer puts the bytes of a policy under names nobody has used, and then replaces the record by one that names them.
If it dies before, nothing has changed; if it dies after, everything has. Bytes that no record names are removed by the
next writer that takes the lease.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Callable, Mapping
from typing import Any, final

from topology.clock import SYSTEM_CLOCK, Clock
from topology.errors import LeaseHeld, LeaseLost, PoliciesFinished, StoreDataError
from topology.nodes.store.codec import Array, Decoded, Plain, decode, encode, size_of
from topology.nodes.store.policies import DEFAULT_KEEP, DataStore, Lease, Policy
from topology.nodes.store.policy_medium import BlobMissing, Medium
from topology.nodes.store.policy_record import Blob, Entry, Record
from topology.nodes.store.policy_register import HeldLease, Register, holder_of, term_of
from topology.nodes.store.policy_waits import Waits

__all__ = ["RecordStore"]


@final
class RecordStore(DataStore):
    """See `DataStore`.

    Args:
        medium: where bytes and the record lie.
        keep: how many policies are kept, at least 1.
        clock: of leases and waits.

    Raises:
        ValueError: `keep` is below 1.
    """

    def __init__(self, medium: Medium, *, keep: int = DEFAULT_KEEP, clock: Clock = SYSTEM_CLOCK) -> None:
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise ValueError(f"keep is how many policies are kept, at least 1, got {keep!r}")
        self._medium = medium
        self._keep = keep
        self._clock = clock
        self._register = Register(medium, clock)
        self._waits = Waits(clock)

    def __repr__(self) -> str:
        return f"<data store at {self._medium!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._medium, self._keep, self._clock)

    def check(self) -> None:
        """Raises what is wrong with the place, if it can be seen without writing; the store is closed then."""
        try:
            self._medium.check()
            self._register.read()
        except BaseException:
            self.close()
            raise

    # --- writing ------------------------------------------------------------------------------------------------------

    def save(
        self,
        arrays: Mapping[str, Array],
        meta: Mapping[str, Plain] | None = None,
        *,
        state: Mapping[str, Array] | None = None,
        lease: Lease | None = None,
    ) -> int:
        holder = holder_of(lease)
        while True:
            before = self._register.read()
            before.check_writer(term_of(holder), over=self._register.is_over(before))  # early: the bytes may be many
            entry = self._put(before.newest + 1, arrays, meta, state)
            after = self._publish(entry, before, holder)
            if after is not None:
                return entry.number
            # Somebody else was first: ours is the next number.
            self._register.discard(blob.name for blob in entry.blobs())

    def _put(
        self,
        number: int,
        arrays: Mapping[str, Array],
        meta: Mapping[str, Plain] | None,
        state: Mapping[str, Array] | None,
    ) -> Entry:
        policy = self._put_blob(number, "policy", arrays, meta)
        if state is None:
            return Entry(number, policy, None)
        try:
            return Entry(number, policy, self._put_blob(number, "state", state, None))
        except BaseException:
            self._register.discard([policy.name])
            raise

    def _put_blob(self, number: int, kind: str, arrays: Mapping[str, Array], meta: Mapping[str, Plain] | None) -> Blob:
        parts = encode(arrays, meta)
        check = 0
        for part in parts:
            check = zlib.crc32(part, check)
        # A name is never used twice, also not for a number that was tried before: who reads it sees these bytes.
        blob = Blob(f"{number:012d}-{secrets.token_hex(4)}.{kind}", size_of(parts), check)
        self._medium.put(blob.name, parts)
        return blob

    def _publish(self, entry: Entry, before: Record, holder: HeldLease | None) -> Record | None:
        """The record with the policy; None when that number, or the right to write it, was gone meanwhile."""
        names = [blob.name for blob in entry.blobs()]
        ttl_s = 0.0 if holder is None else holder.ttl_s
        current = before  # most often still the newest, and if not, it cannot be replaced
        while True:
            if entry in current.entries:
                return current  # a request that was sent twice had come through the first time
            try:
                over = self._register.is_over(current)
                after = current.published(entry, self._keep, term_of(holder), ttl_s, self._clock.time(), over=over)
            except (LeaseHeld, LeaseLost):
                self._register.discard(names)
                raise
            # Who takes the lease removes what no record names, so bytes from before that may be gone.
            if current.newest + 1 != entry.number or current.term != before.term:
                return None
            try:
                written = self._register.write(after, names)
            except BlobMissing:
                return None
            if written:
                self._register.discard(current.blob_names() - after.blob_names())
                if holder is not None:
                    holder.renewed(after)
                return after
            current = self._register.read()

    # --- the lease ----------------------------------------------------------------------------------------------------

    def lease(self, owner: str, ttl_s: float, *, timeout_s: float | None = 0.0) -> Lease:
        with self._waits.begin(f"the lease of {self._medium!r}", timeout_s) as wait:
            return self._register.take(owner, ttl_s, wait)

    def announce_ready(self, *, lease: Lease | None = None) -> None:
        term = term_of(holder_of(lease))
        self._register.change(lambda record, _: record.announced_ready(term))

    def announce_finished(self, reason: str, *, lease: Lease | None = None) -> None:
        term = term_of(holder_of(lease))
        self._register.change(lambda record, _: record.announced_finished(str(reason), term))

    # --- reading ------------------------------------------------------------------------------------------------------

    def newest(self) -> int:
        return self._register.read().newest

    def state_number(self) -> int:
        entry = self._register.read().newest_state()
        return -1 if entry is None else entry.number

    def finished(self) -> str | None:
        return self._register.read().finished

    def load(self, number: int | None = None) -> Policy:
        return self._load(self._register.read(), number)

    def _load(self, record: Record, number: int | None) -> Policy:
        found = self._get(record, lambda record: _with_policy(record.entry(number)))
        assert found is not None  # a record without policies has raised
        entry, decoded = found
        return Policy(entry.number, decoded.arrays, decoded.meta)

    def load_state(self, number: int | None = None) -> Mapping[str, Array] | None:
        def find(record: Record) -> tuple[Entry, Blob] | None:
            entry = record.newest_state() if number is None else record.entry(number)
            return None if entry is None or entry.state is None else (entry, entry.state)

        found = self._get(self._register.read(), find)
        return None if found is None else found[1].arrays

    def _get(self, record: Record, find: Callable[[Record], tuple[Entry, Blob] | None]) -> tuple[Entry, Decoded] | None:
        """The bytes that `find` chooses of a record; when they are gone already, of the record that is there then."""
        found = find(record)
        while found is not None:
            entry, blob = found
            try:
                data = self._medium.get(blob.name)
            except BlobMissing:
                again = find(self._register.read())
                if again == found:
                    raise StoreDataError(
                        f"{self._medium!r} names policy {entry.number}, and {blob.name} is not there: somebody else "
                        "has removed it. Load another, or save a new one"
                    ) from None
                found = again
            else:
                return entry, self._decode(blob, data)
        return None

    def _decode(self, blob: Blob, data: Any) -> Decoded:
        if len(data) != blob.nbytes or zlib.crc32(data) != blob.crc32:
            raise StoreDataError(
                f"{blob.name} in {self._medium!r} is damaged: {len(data)} bytes of other content than the "
                f"{blob.nbytes} that were saved. Load another policy, or save a new one"
            )
        return decode(memoryview(data).toreadonly(), max_bytes=max(1, blob.nbytes))

    def wait_newer(self, than: int, *, timeout_s: float | None = None) -> Policy:
        with self._waits.begin(f"a policy newer than {than} in {self._medium!r}", timeout_s) as wait:
            while True:
                record = self._register.read()
                if record.newest > than:
                    return self._load(record, None)
                if record.finished is not None:
                    raise PoliciesFinished(
                        f"no policy newer than {than} will come: {record.finished}", reason=record.finished
                    )
                wait.check()
                self._medium.wait_changed(record.revision, wait)

    def wait_ready(self, timeout_s: float | None = None) -> None:
        with self._waits.begin(f"the trainer to be ready in {self._medium!r}", timeout_s) as wait:
            while not (record := self._register.read()).ready and record.finished is None:
                wait.check()
                self._medium.wait_changed(record.revision, wait)

    def close(self) -> None:
        self._register.close()
        self._waits.close()
        self._medium.close()


def _with_policy(entry: Entry) -> tuple[Entry, Blob]:
    return entry, entry.policy


def _rebuild(medium: Medium, keep: int, clock: Clock) -> RecordStore:
    return RecordStore(medium, keep=keep, clock=clock)
