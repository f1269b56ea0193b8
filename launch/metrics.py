"""Reads what the nodes of a run measure, while they write it.

Every node appends JSON lines `{"time": seconds since the epoch, key: number, ...}` to its own file
`metrics/<label>-<index>.jsonl`. Reading takes what is new since the last time, keeps a line that is not whole yet for
later, and holds a bounded number of points however long the run is.
"""

from __future__ import annotations

import json
from array import array
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import final

__all__ = ["Metrics", "Series", "Tail"]

_CHUNK_BYTES = 1 << 20
_HISTORY = 512
_MARK_SPACING_S = 0.5


@final
class Tail:
    """The lines that are appended to a file, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._partial = b""

    def poll(self) -> Iterator[str]:
        """The whole lines that came since the last poll, without their line ends. Never blocks."""
        try:
            with self.path.open("rb") as file:
                if file.seek(0, 2) < self._offset:
                    self._offset, self._partial = 0, b""  # the file was cut or replaced: begin again
                file.seek(self._offset)
                while chunk := file.read(_CHUNK_BYTES):
                    self._offset += len(chunk)
                    *lines, self._partial = (self._partial + chunk).split(b"\n")
                    yield from (line.decode(errors="replace").rstrip("\r") for line in lines)
        except OSError:  # not there yet, not there any more, or nothing that can be read
            return


@final
class Series:
    """One number of one node over time: the latest value, recent means and rates, and a thinned history."""

    def __init__(self) -> None:
        self.latest = float("nan")
        self.times = array("d")
        self.values = array("d")
        self._recent: deque[float] = deque(maxlen=100)
        self._marks: deque[tuple[float, float]] = deque(maxlen=40)
        self._stride = 1
        self._count = 0

    def append(self, time: float, value: float) -> None:
        """Adds a point. `time` is in seconds since the epoch and does not go back."""
        self.latest = value
        self._recent.append(value)
        if not self._marks or time - self._marks[-1][0] >= _MARK_SPACING_S:
            self._marks.append((time, value))
        if self._count % self._stride == 0:
            self._remember(time, value)
        self._count += 1

    def _remember(self, time: float, value: float) -> None:
        if len(self.times) == _HISTORY:
            self.times, self.values = self.times[::2], self.values[::2]
            self._stride *= 2
            if self._count % self._stride:
                return
        self.times.append(time)
        self.values.append(value)

    def mean(self, count: int = 100) -> float:
        """Mean of the last `count` values, at most 100."""
        recent = list(self._recent)[-count:]
        return sum(recent) / len(recent) if recent else float("nan")

    def rate(self) -> float:
        """Growth per second over the last points (20 s of them, when they come twice a second); nan when unknown."""
        if len(self._marks) < 2:
            return float("nan")
        (start, first), (end, last) = self._marks[0], self._marks[-1]
        return (last - first) / (end - start) if end > start else float("nan")


@final
class Metrics:
    """All series of a run: `groups[label][index][key]`. Labels are in the order in which they first reported.

    Attributes:
        groups: the series.
        malformed: lines that were not JSON objects with a time; a disk that was full leaves such lines.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._tails: dict[str, Tail] = {}
        self.groups: dict[str, dict[int, dict[str, Series]]] = {}
        self.malformed = 0

    def poll(self) -> None:
        """Reads what is new. Never blocks."""
        for path in sorted(self._directory.glob("*.jsonl")):
            tail = self._tails.setdefault(path.name, Tail(path))
            label, _, index = path.stem.rpartition("-")
            if not (label and index.isdigit()):
                continue
            for line in tail.poll():
                self._read(label, int(index), line)

    def _read(self, label: str, index: int, line: str) -> None:
        try:
            record = json.loads(line)
            time = float(record["time"])
        except (ValueError, TypeError, KeyError):
            self.malformed += 1
            return
        node = self.groups.setdefault(label, {}).setdefault(index, {})
        for key, value in record.items():
            if key != "time" and isinstance(value, int | float) and not isinstance(value, bool):
                node.setdefault(key, Series()).append(time, float(value))

    def find(self, key: str, label: str | None = None) -> list[Series]:
        """The series of that key: of every node, or of the nodes of one group."""
        groups = self.groups.values() if label is None else [self.groups.get(label, {})]
        return [node[key] for group in groups for node in group.values() if key in node]

    def counter(self, key: str) -> Series | None:
        """The series of a number that the whole program shares: from the group `counter`, else the largest one."""
        candidates = self.find(key, "counter") or self.find(key)
        return max(candidates, key=lambda series: series.latest, default=None)

    def mean(self, key: str, label: str | None = None, *, count: int = 100) -> float:
        """Mean over nodes of the mean of their last values; nan when nobody reported."""
        means = [series.mean(count) for series in self.find(key, label)]
        return sum(means) / len(means) if means else float("nan")

    def keys(self, label: str) -> list[str]:
        """Every key that nodes of the group reported, in the order in which they did."""
        return list(dict.fromkeys(key for node in self.groups.get(label, {}).values() for key in node))

    def span(self) -> tuple[float, float] | None:
        """Times of the first and the last point of the run; None before there is one."""
        times = [
            time
            for group in self.groups.values()
            for node in group.values()
            for series in node.values()
            for time in (series.times[0], series.times[-1])
        ]
        return (min(times), max(times)) if times else None
