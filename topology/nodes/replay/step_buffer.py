"""A writer's own copy of its latest steps.

Steps are counted from 0 over the life of the writer. They lie in chunks of a few hundred KB, one array a column. A
chunk that has been sent is never written to again but for cells that were not set yet, so the bytes that travel are the
very arrays that `append` filled.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from topology.nodes.replay.cell_errors import CellMismatch
from topology.nodes.replay.messages import Cells, LentArray
from topology.nodes.replay.region_pool import PooledRegion, RegionPool
from topology.nodes.replay.shared_memory import FIRST_BYTE, aligned, view
from topology.nodes.replay.specs import Spec
from topology.nodes.replay.storage import ColumnSpec
from topology.nodes.replay.structure import Path, show_path

__all__ = ["StepBuffer", "Steps"]

# Consecutive or evenly spaced steps, or any others.
Steps: TypeAlias = "range | tuple[int, ...]"

_CHUNK_BYTES = 512 << 10
_CHUNK_STEPS = 256
_MOST_SPARE = 4
_SHARED_BYTES = 64 << 10  # smaller chunks are as fast through the socket
_ROOM_BYTES = 4 << 10  # for gaps between columns
_LENT_BYTES = 8 << 10  # smaller pieces travel with the message

# Numbers of Python that numpy stores with this dtype.
_PYTHON_NUMBERS = {np.dtype(np.float64): float, np.dtype(np.int64): int, np.dtype(np.bool_): bool}


@final
class _Column:
    """What is known of one column: its spec once it has a value, and the steps in which it has none."""

    __slots__ = ("dtype", "gaps", "last", "path", "plain", "shape")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.dtype: np.dtype[Any] | None = None
        self.shape: tuple[int, ...] = ()
        self.plain: tuple[type, ...] = ()  # types of scalars whose every instance fits
        self.last = -1  # the latest step with a value
        self.gaps: list[tuple[int, int]] = []  # earlier steps without, as (first, stop)

    def check(self, value: npt.NDArray[Any]) -> None:
        if self.dtype is None:
            if value.dtype.hasobject and value.dtype.kind != "O":  # text comes as objects that are bytes
                raise TypeError(
                    f"column {show_path(self.path)}: values of dtype {value.dtype} cannot be stored; "
                    "give numbers, booleans, text, or arrays of them"
                )
        elif value.dtype != self.dtype or value.shape != self.shape:
            raise self.refuse(value, "the new step has")

    def adopt(self, value: npt.NDArray[Any]) -> None:
        dtype = self.dtype = value.dtype
        self.shape = value.shape
        if not self.shape and np.dtype(dtype.type) == dtype:
            python = _PYTHON_NUMBERS.get(dtype)
            self.plain = (dtype.type,) if python is None else (dtype.type, python)

    def refuse(self, value: npt.NDArray[Any], given: str) -> CellMismatch:
        assert self.dtype is not None
        known, found = Spec(self.shape, self.dtype), Spec(value.shape, value.dtype)
        return CellMismatch(f"column {show_path(self.path)} holds {known}, {given} {found}", self.path, known, found)

    def mark(self, first: int, stop: int) -> None:
        """Notes that the steps from `first` to before `stop` have a value now."""
        if first > self.last + 1:
            self.gaps.append((self.last + 1, first))
        self.last = stop - 1

    def has(self, step: int) -> bool:
        return step <= self.last and not any(first <= step < stop for first, stop in self.gaps)


# Where plain values of one column go within one chunk: its array there, the column, and what fits it: types of scalars,
# dtype and shape of arrays. A bare tuple, since it is taken apart for every value that is appended.
_Lane: TypeAlias = "tuple[npt.NDArray[Any], _Column, tuple[type, ...], np.dtype[Any], tuple[int, ...]]"


@final
class _Chunk:
    """Memory for consecutive steps: one array a column, in a region of shared memory when `shared` is one."""

    __slots__ = ("_end", "_memory", "arrays", "first", "offsets", "shared", "stop")

    def __init__(self, first: int, capacity: int, shared: PooledRegion | None, pool: RegionPool | None) -> None:
        self.first = first
        self.stop = first + capacity
        self.arrays: dict[int, npt.NDArray[Any]] = {}
        self.offsets: dict[int, int] = {}  # of those arrays that lie in the region
        self.shared = shared
        # As long as this array or one over it lives, the region is ours.
        self._memory = None if shared is None or pool is None else pool.hold(shared)
        self._end = FIRST_BYTE

    def add_array(self, column: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        whole = (self.stop - self.first, *shape)
        size = dtype.itemsize * math.prod(whole)
        if dtype.hasobject or self._memory is None or self._end + size > self._memory.size:
            array = np.zeros(whole, dtype)
        else:
            array = view(self._memory, self._end, dtype, whole)
            self.offsets[column] = self._end
            self._end = aligned(self._end + size)
        self.arrays[column] = array
        return array

    def lent(self, column: int, low: int, high: int) -> LentArray | None:
        """The cells of steps from `low` to before `high` as a loan; None when they are to be sent."""
        array, offset = self.arrays[column], self.offsets.get(column)
        if self.shared is None or self.shared.is_dropped or offset is None:
            return None
        cell_bytes = array.nbytes // len(array)
        offset += cell_bytes * (low - self.first)
        return LentArray(self.shared.address, offset, array.dtype, (high - low, *array.shape[1:]))


@final
class StepBuffer:
    """The steps of one writer. Not thread-safe.

    Args:
        pool: where memory for large steps is taken from, so that the server copies them from there; None for none.

    Attributes:
        columns: in the order they were first seen.
        next_step: number of the next new step.
        first_alive: steps before it may not be referred to any more.
        history_first: the step that index 0 of the history means.
        version: grows whenever a column gets its first value.
        row_bytes: bytes of one step, as far as its columns are known.
    """

    def __init__(self, pool: RegionPool | None = None) -> None:
        self._pool = pool
        self.columns: list[_Column] = []
        self.next_step = 0
        self.first_alive = 0
        self.history_first = 0
        self.version = 0
        self.row_bytes = 0
        self._chunks: deque[_Chunk] = deque()
        self._has_grown = False  # since memory was given back
        self._spare: list[_Chunk] = []  # memory that was used before, which costs no page faults
        self._lanes: list[_Lane] = []  # of `_lanes_plan`, in the newest chunk
        self._lanes_plan: Sequence[int] | None = None
        self._lanes_first = self._lanes_stop = 0  # steps of that chunk
        self._lanes_last = -1  # the latest step that they were used for

    def add_column(self, path: Path) -> int:
        """A new column; returns its index."""
        self.columns.append(_Column(path))
        return len(self.columns) - 1

    def spec(self, column: int) -> ColumnSpec | None:
        """The column's spec; None before its first value."""
        found = self.columns[column]
        return None if found.dtype is None else ColumnSpec(found.path, found.dtype, found.shape)

    def check(self, column: int, value: npt.NDArray[Any]) -> None:
        """Checks a value against its column.

        Raises:
            TypeError: values of that dtype cannot be stored.
            ValueError: dtype or shape differ from those of earlier values.
        """
        self.columns[column].check(value)

    def adopt(self, column: int, value: npt.NDArray[Any]) -> None:
        """Makes a value that was checked the column's first, if there was none."""
        known = self.columns[column]
        if known.dtype is None:
            known.adopt(value)
            self.version += 1
            self.row_bytes += value.nbytes

    def make_room(self, step: int) -> None:
        """To be called before the new step `step` is set, when columns got their first value.

        The newest chunk may be for so many steps that the new columns would make it many times as large as chunks are.
        """
        if not self._chunks:
            return
        chunk = self._chunks[-1]
        if chunk.first <= step < chunk.stop and (chunk.stop - chunk.first) * self.row_bytes > 2 * _CHUNK_BYTES:
            chunk.stop = step
            self._lanes_plan = None

    def try_append(self, plan: Sequence[int], values: Sequence[Any]) -> bool:
        """Sets the cells of step `next_step` in the columns of `plan`, when that is plain.

        That is so when every value is an array or a number of its column's dtype and shape, and the step before has
        cells in these columns too. Returns whether it was; if not, `set_cells` is needed.
        """
        step = self.next_step
        if (plan is not self._lanes_plan or step >= self._lanes_stop) and not self._open_lanes(plan, step):
            return False
        row = step - self._lanes_first
        if self._lanes_last != step - 1 and not all(lane[1].last == step - 1 for lane in self._lanes):
            return False
        try:
            for (array, _, plain, dtype, shape), value in zip(self._lanes, values, strict=False):
                kind = type(value)
                if kind not in plain and (
                    kind is not np.ndarray
                    or value.shape != shape
                    or (value.dtype is not dtype and value.dtype != dtype)
                ):
                    return False
                array[row] = value
        except OverflowError:  # an int that its column has no room for
            return False
        for _, column, _, _, _ in self._lanes:
            column.last = step
        self._lanes_last = step
        return True

    def _open_lanes(self, plan: Sequence[int], step: int) -> bool:
        if any(self.columns[number].dtype is None for number in plan):
            return False  # how many steps a chunk is for depends on their size
        chunk = self._chunks[-1] if self._chunks else self._add_chunk(step)
        if step >= chunk.stop:
            chunk = self._add_chunk(step)
        lanes = []
        for number in plan:
            column, array = self.columns[number], chunk.arrays.get(number)
            if array is None:
                array = self._add_array(chunk, number)
            lanes.append((array, column, column.plain, array.dtype, column.shape))
        self._lanes, self._lanes_plan = lanes, plan
        self._lanes_first, self._lanes_stop, self._lanes_last = chunk.first, chunk.stop, -1
        return True

    def set_cells(self, step: int, cells: list[tuple[int, Any]]) -> None:
        """Sets cells, as (column, value), of the newest step to values that were checked."""
        chunk = self._chunks[-1] if self._chunks else self._add_chunk(step)
        if step >= chunk.stop:
            chunk = self._add_chunk(step)
        arrays, columns, row = chunk.arrays, self.columns, step - chunk.first
        for column, value in cells:
            if column not in arrays:
                self._add_array(chunk, column)
            arrays[column][row] = value
            known = columns[column]
            if known.last == step - 1:
                known.last = step
            else:
                known.mark(step, step + 1)

    def extend(self, column: int, first: int, values: npt.NDArray[Any]) -> None:
        """Sets the cells of the steps from `first` on to `values` [n, ...], which were checked."""
        step, stop = first, first + len(values)
        if not self._chunks:
            self._add_chunk(first)
        while self._chunks[-1].stop < stop:
            self._add_chunk(self._chunks[-1].stop)
        for chunk in self._chunks:
            if chunk.stop > step and chunk.first < stop:
                array = chunk.arrays.get(column)
                if array is None:
                    array = self._add_array(chunk, column)
                end = min(stop, chunk.stop)
                array[step - chunk.first : end - chunk.first] = values[step - first : end - first]
                step = end
        self.columns[column].mark(first, stop)

    def cells(self, column: int, position: int, first: int, stop: int, *, lend: bool = True) -> Iterator[Cells]:
        """The cells of a column from step `first` to before `stop`, not copied.

        Args:
            column: index of the column.
            position: the index that goes into the message.
            first: the first step.
            stop: the step after the last.
            lend: whether cells in shared memory are lent. They must not be dropped before the message is answered.
        """
        small: list[npt.NDArray[Any]] = []  # adjacent pieces, which travel better as one
        small_first = first
        for chunk in self._chunks:
            low, high = max(first, chunk.first), min(stop, chunk.stop)
            array = chunk.arrays.get(column)
            if low >= high or array is None:
                continue
            values = array[low - chunk.first : high - chunk.first]
            if lend and values.nbytes >= _LENT_BYTES:
                yield Cells(position, low, chunk.lent(column, low, high) or values)
                continue
            if small and small_first + sum(map(len, small)) != low:
                yield Cells(position, small_first, np.concatenate(small))
                small = []
            if not small:
                small_first = low
            small.append(values)
        if small:
            yield Cells(position, small_first, small[0] if len(small) == 1 else np.concatenate(small))

    def read(self, column: int, steps: Steps) -> npt.NDArray[Any]:
        """The cells of a column at `steps`, stacked, [n, *shape]."""
        known = self.columns[column]
        out = np.empty((len(steps), *known.shape), known.dtype)
        for i, step in enumerate(steps):
            chunk = next(chunk for chunk in self._chunks if step < chunk.stop)
            out[i] = chunk.arrays[column][step - chunk.first]
        return out

    def can_drop(self, step: int) -> bool:
        """Whether it is time for `drop_before(step)`: there is a new chunk, and the first one is not in use."""
        if not self._has_grown or self._chunks[0].stop > step:
            return False
        self._has_grown = False
        return True

    def drop_before(self, step: int) -> None:
        """Lets go of steps before `step`, whose cells nobody may read any more."""
        while self._chunks and self._chunks[0].stop <= step:
            chunk = self._chunks.popleft()
            if chunk.shared is None and len(self._spare) < _MOST_SPARE:
                self._spare.append(chunk)
        for column in self.columns:
            if column.gaps and column.gaps[0][1] <= step:
                column.gaps = [gap for gap in column.gaps if gap[1] > step]

    def _add_chunk(self, first: int) -> _Chunk:
        steps = max(1, min(_CHUNK_STEPS, _CHUNK_BYTES // max(self.row_bytes, 1)))
        chunk = self._spare.pop() if self._spare else None
        if chunk is None or chunk.stop - chunk.first != steps:  # of a time when fewer columns were known
            size = steps * self.row_bytes + _ROOM_BYTES
            shared = self._pool.take(size) if self._pool is not None and size >= _SHARED_BYTES else None
            chunk = _Chunk(first, steps, shared, self._pool)
        chunk.first, chunk.stop = first, first + steps
        self._chunks.append(chunk)
        self._has_grown = True
        return chunk

    def _add_array(self, chunk: _Chunk, column: int) -> npt.NDArray[Any]:
        known = self.columns[column]
        assert known.dtype is not None  # a cell was checked
        return chunk.add_array(column, known.shape, known.dtype)
