"""The counter of a run as a node: totals that survive a restart, and how far the run has come."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import final

from topology.agents.core.counter import Counter
from topology.agents.core.metrics import MetricsWriter, RowWriter
from topology.agents.core.saving import written_aside
from topology.context import NodeContext
from topology.errors import ProgramError
from topology.nodes.courier.methods import asynchronous

__all__ = ["CountingService", "load_counts", "save_counts"]


@final
class CountingService:
    """A `Counter` that keeps its totals in the run directory and writes them to the metrics.

    Args:
        context: of its node.
        limits: the totals at which the run ends, by name; progress is how near the nearest is, from 0 to 1.
        of_one_run: totals that begin at 0 in every run, also in one that goes on where another ended.
        metrics: gets the rows; None for the metrics file of the node.
        period_s: time between two looks at the totals, in seconds; what a crash can lose.

    Raises:
        ProgramError: the totals kept in the run directory cannot be read.
    """

    def __init__(
        self,
        context: NodeContext,
        *,
        limits: Mapping[str, int] | None = None,
        of_one_run: Collection[str] = (),
        metrics: RowWriter | None = None,
        period_s: float = 1.0,
    ) -> None:
        self._context = context
        self._limits = dict(limits or {})
        self._period_s = period_s
        directory = context.run_directory
        self._path = None if directory is None else Path(directory) / "checkpoints" / "counts.json"
        kept = {} if self._path is None else load_counts(self._path)
        self._counter = Counter({name: count for name, count in kept.items() if name not in of_one_run})
        self._metrics = metrics or MetricsWriter(context)
        self._written: dict[str, int] | None = None

    def add_counts(self, counts: Mapping[str, int]) -> dict[str, int]:
        """See `Counter.add_counts`."""
        return self._counter.add_counts(counts)

    def get_counts(self) -> dict[str, int]:
        """See `Counter.get_counts`."""
        return self._counter.get_counts()

    @asynchronous
    def when_reached(self, name: str, count: int) -> Future[dict[str, int]]:
        """See `Counter.when_reached`."""
        return self._counter.when_reached(name, count)

    def run(self) -> None:
        """Writes totals that have changed, every period and at the stop. Blocks until the program stops.

        Raises:
            LaunchError: they cannot be written, e.g. on a full disk.
        """
        while not self._context.stop.wait(self._period_s):
            self._write()
        self._write()

    def _write(self) -> None:
        counts = self._counter.get_counts()
        if counts == self._written:
            return
        row: dict[str, float] = dict(counts)
        if self._limits:
            row["progress"] = min(1.0, max(counts.get(name, 0) / limit for name, limit in self._limits.items()))
        self._metrics.write(**row)
        if self._path is not None:
            save_counts(self._path, counts)
        self._written = counts


def load_counts(path: Path) -> dict[str, int]:
    """The totals kept in a file; {} when there is none.

    Raises:
        ProgramError: it is there and cannot be read.
    """
    try:
        return {str(name): int(count) for name, count in json.loads(path.read_text(encoding="utf-8")).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise ProgramError(
            f"The counts of the run to resume cannot be read from {path}: {error}. Restore the file, or delete it to "
            "count from 0."
        ) from error


def save_counts(path: Path, counts: Mapping[str, int]) -> None:
    """Keeps totals in a file. Atomic: a reader sees the old or the new ones.

    Raises:
        LaunchError: it cannot be written, e.g. on a full disk; the old ones stay.
    """
    with written_aside(path, f".{path.name}.new", what="The counts of the run", where=path) as aside:
        aside.write_text(json.dumps(dict(counts)), encoding="utf-8")
