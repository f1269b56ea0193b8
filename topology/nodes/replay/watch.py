"""Reports calls that wait for long: which table, how full it is, and which side blocks."""

from __future__ import annotations

import logging
import threading
from typing import final

from topology.clock import Clock
from topology.nodes.replay.alarms import Alarms
from topology.nodes.replay.requests import InsertRequest, SampleRequest
from topology.nodes.replay.table import Table

__all__ = ["Watch"]

_logger = logging.getLogger(__name__)


@final
class Watch:
    """Watches the calls waiting on one table; at most one alarm is set for all of them."""

    def __init__(self, table: Table, alarms: Alarms, clock: Clock, report_after_s: float) -> None:
        self._table = table
        self._alarms = alarms
        self._clock = clock
        self._after_s = report_after_s
        self._lock = threading.Lock()
        self._set = False

    def waiting(self, request: InsertRequest | SampleRequest) -> None:
        """Tells that `request` has begun to wait."""
        request.since_s = self._clock.monotonic()
        with self._lock:
            if self._set:
                return
            self._set = True
        self._alarms.schedule(self._after_s, self._look)

    def _look(self) -> None:
        with self._lock:
            self._set = False
        now = self._clock.monotonic()
        delay = None
        for request in self._table.oldest_waiting():
            if request is None:
                continue
            age = now - request.since_s
            if age >= self._after_s:
                self._report(request, age)
                age = 0.0
            delay = min(self._after_s - age, self._after_s if delay is None else delay)
        if delay is not None:
            with self._lock:
                if self._set:
                    return
                self._set = True
            self._alarms.schedule(delay, self._look)

    def _report(self, request: InsertRequest | SampleRequest, age_s: float) -> None:
        if isinstance(request, InsertRequest):
            side, cause = "an insert", "the table waits for samples"
        else:
            side, cause = "a sample", "the table waits for inserts"
        _logger.warning(
            "replay: %s of %d items has waited %.0f s (%s). Table %s",
            side,
            request.waiting,
            age_s,
            cause,
            self._table.describe(),
        )
