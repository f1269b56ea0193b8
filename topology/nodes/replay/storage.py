"""Where steps live: rows of columns, shared by items through reference counts.

All steps with the same columns form a `RowGroup`. A step has one row, the same number in every column. Items hold row
numbers, never bytes; a row is free again when nothing refers to it: no item, no writer that may still build items from
it, no sample being copied out.

A column is a list of segments that are never moved or copied to grow. A segment asks for address space only: pages
become memory as rows are first written, and freed rows are used again before new ones.

Locks: a group's lock covers its row numbers and counts. Bytes are copied without it, which is safe since a row is
written before anybody else learns its number, and read only by those who hold a reference to it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from topology.errors import ReplayError
from topology.nodes.replay.structure import Path

__all__ = ["Allocator", "Column", "ColumnSpec", "RowGroup"]

Rows = npt.NDArray[np.int64]

_SEGMENT_BYTES = 256 << 20
_MOST_ROWS = np.iinfo(np.int32).max


class ColumnSpec(NamedTuple):
    """One column of the steps of a writer: its place in the step's structure, its dtype and the shape of one cell."""

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


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


@final
class Column:
    """Cells of one dtype and shape, by row."""

    __slots__ = ("_mask", "_segments", "_shift", "dtype", "shape")

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...], segment_bytes: int = _SEGMENT_BYTES) -> None:
        self.dtype = dtype
        self.shape = shape
        cell_bytes = max(1, dtype.itemsize * math.prod(shape))
        self._shift = max(0, min(24, (segment_bytes // cell_bytes).bit_length() - 1))
        self._mask = (1 << self._shift) - 1
        self._segments: list[npt.NDArray[Any]] = []

    def reserve(self, rows: int) -> None:
        """Makes sure that rows below `rows` exist."""
        while len(self._segments) << self._shift < rows:
            self._segments.append(np.empty((self._mask + 1, *self.shape), self.dtype))

    def write(self, rows: Rows, cells: npt.NDArray[Any]) -> None:
        """Copies `cells` [n, *shape] into `rows` [n]."""
        for segment, local, where in self._by_segment(rows):
            source = cells if where is None else cells[where]
            first, count = int(local[0]), local.size
            if int(local[-1]) - first == count - 1 and bool((local[1:] > local[:-1]).all()):
                segment[first : first + count] = source
            else:
                segment[local] = source

    def read(self, rows: Rows, out: npt.NDArray[Any]) -> None:
        """Copies `rows` [n] into `out` [n, *shape], which must be contiguous."""
        for segment, local, where in self._by_segment(rows):
            if where is None:
                # "clip" (the rows are in range) is what makes take write into `out` without a copy between.
                segment.take(local, 0, out, "clip")
            else:
                out[where] = segment.take(local, 0)

    def _by_segment(self, rows: Rows) -> Iterator[tuple[npt.NDArray[Any], Rows, npt.NDArray[np.bool_] | None]]:
        """The segments that `rows` lie in, with the rows inside each and which of `rows` these are (None: all)."""
        if len(self._segments) == 1:
            yield self._segments[0], rows, None
            return
        numbers = rows >> self._shift
        local = rows & self._mask
        first = int(numbers[0])
        if (numbers == first).all():
            yield self._segments[first], local, None
            return
        for number in np.flatnonzero(np.bincount(numbers)).tolist():
            where = numbers == number
            yield self._segments[number], local[where], where


@final
class RowGroup:
    """All steps with the same columns. Thread-safe."""

    def __init__(self, specs: Sequence[ColumnSpec], *, segment_bytes: int = _SEGMENT_BYTES) -> None:
        self.specs = tuple(specs)
        self.columns = [Column(spec.dtype, spec.shape, segment_bytes) for spec in specs]
        self._lock = threading.Lock()
        self._allocator = Allocator()
        self._references = np.zeros(64, np.int32)

    @property
    def live_rows(self) -> int:
        """Rows that something refers to."""
        with self._lock:
            return self._allocator.live

    def take(self, count: int) -> Rows:
        """Allocates `count` rows, each with one reference, that of the caller."""
        with self._lock:
            rows = self._allocator.take(count)
            high = self._allocator.high
            if high > self._references.size:
                larger = np.zeros(max(high, 2 * self._references.size), np.int32)
                larger[: self._references.size] = self._references
                self._references = larger
            self._references[rows] = 1
            for column in self.columns:
                column.reserve(high)
        return rows

    def retain(self, rows: npt.NDArray[np.integer[Any]]) -> None:
        """Adds a reference to each of `rows` (any shape; a row given twice gains two)."""
        flat = rows.ravel().astype(np.int64)
        with self._lock:
            np.add.at(self._references, flat, _ones(flat.size))

    def release(self, rows: npt.NDArray[np.integer[Any]]) -> None:
        """Takes a reference from each of `rows`, and frees those that nothing refers to any more."""
        flat = rows.ravel().astype(np.int64)
        with self._lock:
            np.subtract.at(self._references, flat, _ones(flat.size))
            dead = flat[self._references.take(flat) == 0]
            if dead.size:
                # A row that was released twice here is in `dead` twice.
                self._allocator.give_back(_distinct(dead))


def _ones(size: int) -> npt.NDArray[np.int32]:
    """Ones in the dtype of the reference counts: `ufunc.at` is 20 times slower when it must convert."""
    return np.ones(size, np.int32)


def _distinct(rows: Rows) -> Rows:
    """`rows` in order, each once."""
    ordered = np.sort(rows)
    if ordered.size > 1:
        ordered = ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])]
    return ordered
