"""Follows a run from its directory: state, metrics, warnings. Works on one's own run, on another's, and on old ones."""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from typing import Any, final

from launch.metrics import Metrics, Tail
from launch.run_directory import ENDED_STATES, RunDirectory, file_name
from topology.clock import SYSTEM_CLOCK, Clock

__all__ = ["LOST", "RunWatch", "clean", "read_state"]

LOST = "lost"
"""What a run is called whose launcher was killed: nobody wrote how it ended."""

_NOTABLE = re.compile(
    r"\b(WARNING|WARN|ERROR|CRITICAL|FATAL)\b|^[WEF]\d{4} "  # Python's logging, absl's
    r"|^Traceback \(most recent|^[\w.]*(Error|Exception|Warning): "
)
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")


def clean(line: str) -> str:
    """A log line that cannot move the cursor or change colours."""
    return _CONTROL.sub("", line).expandtabs(4)


def read_state(directory: RunDirectory) -> dict[str, Any]:
    """The content of `run.json`, where a run whose launcher is gone is `lost`. Raises LaunchError."""
    state = directory.read_state()
    if state["state"] == "failed" and state.get("ended") is None:
        state["state"] = LOST
    return state


@final
class RunWatch:
    """What is known of a run; `poll` brings it up to date.

    Attributes:
        directory: where the run is.
        state: content of its `run.json`.
        metrics: what its nodes measured.
        warnings: the last warnings and errors in its logs: name of the node and line.
        problems: how many such lines there were in all.
    """

    def __init__(self, directory: RunDirectory, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.directory = directory
        self.state: dict[str, Any] = read_state(directory)
        self.metrics = Metrics(directory.metrics)
        self.warnings: deque[tuple[str, str]] = deque(maxlen=5)
        self.problems = 0
        self._clock = clock
        self._logs: dict[str, Tail] = {}

    def poll(self) -> None:
        """Reads what is new. Never blocks. Raises LaunchError when the directory is gone."""
        self.state = read_state(self.directory)
        self.metrics.poll()
        for path in sorted(self.directory.logs.glob("*.log")):
            tail = self._logs.setdefault(path.name, Tail(path))
            node = "/".join(path.stem.rpartition("-")[::2])
            for line in map(clean, tail.poll()):
                if _NOTABLE.search(line):
                    self.problems += 1
                    self.warnings.append((node, line))

    @property
    def ended(self) -> bool:
        """Whether the run is over."""
        return self.state["state"] in ENDED_STATES or self.state["state"] == LOST

    @property
    def elapsed_s(self) -> float:
        """Seconds the run has taken, or took; of a lost run, until the last thing that its nodes measured."""
        started, ended = self.state.get("started") or 0.0, self.state.get("ended")
        if ended is None and self.ended:
            span = self.metrics.span()
            ended = span[1] if span else started
        return max(0.0, (self._clock.time() if ended is None else ended) - started)

    @property
    def progress(self) -> float:
        """How much is done, 0 to 1; nan when the program does not say."""
        counter = self.metrics.counter("progress")
        return float("nan") if counter is None else min(1.0, max(0.0, counter.latest))

    @property
    def left_s(self) -> float:
        """Seconds left, from the growth of `progress`; nan when unknown."""
        series = self.metrics.counter("progress")
        if series is None or self.ended or len(series.times) < 2:
            return float("nan")
        rate = series.rate()
        return (1.0 - self.progress) / rate if math.isfinite(rate) and rate > 0 else float("nan")

    @property
    def labels(self) -> list[str]:
        """Every group: those of the program in its order, then others that left metrics."""
        declared = [str(node["label"]) for node in self.state.get("nodes", ())]
        names = {file_name(label) for label in declared}
        return list(dict.fromkeys([*declared, *(label for label in self.metrics.groups if label not in names)]))

    def node_states(self, label: str | None = None) -> Counter[str]:
        """How many nodes (of a group) are in which state."""
        nodes = self.state.get("nodes", ())
        return Counter(str(node.get("state", "?")) for node in nodes if label is None or node["label"] == label)
