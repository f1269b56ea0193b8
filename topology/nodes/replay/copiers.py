"""The threads of a service that copy the bytes of large batches."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import final

__all__ = ["Copiers"]

_MOST_THREADS = 4  # by then they fill the memory bus


@final
class Copiers:
    """A pool of threads that knows whether it has enough to do.

    There is one for each core but that of the thread that reads requests, and at most four.
    """

    def __init__(self) -> None:
        self._size = max(1, min(_MOST_THREADS, (os.cpu_count() or 1) - 1))
        self._pool = ThreadPoolExecutor(self._size, thread_name_prefix="replay-copy")
        self._lock = threading.Lock()
        self._under_way = 0

    @property
    def busy(self) -> bool:
        """Whether something given now would have to wait."""
        return self._under_way >= self._size

    def submit(self, work: Callable[[], None]) -> None:
        """Runs `work` in one of the threads. Returns at once.

        Raises:
            RuntimeError: they are closed.
        """
        self._count(1)
        try:
            self._pool.submit(self._run, work)
        except RuntimeError:
            self._count(-1)
            raise

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._lock:
            self._under_way += change

    def close(self) -> None:
        """Returns when all that was submitted is done and the threads have ended. Idempotent."""
        self._pool.shutdown()
