"""Where steps live: rows of columns, shared by items through reference counts.

All steps with the same columns form a `RowGroup`. A step has one row, the same number in every column. Items hold row
numbers, never bytes; a row is free again when nothing refers to it: no item, no writer that may still build items from
it, no sample being copied out.

Freed rows are used again before new ones. When more than half of a group's rows are free, and they are many, the memory
behind them goes back to the system.

Locks: a group's lock covers its row numbers and counts. Bytes are copied without it, which is safe since a row is
written before anybody else learns its number, and read only by those who hold a reference to it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from topology.errors import ReplayError
from topology.nodes.replay.columns import SEGMENT_BYTES, ColumnSpec, Rows, make_column
from topology.nodes.replay.compression import Compression

__all__ = ["Allocator", "ColumnSpec", "RowGroup"]

_TRIM_BYTES = 16 << 20  # so many bytes of free rows are kept for the next
_MOST_ROWS = np.iinfo(np.int32).max


@final
class Allocator:
    """Hands out the integers from 0 upward, those given back first. Not thread-safe."""

    __slots__ = ("_free", "_free_count", "_next")

    def __init__(self) -> None:
        self._free = np.empty(64, np.int32)
        self._free_count = 0
        self._next = 0

    @property
    def high(self) -> int:
        """All numbers ever handed out are below it."""
        return self._next

    @property
    def live(self) -> int:
        """How many are handed out now."""
        return self._next - self._free_count

    def high_after(self, count: int) -> int:
        """What `high` will be when `count` more are taken."""
        return self._next + max(0, count - self._free_count)

    def take(self, count: int) -> Rows:
        """`count` numbers, those freed together as a run when there are such."""
        reused = min(count, self._free_count)
        self._free_count -= reused
        taken = self._free[self._free_count : self._free_count + reused].astype(np.int64)
        if reused == count:
            return taken
        first, self._next = self._next, self._next + count - reused
        if self._next > _MOST_ROWS:
            self._next = first
            self._free_count += reused
            raise ReplayError(f"no more than {_MOST_ROWS} steps of one kind, or items of one table, can be kept")
        return np.concatenate([taken, np.arange(first, self._next)])

    def give_back(self, numbers: Rows) -> None:
        """Frees numbers that are handed out, each once."""
        end = self._free_count + numbers.size
        if end > self._free.size:
            larger = np.empty(max(end, 2 * self._free.size), np.int32)
            larger[: self._free_count] = self._free[: self._free_count]
            self._free = larger
        self._free[self._free_count : end] = numbers
        self._free_count = end

    def restart(self, high: int, free: npt.NDArray[np.integer[Any]]) -> None:
        """All numbers below `high` are handed out but `free` (ascending), of which the lowest go out first."""
        self._next = high
        self._free_count = free.size
        self._free = np.empty(max(free.size, 64), np.int32)
        self._free[: free.size] = free[::-1]


@final
class RowGroup:
    """All steps with the same columns. Thread-safe."""

    def __init__(
        self,
        specs: Sequence[ColumnSpec],
        compression: Compression | None = None,
        *,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self.specs = tuple(specs)
        codecs = [None if compression is None else compression.codec(spec.path, _cell_bytes(spec)) for spec in specs]
        self.columns = [make_column(spec, codec, segment_bytes) for spec, codec in zip(specs, codecs, strict=True)]
        self._row_bytes = sum(column.cell_bytes for column in self.columns)
        # Columns whose cells are objects, which must be let go of.
        self._loose = [column for column in self.columns if not column.cell_bytes]
        self._freed = 0  # since memory was given back
        self._lock = threading.Lock()
        self._allocator = Allocator()
        self._references = np.zeros(64, np.int32)

    @property
    def live_rows(self) -> int:
        """Rows that something refers to."""
        with self._lock:
            return self._allocator.live

    def take(self, count: int) -> Rows:
        """Allocates `count` rows, each with one reference, that of the caller.

        Raises:
            ReplayError: there is no memory for them, or they would be too many.
        """
        with self._lock:
            try:
                self._reserve(self._allocator.high_after(count))
            except (OSError, MemoryError) as error:
                raise ReplayError(
                    f"no memory for {count} more steps of {self._row_bytes} bytes, where "
                    f"{self._allocator.live} like them are kept: {error}"
                ) from error
            rows = self._allocator.take(count)
            self._references[rows] = 1
        return rows

    def _reserve(self, high: int) -> None:
        if high > self._references.size:
            larger = np.zeros(max(high, 2 * self._references.size), np.int32)
            larger[: self._references.size] = self._references
            self._references = larger
        for column in self.columns:
            column.reserve(high)

    def retain(self, rows: npt.NDArray[np.integer[Any]]) -> None:
        """Adds a reference to each of `rows` (any shape; a row given twice gains two)."""
        flat = rows.ravel().astype(np.int64)
        with self._lock:
            np.add.at(self._references, flat, ones(flat.size))

    def release(self, rows: npt.NDArray[np.integer[Any]]) -> None:
        """Takes a reference from each of `rows`, and frees those that nothing refers to any more."""
        flat = rows.ravel().astype(np.int64)
        with self._lock:
            np.subtract.at(self._references, flat, ones(flat.size))
            dead = flat[self._references.take(flat) == 0]
            if dead.size:
                # A row that was released twice here is in `dead` twice.
                self._free(_distinct(dead))

    def _free(self, rows: Rows) -> None:
        for column in self._loose:
            column.discard(rows)
        self._allocator.give_back(rows)
        self._freed += rows.size
        high = self._allocator.high
        idle = high - self._allocator.live
        if 2 * self._freed >= high and 2 * idle >= high and idle * self._row_bytes > _TRIM_BYTES:
            self._trim()

    def _trim(self) -> None:
        """Gives memory back, and uses the lowest rows first from now on, so that more of it can follow."""
        self._freed = 0
        in_use = self._references[: self._allocator.high] > 0
        high = in_use.size - int(in_use[::-1].argmax()) if in_use.any() else 0
        free = ~in_use[:high]
        self._allocator.restart(high, np.flatnonzero(free))
        for column in self.columns:
            column.trim(free)


def _cell_bytes(spec: ColumnSpec) -> int:
    return spec.dtype.itemsize * math.prod(spec.shape)


def ones(size: int) -> npt.NDArray[np.int32]:
    """Ones in the dtype of counts, to be read only: `ufunc.at` is 20 times slower when it must convert."""
    return _SOME_ONES[:size] if size <= _SOME_ONES.size else np.ones(size, np.int32)


_SOME_ONES = np.ones(1024, np.int32)


def _distinct(rows: Rows) -> Rows:
    """`rows` in order, each once."""
    ordered = np.sort(rows)
    if ordered.size > 1:
        ordered = ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])]
    return ordered
