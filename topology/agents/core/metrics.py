"""Numbers of a run over time, one JSON object a line, where the live view and plots find them.

`<run directory>/metrics/<label>-<index>.jsonl` holds lines such as
`{"time": 1700000000.0, "episode_return": 1.0, "actor_steps": 900}`.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Protocol, SupportsFloat, final

from topology.clock import SYSTEM_CLOCK, Clock
from topology.context import NodeContext
from topology.errors import LaunchError

__all__ = ["Averages", "MetricsWriter", "RowWriter", "make_writer", "metrics_path"]


class RowWriter(Protocol):
    """What writes a row of numbers."""

    def write(self, **values: SupportsFloat) -> None:
        """Writes one row."""


@final
class MetricsWriter:
    """Appends rows to the metrics file of a node. Thread-safe.

    Args:
        context: says which file; without a run directory, or without a context, rows go nowhere.
        clock: gives the time of a row, in seconds since the epoch.
    """

    def __init__(self, context: NodeContext | None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._path = None if context is None else metrics_path(context)
        self._clock = clock

    def write(self, **values: SupportsFloat) -> None:
        """Appends a row: the time, and these values. One that is not finite is left out: JSON cannot hold it.

        Raises:
            LaunchError: the file cannot be written, e.g. on a full disk.
        """
        if self._path is None:
            return
        row: dict[str, float] = {"time": self._clock.time()}
        row |= {name: number for name, value in values.items() if math.isfinite(number := _number(value))}
        line = json.dumps(row) + "\n"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Opened for each row: there are few, and then nothing is to be closed, or lost when the node is killed.
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise LaunchError(
                f"The metrics file {self._path} cannot be written: {error.strerror or error}. Make room there, or give "
                "the run another directory."
            ) from error


@final
class _Everywhere:
    """Writes each row to several writers."""

    def __init__(self, *writers: RowWriter) -> None:
        self._writers = writers

    def write(self, **values: SupportsFloat) -> None:
        for writer in self._writers:
            writer.write(**values)


def metrics_path(context: NodeContext) -> Path | None:
    """The metrics file of a node; None where the run keeps no directory."""
    if context.run_directory is None:
        return None
    return Path(context.run_directory) / "metrics" / f"{context.label}-{context.index}.jsonl"


def make_writer(context: NodeContext, *, tensorboard: bool = False) -> RowWriter:
    """What writes the rows of a node: into its metrics file and, if asked, also as events for TensorBoard.

    Raises:
        ProgramError: the package that writes events is not installed.
    """
    rows = MetricsWriter(context)
    if not tensorboard or context.run_directory is None:
        return rows
    from topology.agents.core.tensorboard import EventWriter

    directory = Path(context.run_directory) / "tensorboard" / f"{context.label}-{context.index}"
    return _Everywhere(rows, EventWriter(directory))


def _number(value: SupportsFloat) -> float:
    number = float(value)
    return int(number) if number.is_integer() else number


@final
class Averages:
    """Averages values over `period_s` seconds before they become a row, so that no value is lost and no file floods.

    Of a value whose name ends in `_max` the row has the largest, not the average.

    Args:
        writer: gets the rows.
        period_s: the shortest time between two rows, in seconds.
        clock: for tests.
    """

    def __init__(self, writer: RowWriter, *, period_s: float = 1.0, clock: Clock = SYSTEM_CLOCK) -> None:
        self._writer = writer
        self._period_s = period_s
        self._clock = clock
        self._sums: dict[str, float] = {}
        self._largest: dict[str, float] = {}
        self._count = 0
        self._last_s = clock.monotonic()

    def add(self, **values: SupportsFloat) -> None:
        """Adds one sample; the same names in each."""
        for name, value in values.items():
            if name.endswith("_max"):
                self._largest[name] = max(self._largest.get(name, -math.inf), float(value))
            else:
                self._sums[name] = self._sums.get(name, 0.0) + float(value)
        self._count += 1

    @property
    def due(self) -> bool:
        """Whether a row is to be written."""
        return self._clock.monotonic() - self._last_s >= self._period_s

    @property
    def overdue(self) -> bool:
        """Whether there has been no row for ten times as long: one is to be written whatever it has to say."""
        return self._clock.monotonic() - self._last_s >= 10 * self._period_s

    def write(self, *, rates: dict[str, float] | None = None, **totals: SupportsFloat) -> None:
        """Writes the averages since the last row, and begins anew.

        Args:
            rates: amounts since the last row, written divided by the seconds that have passed.
            **totals: written as they are.
        """
        now = self._clock.monotonic()
        seconds = max(now - self._last_s, 1e-9)
        averages = {name: total / self._count for name, total in self._sums.items()} | self._largest
        self._writer.write(**averages, **{name: amount / seconds for name, amount in (rates or {}).items()}, **totals)
        self._sums, self._largest, self._count, self._last_s = {}, {}, 0, now
