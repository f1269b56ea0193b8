"""Follows a run from its directory: state, metrics, warnings. Works on one's own run, on another's, and on old ones."""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any, final

from launch.log_records import Finding, LogRecords
from launch.metrics import Metrics, Tail
from launch.run_directory import ENDED_STATES, RunDirectory, file_name
from topology.clock import SYSTEM_CLOCK, Clock

__all__ = ["LOST", "RunWatch", "clean", "read_state", "restart_text"]

LOST = "lost"
"""What a run is called whose launcher was killed: nobody wrote how it ended."""

_MOST_LINES = 1000
_MOST_FINDINGS = 5
_METRICS_WITHIN_S = 5.0
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


def restart_text(count: int) -> str:
    """How often a node was started again, in words."""
    return "once" if count == 1 else f"{count} times"


@final
class RunWatch:
    """What is known of a run; `poll` brings it up to date.

    Attributes:
        directory: where the run is.
        state: content of its `run.json`.
        metrics: what its nodes measured.
        problems: how many warnings and errors there were in its logs. One with its traceback is one.
    """

    def __init__(self, directory: RunDirectory, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.directory = directory
        self.state: dict[str, Any] = read_state(directory)
        self.metrics = Metrics(directory.metrics)
        self.problems = 0
        self._findings: deque[tuple[str, Finding]] = deque(maxlen=_MOST_FINDINGS)
        self._clock = clock
        self._logs: dict[str, tuple[Tail, LogRecords]] = {}
        self._output: deque[tuple[str, str]] = deque(maxlen=_MOST_LINES)
        self._told_restarts: Counter[str] = Counter()
        self._untold: deque[tuple[str, str]] = deque(maxlen=_MOST_FINDINGS)

    def poll(self) -> None:
        """Reads what is new. Never blocks. Raises LaunchError when the directory is gone."""
        self.state = read_state(self.directory)
        self.metrics.poll()
        for path in sorted(self.directory.logs.glob("*.log")):
            tail, records = self._logs.setdefault(path.name, (Tail(path), LogRecords()))
            node = "/".join(path.stem.rpartition("-")[::2])
            for line in map(clean, tail.poll()):
                self._output.append((node, line))
                if (finding := records.feed(line)) is not None:
                    self.problems += 1
                    self._findings.append((node, finding))
                    if finding.logged:
                        self._untold.append((node, finding.line))

    def skip_output(self) -> None:
        """Takes what is in the logs for told: it is of the run that this one goes on with."""
        self.poll()
        self._output.clear()
        self._untold.clear()

    @property
    def warnings(self) -> list[tuple[str, str]]:
        """The last warnings and errors in its logs: name of the node and line."""
        return [(node, finding.line) for node, finding in self._findings]

    def take_output(self) -> Iterator[tuple[str, str]]:
        """Node and line of what came since the last call, for a program that measures nothing; else nothing.

        A program has 5 s to measure something; until then its lines are kept, the last 1000 of them.
        """
        if self.metrics.groups:
            self._output.clear()
        elif self.ended or self.elapsed_s >= _METRICS_WITHIN_S:
            self._untold.clear()
            while self._output:
                yield self._output.popleft()

    def take_warnings(self) -> Iterator[tuple[str, str]]:
        """Node and line of the last five warnings that were logged since the last call, for a program that measures.

        What a traceback ends with is none of them: a node that failed is told of anyway. Of a program that measures
        nothing, all lines are shown; see `take_output`.
        """
        while self.metrics.groups and self._untold:
            yield self._untold.popleft()

    @property
    def restarts(self) -> Iterator[tuple[str, int, str]]:
        """Nodes that were started again: name, how often, and why the last time."""
        for node in self.state.get("nodes", ()):
            if count := node.get("restarts") or 0:
                yield f"{node['label']}/{node['index']}", count, str(node.get("failure") or "nobody knows why")

    def take_restarts(self) -> Iterator[str]:
        """A line for each node that was started again since the last call."""
        for name, count, why in self.restarts:
            if count > self._told_restarts[name]:
                self._told_restarts[name] = count
                yield f"{name} failed and was started again ({restart_text(count)}): {clean(why)}"

    @property
    def ended(self) -> bool:
        """Whether the run is over."""
        return self.state["state"] in ENDED_STATES or self.state["state"] == LOST

    @property
    def started(self) -> float:
        """When the run began; what was measured before is of the run that it goes on with."""
        return float(self.state.get("started") or 0.0)

    @property
    def elapsed_s(self) -> float:
        """Seconds the run has taken, or took; of a lost run, until the last thing that its nodes measured."""
        started, ended = self.started, self.state.get("ended")
        if ended is None and self.ended:
            span = self.metrics.span()
            ended = span[1] if span else started
        return max(0.0, (self._clock.time() if ended is None else ended) - started)

    @property
    def progress(self) -> float:
        """How much is done, 0 to 1; nan when the program does not say."""
        counter = self.metrics.counter("progress")
        if counter is None or (counter.latest_time < self.started and not self.ended):
            return float("nan")
        return min(1.0, max(0.0, counter.latest))

    @property
    def left_s(self) -> float:
        """Seconds left, from the growth of `progress`; nan when unknown."""
        series = self.metrics.counter("progress")
        if series is None or self.ended or len(series.times) < 2:
            return float("nan")
        rate = series.rate(self.started)
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
