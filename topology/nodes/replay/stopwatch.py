"""Where the time of a table goes: working, waiting for one side, or nothing to do."""

from __future__ import annotations

from collections.abc import Sized
from typing import final

from topology.clock import SYSTEM_CLOCK, Clock
from topology.nodes.replay.info import TableWorkerTime

__all__ = ["Stopwatch"]

_NOTHING, _FOR_SAMPLES, _FOR_INSERTS = range(3)


@final
class Stopwatch:
    """Adds up seconds. Not thread-safe; the table's lock is held."""

    __slots__ = ("_clock", "_idle", "_since", "_state", "_work")

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._work = [0.0, 0.0]  # inserting, sampling
        self._idle = [0.0, 0.0, 0.0]
        self._state = _NOTHING
        self._since = clock.monotonic()

    def begin(self) -> None:
        """A request arrived."""
        now = self._clock.monotonic()
        self._idle[self._state] += now - self._since
        self._since = now

    def end(self, is_sample: bool, inserts: Sized, samples: Sized) -> None:
        """Its work is done; these still wait."""
        now = self._clock.monotonic()
        self._work[is_sample] += now - self._since
        self._since = now
        self._state = _FOR_SAMPLES if inserts else _FOR_INSERTS if samples else _NOTHING

    def note(self, inserts: Sized, samples: Sized) -> None:
        """These wait now; what led to it is not counted as work."""
        self.begin()
        self._state = _FOR_SAMPLES if inserts else _FOR_INSERTS if samples else _NOTHING

    def read(self) -> TableWorkerTime:
        """The sums, up to now."""
        self.begin()
        nothing, for_samples, for_inserts = self._idle
        return TableWorkerTime(
            inserting_ms=round(1e3 * self._work[0]),
            sampling_ms=round(1e3 * self._work[1]),
            sleeping_ms=round(1e3 * nothing),
            waiting_for_sampling_ms=round(1e3 * for_samples),
            waiting_for_inserts_ms=round(1e3 * for_inserts),
        )
