"""The threads of a server: started by role, and waited for at the end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import final

__all__ = ["Crew"]

_logger = logging.getLogger(__name__)


@final
class Crew:
    """Daemon threads that are told by other means to end.

    Args:
        name: of the server; threads are called after it and their role.
        on_last: runs in the last thread that leaves.
    """

    def __init__(self, name: str, on_last: Callable[[], None]) -> None:
        self._name = name
        self._on_last = on_last
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._running = 0

    def spawn(self, run: Callable[[], None], role: str) -> None:
        """Starts a thread."""

        def live() -> None:
            try:
                run()
            finally:
                with self._lock:
                    self._running -= 1
                    last = not self._running
                if last:
                    self._on_last()

        with self._lock:
            self._running += 1
        thread = threading.Thread(target=live, name=f"{self._name} {role}", daemon=True)
        self._threads.append(thread)
        thread.start()

    @property
    def alive(self) -> int:
        """How many threads there are."""
        return sum(thread.is_alive() for thread in list(self._threads))

    def join(self, timeout_s: float) -> None:
        """Waits for all threads but this one; logs which have not ended in time."""
        end = time.monotonic() + timeout_s
        # A thread that is interrupted while it starts another leaves one without an ident.
        started = [thread for thread in self._threads if thread.ident is not None]
        others = [thread for thread in started if thread is not threading.current_thread()]
        for thread in others:
            thread.join(max(0.0, end - time.monotonic()))
        late = sum(thread.is_alive() for thread in others)
        if late:
            _logger.warning("server %r stopped while %d handlers still run", self._name, late)
