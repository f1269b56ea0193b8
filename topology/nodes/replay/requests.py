"""What waits in a table's two queues: inserts and samples that the rate limiter has not let pass yet.

A request may be served piece by piece. It ends exactly once: served, or failed with an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt

from topology.nodes.replay.items import RowMatrix
from topology.nodes.replay.layouts import Layout

__all__ = ["InsertRequest", "Picks", "SampleRequest"]


class Picks(NamedTuple):
    """Sampled items before their bytes are copied. Holds a reference to each row in `parts`.

    Attributes:
        keys, probabilities, priorities, times_sampled: by position, [n].
        table_size: items in the table when they were drawn.
        parts: for each layout among them: the layout, the positions that have it (None: all), their rows [k, T].
    """

    keys: npt.NDArray[np.uint64]
    probabilities: npt.NDArray[np.float64]
    priorities: npt.NDArray[np.float64]
    times_sampled: npt.NDArray[np.int32]
    table_size: int
    parts: list[tuple[Layout, npt.NDArray[np.int64] | None, RowMatrix]]

    @property
    def size(self) -> int:
        """Number of sampled items."""
        return int(self.keys.size)

    @property
    def nbytes(self) -> int:
        """Bytes of the items' leaves."""
        return sum(layout.item_bytes * len(rows) for layout, _, rows in self.parts)

    def release(self) -> None:
        """Gives the rows back."""
        for layout, _, rows in self.parts:
            layout.group.release(rows)

    def split(self, chosen: npt.NDArray[np.bool_]) -> tuple[Picks, Picks]:
        """Those at the positions where `chosen` [n] is True, and the others."""
        return self._only(chosen), self._only(~chosen)

    def _only(self, chosen: npt.NDArray[np.bool_]) -> Picks:
        place = chosen.cumsum() - 1
        parts: list[tuple[Layout, npt.NDArray[np.int64] | None, RowMatrix]] = []
        for layout, where, rows in self.parts:
            if where is None:
                parts.append((layout, where, rows[chosen]))
            elif (inside := chosen[where]).any():
                parts.append((layout, place[where[inside]], rows[inside]))
        return Picks(
            self.keys[chosen],
            self.probabilities[chosen],
            self.priorities[chosen],
            self.times_sampled[chosen],
            self.table_size,
            parts,
        )


@final
class InsertRequest:
    """Items of one layout on their way into one table. Holds a reference to each row until the table takes it over.

    Args:
        layout: their layout.
        rows: rows of each item, [n, T].
        priorities: [n].
        episode: the writer's episode they belong to.
        done: called once, without any lock held, with None or the error.
        writer: who sends them; 0 for somebody who never sends an item twice.
        serial: how many items that writer sent to the table before these.
    """

    __slots__ = (
        "done",
        "episode",
        "error",
        "layout",
        "passed",
        "priorities",
        "rows",
        "serial",
        "since_s",
        "skipped",
        "writer",
    )

    def __init__(
        self,
        layout: Layout,
        rows: RowMatrix,
        priorities: npt.NDArray[np.float64],
        episode: int,
        done: Callable[[Exception | None], None],
        *,
        writer: int = 0,
        serial: int = 0,
    ) -> None:
        self.layout = layout
        self.rows = rows
        self.priorities = priorities
        self.episode = episode
        self.done = done
        self.writer = writer
        self.serial = serial
        self.passed = 0
        self.skipped = 0
        self.error: Exception | None = None
        self.since_s = math.inf  # when it began to wait

    @property
    def waiting(self) -> int:
        """Items that are not in the table yet."""
        return len(self.rows) - self.passed

    def skip(self, count: int) -> None:
        """Counts the first `count` items as passed: the table has taken them before."""
        self.passed = self.skipped = min(count, len(self.rows))

    def finish(self) -> None:
        """Reports the end. Called by the table once it has let go of its lock."""
        if self.waiting:
            self.layout.group.release(self.rows[self.passed :])
        if self.skipped:
            self.layout.group.release(self.rows[: self.skipped])
        self.done(self.error)


@final
class SampleRequest:
    """A wish for `count` samples.

    Args:
        count: samples wanted; at least 1.
        done: called once, without any lock held, with what was drawn, or the error. Who gets the picks releases them.
        distinct: whether no item may be among them twice.
        some: whether it ends with what can be drawn at once, if that is at least one.
    """

    __slots__ = ("count", "distinct", "done", "error", "picks", "since_s", "some")

    def __init__(
        self,
        count: int,
        done: Callable[[list[Picks], Exception | None], None],
        *,
        distinct: bool = False,
        some: bool = False,
    ) -> None:
        self.count = count
        self.distinct = distinct
        self.some = some
        self.done = done
        self.picks: list[Picks] = []
        self.error: Exception | None = None
        self.since_s = math.inf  # when it began to wait

    @property
    def waiting(self) -> int:
        """Samples still to be drawn."""
        return self.count - sum(picks.size for picks in self.picks)

    def finish(self) -> None:
        """Reports the end. Called by the table once it has let go of its lock."""
        self.done(self.picks, self.error)
