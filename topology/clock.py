"""The one place that reads time, sleeps, or waits.

Code that has rules about time takes a `Clock`; `SYSTEM_CLOCK` is the real one and `topology.testing.ManualClock`
the one that tests move by hand. Times are seconds; a timeout of None means "for ever".
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Protocol, final

__all__ = ["FOR_EVER_S", "SYSTEM_CLOCK", "Clock", "Deadline", "SystemClock"]


class Clock(Protocol):
    """What the rest of the code may ask of time."""

    def time(self) -> float:
        """Seconds since the epoch: for people and files, never for measuring."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""

    def sleep(self, seconds: float) -> None:
        """Blocks for `seconds`."""

    def wait_for(
        self, condition: threading.Condition, predicate: Callable[[], bool], timeout_s: float | None = None
    ) -> bool:
        """Waits, holding `condition`, until `predicate()` or the timeout; returns the last `predicate()`."""


@final
class SystemClock:
    """The machine's clock."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait_for(
        self, condition: threading.Condition, predicate: Callable[[], bool], timeout_s: float | None = None
    ) -> bool:
        return condition.wait_for(predicate, None if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX))


SYSTEM_CLOCK: Clock = SystemClock()

FOR_EVER_S = 1e9
"""What a longer time is taken for: no timer of the system counts that far."""


@final
class Deadline:
    """One timeout spread over several waits.

    Example:
        >>> deadline = Deadline(None)
        >>> deadline.remaining() is None, deadline.expired
        (True, False)
    """

    __slots__ = ("_at", "_clock")

    def __init__(self, timeout_s: float | None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        if timeout_s is not None and math.isnan(timeout_s):
            raise ValueError("a timeout is a number of seconds, or None for none; got nan")
        self._at = None if timeout_s is None or timeout_s > FOR_EVER_S else clock.monotonic() + timeout_s

    def remaining(self) -> float | None:
        """Seconds left, at least 0; None when there is no deadline."""
        return None if self._at is None else max(0.0, self._at - self._clock.monotonic())

    @property
    def expired(self) -> bool:
        return self._at is not None and self._clock.monotonic() >= self._at
