"""The calls of a channel that are under way: which, how much, and who waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import final

from topology.nodes.courier.calls import CallFuture

__all__ = ["Pending"]


@final
class Pending:
    """Calls under way, bounded.

    Attributes:
        calls: by id, in the order in which they were made.

    Args:
        max_calls: above which `add` blocks.
        max_bytes: of arguments above which `add` blocks; a single larger call goes alone.
        attend: told when somebody waits for room.
    """

    def __init__(self, max_calls: int, max_bytes: int, attend: Callable[[], None]) -> None:
        self.calls: dict[int, CallFuture] = {}
        self._max_calls = max_calls
        self._max_bytes = max_bytes
        self._attend = attend
        self._lock = threading.Lock()  # guards what follows, and changes of `calls`
        self._room = threading.Condition(self._lock)  # there is more
        self._waiting = 0
        self._bytes = 0
        self._closed = False
        self._watched: set[int] = set()

    def add(self, future: CallFuture, *, must_not_block: bool) -> None:
        """Counts a call in. Blocks while too much is under way, unless it must not, or `close` was called."""
        size = future.size
        with self._lock:
            if not must_not_block and (len(self.calls) >= self._max_calls or self._bytes + size > self._max_bytes):
                self._wait(size)
            self.calls[future.call_id] = future
            self._bytes += size

    def _wait(self, size: int) -> None:
        self._waiting += 1
        try:
            while not self._closed and self.calls:
                if len(self.calls) < self._max_calls and self._bytes + size <= self._max_bytes:
                    return
                self._attend()
                self._room.wait()
        finally:
            self._waiting -= 1

    def take(self, call_id: int) -> CallFuture | None:
        """Counts a call out; None when that was done already."""
        with self._lock:
            future = self.calls.pop(call_id, None)
            if future is not None:
                self._bytes -= future.size
                if self._waiting:
                    self._room.notify()
        self._watched.discard(call_id)
        return future

    def watch(self, call_id: int) -> None:
        """Somebody waits for the call without reading."""
        self._watched.add(call_id)
        if call_id not in self.calls:
            self._watched.discard(call_id)  # it was taken meanwhile

    @property
    def need_reader(self) -> bool:
        """Whether anybody waits who does not read: for a call, or for room."""
        return bool(self._watched or self._waiting)

    def first(self) -> CallFuture | None:
        """The oldest call."""
        with self._lock:
            return next(iter(self.calls.values()), None)

    def list(self) -> list[tuple[int, CallFuture]]:
        with self._lock:
            return list(self.calls.items())

    def close(self) -> None:
        """Lets everybody through who waits for room."""
        with self._lock:
            self._closed = True
            self._room.notify_all()
