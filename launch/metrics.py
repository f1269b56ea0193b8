"""Reads what the nodes of a run measure, while they write it.

Every node appends JSON lines `{"time": seconds since the epoch, key: number, ...}` to its own file
`metrics/<label>-<index>.jsonl`. Reading takes what is new since the last time, keeps a line that is not whole yet for
later, and holds a bounded number of points however long the run is.
"""

from __future__ import annotations

import bisect
import itertools
import json
import math
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import final

__all__ = ["EPISODES", "Metrics", "Series", "Tail"]

EPISODES = 100
"""Of how many of the last episodes a return is the mean."""

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
    """One number of one node over time: the latest value, recent means and rates, and a thinned history.

    Attributes:
        latest: the newest value.
        latest_time: when it was measured.
        times: of the history, in seconds since the epoch.
        values: of the history.
        weights: how many episodes each value of the history stands for, those thinned out before it included.
        counts_episodes: whether the rows say how many episodes they average; otherwise each counts as one.
    """

    def __init__(self) -> None:
        self.latest = self.latest_time = float("nan")
        self.times = array("d")
        self.values = array("d")
        self.weights = array("d")
        self.counts_episodes = False
        self._recent: deque[tuple[float, float]] = deque(maxlen=EPISODES)
        self._marks: deque[tuple[float, float]] = deque(maxlen=40)
        self._stride = 1
        self._count = 0
        self._skipped = 0.0  # episodes since the last value of the history

    def append(self, time: float, value: float, episodes: float | None = None) -> None:
        """Adds a point, the mean of so many `episodes`. `time` is in seconds since the epoch and does not go back."""
        weight = 1.0 if episodes is None else episodes
        self.counts_episodes |= episodes is not None
        self.latest, self.latest_time = value, time
        self._recent.append((value, weight))
        self._skipped += weight
        if not self._marks or time - self._marks[-1][0] >= _MARK_SPACING_S:
            self._marks.append((time, value))
        if self._count % self._stride == 0:
            self._remember(time, value)
        self._count += 1

    def _remember(self, time: float, value: float) -> None:
        if len(self.times) == _HISTORY:
            thinned_out = self.weights[1::2]
            self.times, self.values, self.weights = self.times[::2], self.values[::2], self.weights[::2]
            for i, weight in enumerate(thinned_out[:-1], 1):
                self.weights[i] += weight
            self._skipped += thinned_out[-1]
            self._stride *= 2
            if self._count % self._stride:
                return
        self.times.append(time)
        self.values.append(value)
        self.weights.append(self._skipped)
        self._skipped = 0.0

    def recent(self, episodes: float = EPISODES) -> tuple[float, float]:
        """Sum and number over the last `episodes`, at most 100: as many of the newest rows as hold them."""
        total = count = 0.0
        for value, weight in reversed(self._recent):
            if not math.isfinite(value):
                continue
            total, count = total + value * weight, count + weight
            if count >= episodes:
                break
        return total, count

    def rate(self, since: float = 0.0) -> float:
        """Growth per second over the last points (20 s of them, when they come twice a second); nan when unknown.

        A counter that is taken back, by a node that is started again from what it had saved, grows from there.

        Args:
            since: leaves out what is older: of the run that this one goes on with.
        """
        marks = [mark for mark in self._marks if mark[0] >= since]
        if len(marks) < 2:
            return float("nan")
        took = marks[-1][0] - marks[0][0]
        return _growth(value for _, value in marks) / took if took > 0 else float("nan")

    def growth(self, since: float) -> float:
        """How much it grew from that time on; what came before counts where it was not taken back."""
        begin = bisect.bisect_left(self.times, since)
        values = [*self.values[begin:], self.latest]
        before = self.values[begin - 1] if begin else 0.0
        return _growth([min(before, values[0]), *values])


def _growth(values: Iterable[float]) -> float:
    return sum(max(0.0, after - before) for before, after in itertools.pairwise(values))


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
        episodes = _episodes(record, node)
        for key, value in record.items():
            if key != "time" and _is_number(value):
                node.setdefault(key, Series()).append(time, float(value), episodes)

    def find(self, key: str, label: str | None = None) -> list[Series]:
        """The series of that key: of every node, or of the nodes of one group."""
        groups = self.groups.values() if label is None else [self.groups.get(label, {})]
        return [node[key] for group in groups for node in group.values() if key in node]

    def counter(self, key: str) -> Series | None:
        """The series of a number that the whole program shares: from the group `counter`, else the largest one."""
        candidates = self.find(key, "counter") or self.find(key)
        return max(candidates, key=lambda series: series.latest, default=None)

    def latest(self, key: str, label: str | None = None) -> float:
        """Mean over nodes of the latest value; nan when nobody reported."""
        values = [series.latest for series in self.find(key, label)]
        return sum(values) / len(values) if values else float("nan")

    def recent(self, key: str, label: str | None = None) -> float:
        """Mean over about the last 100 episodes, of which every node has its share; nan when nobody reported.

        Where rows do not say of how many episodes they are the mean, each counts as one.
        """
        found = self.find(key, label)
        sums = [series.recent(EPISODES / len(found)) for series in found]
        count = sum(count for _, count in sums)
        return sum(total for total, _ in sums) / count if count else float("nan")

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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _episodes(record: dict[str, object], node: dict[str, Series]) -> float | None:
    """Of how many episodes a row is the mean: its steps since the row before are so many episodes long."""
    steps, length = record.get("actor_steps"), record.get("episode_length")
    if not isinstance(steps, int | float) or not isinstance(length, int | float) or length <= 0:
        return None
    before = node["actor_steps"].latest if "actor_steps" in node else 0.0
    made = steps - before if steps >= before else steps  # a run that goes on counts from 0
    return max(1.0, made / length)
