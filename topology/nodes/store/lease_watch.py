"""When the lease of another writer is over."""

from __future__ import annotations

import threading
from typing import final

from topology.clock import Clock
from topology.nodes.store.policy_record import Record

__all__ = ["LeaseWatch"]


@final
class LeaseWatch:
    """A lease is over when it was watched for as long as it lasts, and was not renewed. Thread-safe.

    The time on no other machine is compared with ours, nor the time of day with that of before: a clock that is wrong,
    or set anew, neither takes the lease from a writer that lives nor keeps it for one that does not.

    Args:
        clock: of the watcher.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: tuple[int, int] | None = None  # term, and revision of the latest renewal
        self._since_s = 0.0

    def left_s(self, record: Record) -> float:
        """For how long the holder must be watched still, in seconds; 0 when its lease is over, or there is none.

        Args:
            record: the newest, just read.
        """
        if record.holder is None:
            return 0.0
        seen, now = (record.term, record.holder.renewed), self._clock.monotonic()
        with self._lock:
            if seen != self._seen:
                self._seen, self._since_s = seen, now
            return max(0.0, self._since_s + record.holder.ttl_s - now)
