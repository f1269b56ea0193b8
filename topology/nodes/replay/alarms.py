"""Things to do at a later moment, on one thread that sleeps until the next one is due."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
from collections.abc import Callable
from typing import final

from topology.clock import SYSTEM_CLOCK, Clock

__all__ = ["Alarms"]

_logger = logging.getLogger(__name__)


@final
class _Alarm:
    __slots__ = ("action",)

    def __init__(self, action: Callable[[], object]) -> None:
        self.action: Callable[[], object] | None = action


@final
class Alarms:
    """Runs actions when they are due. The thread starts with the first one. Thread-safe.

    Args:
        clock: for the moments.
        lingers: whether the thread stays until `close`; otherwise it ends when nothing is left to be done.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK, *, lingers: bool = True) -> None:
        self._clock = clock
        self._lingers = lingers
        self._condition = threading.Condition()
        self._heap: list[tuple[float, int, _Alarm]] = []
        self._order = itertools.count()
        self._cancelled = 0
        self._thread: threading.Thread | None = None
        self._closed = False

    def schedule(self, delay_s: float, action: Callable[[], object]) -> Callable[[], None]:
        """Runs `action` in `delay_s` seconds, unless the returned function is called before.

        Raises:
            ValueError: `delay_s` is not a number, which would leave the others without an order.
        """
        if math.isnan(delay_s):
            raise ValueError("delay_s must be a number of seconds, got nan")
        alarm = _Alarm(action)
        entry = (self._clock.monotonic() + delay_s, next(self._order), alarm)
        with self._condition:
            if self._closed:
                return lambda: None
            heapq.heappush(self._heap, entry)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="replay-alarms", daemon=True)
                thread.start()  # an interpreter that ends starts none
                self._thread = thread
            elif self._heap[0] is entry:
                self._condition.notify()
        return lambda: self._cancel(alarm)

    def close(self) -> None:
        """Drops what is not due yet and ends the thread."""
        with self._condition:
            self._closed = True
            self._heap.clear()
            self._condition.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _cancel(self, alarm: _Alarm) -> None:
        with self._condition:
            if alarm.action is None:
                return
            alarm.action = None
            self._cancelled += 1
            if 2 * self._cancelled > len(self._heap) + 64:
                self._heap = [entry for entry in self._heap if entry[2].action is not None]
                heapq.heapify(self._heap)
                self._cancelled = 0

    def _run(self) -> None:
        while (action := self._next_due()) is not None:
            try:
                action()
            except Exception:  # the others are still to run
                _logger.exception("a replay alarm failed")

    def _next_due(self) -> Callable[[], object] | None:
        """Waits for the next action; None when the thread is to end."""
        with self._condition:
            while not self._closed:
                if not (self._heap or self._lingers):
                    self._thread = None
                    break
                if self._is_due():
                    alarm = heapq.heappop(self._heap)[2]
                    action, alarm.action = alarm.action, None
                    if action is not None:
                        return action
                    self._cancelled -= 1
                else:
                    self._wait()
        return None

    def _wait(self) -> None:
        """Waits until the first alarm is due, or another one is first."""
        first = self._heap[0] if self._heap else None

        def changed() -> bool:
            return self._closed or (self._heap[0] if self._heap else None) is not first or self._is_due()

        self._clock.wait_for(self._condition, changed, first and first[0] - self._clock.monotonic())

    def _is_due(self) -> bool:
        return bool(self._heap) and self._heap[0][0] <= self._clock.monotonic()
