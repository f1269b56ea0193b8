"""How calls of a data store wait: with a deadline, until the program stops, and no longer than the store is open."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from typing import final

from topology.clock import Clock, Deadline
from topology.context import try_get_context
from topology.errors import ProgramStopped, StoreClosed, StoreDeadlineExceeded

__all__ = ["Wait", "Waits", "check_pauses"]

_SHARE_OF_WAIT = 0.1


@final
class Waits:
    """The calls of one store that wait now. Thread-safe.

    Args:
        clock: of their deadlines and pauses.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._waits: set[Wait] = set()
        self._closed = False

    @contextlib.contextmanager
    def begin(self, what: str, timeout_s: float | None) -> Iterator[Wait]:
        """A wait for `what`, of at most `timeout_s` seconds, that ends with the block."""
        wait = Wait(what, timeout_s, self._clock)
        context = try_get_context()
        forget = None if context is None else context.stop.subscribe(wait.stop)
        with self._lock:
            self._waits.add(wait)
            closed = self._closed
        if closed:
            wait.close()
        try:
            yield wait
        finally:
            with self._lock:
                self._waits.discard(wait)
            if forget is not None:
                forget()

    def close(self) -> None:
        """Wakes them all, and those that begin later."""
        with self._lock:
            self._closed = True
            waits = list(self._waits)
        for wait in waits:
            wait.close()


@final
class Wait:
    """One call that waits: until its deadline, the stop of the program, or the close of its store.

    Args:
        what: what is waited for, for the error's text.
        timeout_s: None for ever.
        clock: of the deadline and of pauses.
    """

    def __init__(self, what: str, timeout_s: float | None, clock: Clock) -> None:
        self._what = what
        self._timeout_s = timeout_s
        self._clock = clock
        self._deadline = Deadline(timeout_s, clock)
        self._start = clock.monotonic()
        self._changed = threading.Condition()
        self._stopped = self._closed = False

    def stop(self) -> None:
        """The program stops: wakes the call."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def close(self) -> None:
        """The store is closed: wakes the call."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def check(self) -> None:
        """Goes on waiting.

        Raises:
            ProgramStopped, StoreClosed, StoreDeadlineExceeded: there is no more waiting.
        """
        if self._stopped:
            raise ProgramStopped(f"the program stopped while this waited for {self._what}")
        if self._closed:
            raise StoreClosed(f"the data store was closed while this waited for {self._what}")
        if self._deadline.expired:
            raise StoreDeadlineExceeded(f"waited {self._timeout_s:g} s in vain for {self._what}")

    @property
    def woken(self) -> bool:
        """Whether the program stopped or the store was closed."""
        return self._stopped or self._closed

    def at_most(self, seconds: float) -> float:
        """`seconds`, or what is left of the time if that is less."""
        left = self._deadline.remaining()
        return seconds if left is None else min(seconds, left)

    def pause(self, seconds: float) -> None:
        """Blocks for `seconds`, or less when there is no more waiting."""
        with self._changed:
            self._clock.wait_for(self._changed, lambda: self.woken, self.at_most(seconds))

    def pause_growing(self, pauses: tuple[float, float], most_s: float) -> None:
        """Blocks for a tenth of the time waited so far, within `pauses`: what comes is seen about a tenth too late."""
        least, most = pauses
        waited = self._clock.monotonic() - self._start
        self.pause(min(max(least, min(most, waited * _SHARE_OF_WAIT)), most_s))


def check_pauses(poll_s: tuple[float, float]) -> tuple[float, float]:
    """The shortest and the longest pause between two looks, in seconds.

    Raises:
        ValueError: they are not above 0 and in this order.
    """
    least, most = poll_s
    if not 0 < least <= most < math.inf:
        raise ValueError(f"poll_s is the shortest and the longest pause in seconds, above 0, got {poll_s!r}")
    return float(least), float(most)
