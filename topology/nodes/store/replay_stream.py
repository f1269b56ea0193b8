"""One writer's experience as messages to a replay service: one each, numbered, so that a table takes it once. No I/O.

What a `TrajectoryWriter` sends item by item out of steps that it keeps, this sends as it comes: the steps of a message
are those of its item, and no later one refers to them.
"""

from __future__ import annotations

import secrets
from typing import Final, final

import cloudpickle
import numpy as np

from topology.nodes.replay.layouts import LayoutSpec, LeafPattern
from topology.nodes.replay.messages import LentArray, WriteBatch, WriteItem
from topology.nodes.replay.storage import ColumnSpec
from topology.nodes.replay.structure import describe
from topology.nodes.store.codec import Array

__all__ = ["ReplayStream"]

_MOST_LAYOUTS: Final = 1024  # that the server keeps for a window
_BYTE: Final = np.dtype(np.uint8)
_BARE: Final = describe(None), cloudpickle.dumps(None)  # an item is one array, and no structure of several


@final
class ReplayStream:
    """Makes the messages. Not thread-safe.

    Args:
        table: where experience goes.
    """

    def __init__(self, table: str) -> None:
        self._table = table
        self.writer = secrets.randbits(63) | 1
        self._episode = secrets.randbits(64)
        self._stream = self._number = 0
        self._width = 0
        self._layouts: dict[int, int] = {}  # of the window, by steps

    @property
    def is_open(self) -> bool:
        """Whether the server was told of it."""
        return self._number > 0

    def begin_anew(self) -> None:
        """Nothing of before is with the server for sure: the next message begins another stream."""
        if self._number:
            self._stream += 1
            self._number = self._width = 0

    def message(self, serial: int, rows: Array | LentArray) -> WriteItem:
        """The next message.

        Args:
            serial: how many experiences the writer has made before this one, sent or not.
            rows: of the experience, [steps, width].
        """
        steps, width = rows.shape
        columns: tuple[ColumnSpec, ...] | None = None
        if width != self._width or len(self._layouts) >= _MOST_LAYOUTS:
            columns = (ColumnSpec((f"{width}",), _BYTE, (width,)),)
            self._width, self._layouts = width, {}
        layouts: tuple[LayoutSpec, ...] = ()
        if steps not in self._layouts:
            self._layouts[steps] = len(self._layouts)
            layouts = (LayoutSpec((LeafPattern(0, tuple(range(steps)), False),), *_BARE, ((),)),)
        number, self._number = self._number, self._number + 1
        return WriteItem(
            self.writer,
            self._stream,
            number,
            columns,
            layouts,
            rows,
            self._table,
            self._layouts[steps],
            0.0,
            self._episode,
            serial,
        )

    def farewell(self) -> WriteBatch:
        """The last message of the stream."""
        stream, number = self._stream, self._number
        self.begin_anew()
        return WriteBatch(self.writer, stream, number, None, (), 0, 0, (), (), keep_from=0, last=True)
