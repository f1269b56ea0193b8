"""Where cells live: one column of the steps, by row.

A column of arrays is a list of segments that are never moved or copied to grow. A segment asks for address space only:
pages become memory as rows are first written, and go back to the system when rows are free in the mass. Text of any
length and compressed cells are objects, and are let go of with their rows.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import numpy.typing as npt

from topology.nodes.replay.compression import Codec
from topology.nodes.replay.structure import Path

__all__ = ["ArrayColumn", "Column", "ColumnSpec", "CompressedColumn", "ObjectColumn", "make_column"]

Rows = npt.NDArray[np.int64]

SEGMENT_BYTES = 256 << 20
_OBJECT_SEGMENT = 1 << 16
_HUGE_BYTES = 4 << 20  # from here on numpy, too, asks for huge pages
_RUN_BYTES = 256 << 10  # shorter runs of free rows are not worth a system call


class ColumnSpec(NamedTuple):
    """One column of the steps of a writer: its place in the step's structure, its dtype and the shape of one cell.

    The dtype `object` stands for bytes of any length.
    """

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class Column(Protocol):
    """Cells of one dtype and shape, by row. Rows are written before anybody else learns of them."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def cell_bytes(self) -> int:
        """Bytes that a cell keeps, as far as that is the same for all."""

    def reserve(self, rows: int) -> None:
        """Makes sure that rows below `rows` exist."""

    def write(self, rows: Rows, cells: npt.NDArray[Any]) -> None:
        """Copies `cells` [n, *shape] into `rows` [n]."""

    def read(self, rows: Rows, out: npt.NDArray[Any]) -> None:
        """Copies `rows` [n] into `out` [n, *shape], which must be contiguous."""

    def discard(self, rows: Rows) -> None:
        """These rows are free now."""

    def trim(self, free: npt.NDArray[np.bool_]) -> None:
        """Gives memory back: rows from `free.size` on do not exist any more, of the others those in `free` are free."""


def make_column(spec: ColumnSpec, codec: Codec | None = None, segment_bytes: int = SEGMENT_BYTES) -> Column:
    """The column that suits the spec."""
    if spec.dtype.hasobject:
        return ObjectColumn(spec.shape)
    if codec is not None:
        return CompressedColumn(spec.dtype, spec.shape, codec)
    return ArrayColumn(spec.dtype, spec.shape, segment_bytes)


class _Segmented:
    """Rows in segments of a power of two."""

    __slots__ = ("_mask", "_segments", "_shift", "dtype", "shape")

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...], shift: int) -> None:
        self.dtype = dtype
        self.shape = shape
        self._shift = shift
        self._mask = (1 << shift) - 1
        self._segments: list[npt.NDArray[Any]] = []

    def _make(self) -> npt.NDArray[Any]:
        raise NotImplementedError

    def reserve(self, rows: int) -> None:
        while len(self._segments) << self._shift < rows:
            self._segments.append(self._make())

    def write(self, rows: Rows, cells: npt.NDArray[Any]) -> None:
        for segment, local, where in self._by_segment(rows):
            source = cells if where is None else cells[where]
            first, count = int(local[0]), local.size
            if int(local[-1]) - first == count - 1 and bool((local[1:] > local[:-1]).all()):
                segment[first : first + count] = source
            else:
                segment[local] = source

    def read(self, rows: Rows, out: npt.NDArray[Any]) -> None:
        for segment, local, where in self._by_segment(rows):
            if where is None:
                # "clip" (the rows are in range) is what makes take write into `out` without a copy between.
                segment.take(local, 0, out, "clip")
            else:
                out[where] = segment.take(local, 0)

    def trim(self, free: npt.NDArray[np.bool_]) -> None:
        del self._segments[(free.size + self._mask) >> self._shift :]

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
class ArrayColumn(_Segmented):
    """Cells of fixed size."""

    __slots__ = ("_is_small", "_maps", "cell_bytes")

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...], segment_bytes: int = SEGMENT_BYTES) -> None:
        self.cell_bytes = dtype.itemsize * math.prod(shape)
        super().__init__(dtype, shape, max(0, min(24, (segment_bytes // max(self.cell_bytes, 1)).bit_length() - 1)))
        self._maps: list[mmap.mmap] = []
        self._is_small = True

    def reserve(self, rows: int) -> None:
        super().reserve(rows)
        if self._is_small and rows * self.cell_bytes >= _HUGE_BYTES:
            self._is_small = False  # before, a page of the first cell would be larger than all of them
            for memory in self._maps:
                self._ask_for_huge_pages(memory)

    def _make(self) -> npt.NDArray[Any]:
        memory = mmap.mmap(-1, max(self.cell_bytes << self._shift, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if not self._is_small:
            self._ask_for_huge_pages(memory)
        self._maps.append(memory)
        return np.ndarray((self._mask + 1, *self.shape), self.dtype, memory)

    def _ask_for_huge_pages(self, memory: mmap.mmap) -> None:
        # Large cells gain little from huge pages, and the first use of one can cost ten times that of its parts: where
        # a hypervisor takes back memory that is free, it is the large pieces that it takes.
        if self.cell_bytes < mmap.PAGESIZE and hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)

    def discard(self, rows: Rows) -> None:
        pass  # the bytes are written over, or given back by `trim`

    def trim(self, free: npt.NDArray[np.bool_]) -> None:
        super().trim(free)
        del self._maps[len(self._segments) :]
        for number, memory in enumerate(self._maps):
            some = free[number << self._shift : (number + 1) << self._shift]
            for first, last in _runs(np.pad(some, (0, self._mask + 1 - some.size), constant_values=True)):
                start = -(-first * self.cell_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
                length = last * self.cell_bytes // mmap.PAGESIZE * mmap.PAGESIZE - start
                if length >= _RUN_BYTES:
                    memory.madvise(mmap.MADV_DONTNEED, start, length)


def _runs(flags: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """The runs of True, as (first, stop)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).view(np.int8)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


@final
class ObjectColumn(_Segmented):
    """Cells of bytes of any length, or arrays of such."""

    __slots__ = ()

    cell_bytes = 0  # each has a size of its own

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        shift = (_OBJECT_SEGMENT // max(math.prod(shape), 1)).bit_length() - 1
        super().__init__(np.dtype(object), shape, max(shift, 0))

    def _make(self) -> npt.NDArray[Any]:
        return np.empty((self._mask + 1, *self.shape), object)

    def discard(self, rows: Rows) -> None:
        for segment, local, _ in self._by_segment(rows):
            segment[local] = None


@final
class CompressedColumn:
    """Cells of fixed size, each compressed by itself: written and read one by one, at the codec's speed."""

    __slots__ = ("_codec", "_packed", "_size", "dtype", "shape")

    cell_bytes = 0

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...], codec: Codec) -> None:
        self.dtype = dtype
        self.shape = shape
        self._codec = codec
        self._packed = ObjectColumn()

    def reserve(self, rows: int) -> None:
        self._packed.reserve(rows)

    def write(self, rows: Rows, cells: npt.NDArray[Any]) -> None:
        packed = np.empty(len(cells), object)
        for i, cell in enumerate(cells):
            packed[i] = self._codec.compress(np.ascontiguousarray(cell).tobytes())
        self._packed.write(rows, packed)

    def read(self, rows: Rows, out: npt.NDArray[Any]) -> None:
        packed = np.empty(rows.size, object)
        self._packed.read(rows, packed)
        for i, cell in enumerate(packed):
            if cell is not None:  # a row that was allocated and not written yet
                out[i] = np.frombuffer(self._codec.decompress(cell), self.dtype).reshape(self.shape)

    def discard(self, rows: Rows) -> None:
        self._packed.discard(rows)

    def trim(self, free: npt.NDArray[np.bool_]) -> None:
        self._packed.trim(free)
