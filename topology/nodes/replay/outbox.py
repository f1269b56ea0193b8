"""From a writer's items to messages: what the server has of the writer's steps, and what it still needs. No I/O."""

from __future__ import annotations

import secrets
from typing import NamedTuple, final

import numpy as np

from topology.nodes.replay.layouts import LayoutSpec
from topology.nodes.replay.messages import Cells, ItemRun, WriteBatch
from topology.nodes.replay.step_buffer import StepBuffer

__all__ = ["Outbox", "Pending", "PendingRun"]


@final
class PendingRun:
    """Items for one table, of one layout and episode, in order."""

    __slots__ = ("episode", "items", "layout", "serial", "size", "table")

    def __init__(self, table: str, layout: int, episode: int, serial: int) -> None:
        self.table = table
        self.layout = layout
        self.episode = episode
        self.serial = serial  # how many items for that table came before
        self.items: list[tuple[range, list[float]]] = []  # first steps and priorities, one entry for each `add`
        self.size = 0


class Pending(NamedTuple):
    """Items that go out together: `size` of them over the steps from `first` to before `stop`, `order` by age."""

    runs: list[PendingRun]
    size: int
    first: int
    stop: int
    order: int


@final
class Outbox:
    """One writer's stream as the server sees it. Not thread-safe."""

    def __init__(self, buffer: StepBuffer) -> None:
        self._buffer = buffer
        self._layouts: dict[int, LayoutSpec] = {}  # a stream learns of one when it is first used
        self._next_layout = 0
        self._patches: list[tuple[int, int]] = []
        self._version = -1
        self.writer = secrets.randbits(63) | 1
        self.stream = 0
        self._number = 0
        self._forget()

    def reset(self) -> None:
        """Begins a new stream: the server is taken to have nothing."""
        if self._number:
            self.stream += 1
            self._number = 0
            self._forget()

    def _forget(self) -> None:
        self._described: dict[int, int] = {}
        self._position: dict[int, int] = {}
        self._first = self._stop = 0  # steps the server holds
        self._patches.clear()

    @property
    def is_open(self) -> bool:
        """Whether the server was told of this stream."""
        return self._number > 0

    def add_layout(self, spec: LayoutSpec) -> int:
        """A new layout, over the writer's columns; returns its number."""
        number, self._next_layout = self._next_layout, self._next_layout + 1
        self._layouts[number] = spec
        return number

    def keep_layouts(self, numbers: set[int]) -> None:
        """Forgets all layouts but these. The next message begins a new window, so that the server forgets them too."""
        self._layouts = {number: self._layouts[number] for number in numbers}
        self._version = -1

    def layout(self, number: int) -> LayoutSpec:
        """The layout of that number."""
        return self._layouts[number]

    def cell_set(self, step: int, column: int) -> None:
        """Tells that a cell of the open step was set: it must follow when the step was sent without it."""
        if step < self._stop:
            self._patches.append((step, column))

    def _needs_window(self, pending: Pending) -> bool:
        """Whether the items need a new window: the first, for new columns, or for steps that the server let go of."""
        return not self.is_open or self._version != self._buffer.version or pending.first < self._first

    def farewell(self) -> WriteBatch:
        """The last message of the stream, without items."""
        return WriteBatch(
            self.writer, self.stream, self._number, None, (), self._stop, 0, (), (), self._stop, last=True
        )

    def message(self, pending: Pending, keep_from: int, *, last: bool = False) -> WriteBatch:
        """The message with these items and all that they need. The steps from `keep_from` on stay usable."""
        columns = None
        if self._needs_window(pending):
            self._forget()
            self._version = self._buffer.version
            specs = [(i, spec) for i in range(len(self._buffer.columns)) if (spec := self._buffer.spec(i)) is not None]
            self._position = {i: position for position, (i, _) in enumerate(specs)}
            columns = tuple(spec for _, spec in specs)
            self._first = self._stop = pending.first
        first_new = max(self._stop, pending.first)
        stop = max(self._stop, pending.stop)
        if first_new > self._stop:  # steps were left out: the server's window begins after them
            self._first = first_new
        layouts = tuple(self._describe(run.layout) for run in pending.runs if run.layout not in self._described)
        message = WriteBatch(
            self.writer,
            self.stream,
            self._number,
            columns,
            layouts,
            first_new,
            stop - first_new,
            tuple(self._cells(first_new, stop)),
            tuple(self._item_run(run) for run in pending.runs),
            keep_from,
            last,
        )
        self._first = min(max(self._first, keep_from), stop)
        self._stop = stop
        self._number += 1
        return message

    def _describe(self, number: int) -> LayoutSpec:
        self._described[number] = len(self._described)
        spec = self._layouts[number]
        leaves = tuple(leaf._replace(column=self._position[leaf.column]) for leaf in spec.leaves)
        return spec._replace(leaves=leaves)

    def _cells(self, first: int, stop: int) -> list[Cells]:
        cells = [
            each
            for column, position in self._position.items()
            for each in self._buffer.cells(column, position, first, stop)
        ]
        for step, column in self._patches:
            if self._first <= step:
                cells.extend(self._buffer.cells(column, self._position[column], step, step + 1, lend=False))
        self._patches.clear()
        return cells

    def _item_run(self, run: PendingRun) -> ItemRun:
        return ItemRun(
            run.table,
            self._described[run.layout],
            np.array([step for steps, _ in run.items for step in steps], np.int64),
            np.array([priority for _, priorities in run.items for priority in priorities], np.float64),
            run.episode,
            run.serial,
        )
