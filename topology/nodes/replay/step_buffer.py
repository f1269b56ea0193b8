"""A writer's own copy of its latest steps.

Steps are counted from 0 over the life of the writer. They lie in chunks of a few hundred KB, one array a column. A
chunk that has been sent is never written to again but for cells that were not set yet, so the bytes that travel are the
very arrays that `append` filled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt

from topology.nodes.replay.messages import Cells
from topology.nodes.replay.specs import Spec
from topology.nodes.replay.storage import ColumnSpec
from topology.nodes.replay.structure import Path, show_path

__all__ = ["StepBuffer", "Steps"]

# Consecutive or evenly spaced steps, or any others.
Steps: TypeAlias = "range | tuple[int, ...]"

_CHUNK_BYTES = 256 << 10
_CHUNK_STEPS = 256
_MOST_SPARE = 4

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

    def adopt(self, value: npt.NDArray[Any]) -> None:
        if value.dtype.hasobject or value.dtype.kind in "SU":
            raise TypeError(
                f"column {show_path(self.path)}: values of dtype {value.dtype} cannot be stored; "
                "give numbers, booleans, or arrays of them (text can be stored as an array of bytes, dtype uint8)"
            )
        dtype = self.dtype = value.dtype
        self.shape = value.shape
        if not self.shape and np.dtype(dtype.type) == dtype:
            python = _PYTHON_NUMBERS.get(dtype)
            self.plain = (dtype.type,) if python is None else (dtype.type, python)

    def refuse(self, value: npt.NDArray[Any], given: str) -> ValueError:
        assert self.dtype is not None
        return ValueError(
            f"column {show_path(self.path)} holds {Spec(self.shape, self.dtype)}, "
            f"{given} {Spec(value.shape, value.dtype)}"
        )

    def mark(self, first: int, stop: int) -> None:
        """Notes that the steps from `first` to before `stop` have a value now."""
        if first > self.last + 1:
            self.gaps.append((self.last + 1, first))
        self.last = stop - 1

    def has(self, step: int) -> bool:
        return step <= self.last and not any(first <= step < stop for first, stop in self.gaps)


class _Lane(NamedTuple):
    """Where plain values of one column go, within one chunk."""

    array: npt.NDArray[Any]
    column: _Column
    plain: tuple[type, ...]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@final
class _Chunk:
    __slots__ = ("arrays", "first", "stop")

    def __init__(self, first: int, capacity: int) -> None:
        self.first = first
        self.stop = first + capacity
        self.arrays: dict[int, npt.NDArray[Any]] = {}


@final
class StepBuffer:
    """The steps of one writer. Not thread-safe.

    Attributes:
        columns: in the order they were first seen.
        next_step: number of the next new step.
        first_alive: steps before it may not be referred to any more.
        history_first: the step that index 0 of the history means.
        version: grows whenever a column gets its first value.
        row_bytes: bytes of one step, as far as its columns are known.
    """

    def __init__(self) -> None:
        self.columns: list[_Column] = []
        self.next_step = 0
        self.first_alive = 0
        self.history_first = 0
        self.version = 0
        self.row_bytes = 0
        self._chunks: deque[_Chunk] = deque()
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

    def check(self, column: int, value: npt.NDArray[Any], *, batched: bool = False) -> None:
        """Checks a value against its column, or makes it the column's first. With `batched` it has a leading axis.

        Raises:
            TypeError: values of that dtype cannot be stored.
            ValueError: dtype or shape differ from those of earlier values.
        """
        known = self.columns[column]
        cell = value[0] if batched else value
        if known.dtype is None:
            known.adopt(cell)
            self.version += 1
            self.row_bytes += cell.nbytes
        elif cell.dtype != known.dtype or cell.shape != known.shape:
            raise known.refuse(cell, "the new step has")

    def try_append(self, plan: Sequence[int], values: Sequence[Any]) -> bool:
        """Sets the cells of step `next_step` in the columns of `plan`, when that is plain.

        That is so when every value is an array or a number of its column's dtype and shape, and the step before has
        cells in these columns too. Returns whether it was; if not, `set_cells` is needed.
        """
        step = self.next_step
        if (plan is not self._lanes_plan or step >= self._lanes_stop) and not self._open_lanes(plan, step):
            return False
        row = step - self._lanes_first
        if self._lanes_last != step - 1 and not all(lane.column.last == step - 1 for lane in self._lanes):
            return False
        try:
            for (array, _, plain, dtype, shape), value in zip(self._lanes, values, strict=True):
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
        for lane in self._lanes:
            lane.column.last = step
        self._lanes_last = step
        return True

    def _open_lanes(self, plan: Sequence[int], step: int) -> bool:
        chunk = self._chunks[-1] if self._chunks else self._add_chunk(step)
        if step >= chunk.stop:
            chunk = self._add_chunk(step)
        lanes = []
        for number in plan:
            column = self.columns[number]
            if column.dtype is None:
                return False
            array = chunk.arrays.get(number)
            if array is None:
                array = self._add_array(chunk, number)
            lanes.append(_Lane(array, column, column.plain, column.dtype, column.shape))
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

    def cells(self, column: int, position: int, first: int, stop: int) -> Iterator[Cells]:
        """The cells of a column from step `first` to before `stop`, not copied; `position` goes into the message."""
        for chunk in self._chunks:
            low, high = max(first, chunk.first), min(stop, chunk.stop)
            array = chunk.arrays.get(column)
            if low < high and array is not None:
                yield Cells(position, low, array[low - chunk.first : high - chunk.first])

    def read(self, column: int, steps: Steps) -> npt.NDArray[Any]:
        """The cells of a column at `steps`, stacked, [n, *shape]."""
        known = self.columns[column]
        out = np.empty((len(steps), *known.shape), known.dtype)
        for i, step in enumerate(steps):
            chunk = next(chunk for chunk in self._chunks if step < chunk.stop)
            out[i] = chunk.arrays[column][step - chunk.first]
        return out

    def can_drop(self, step: int) -> bool:
        """Whether `drop_before(step)` would free memory."""
        return bool(self._chunks) and self._chunks[0].stop <= step

    def drop_before(self, step: int) -> None:
        """Lets go of steps before `step`, whose cells nobody may read any more."""
        while self._chunks and self._chunks[0].stop <= step:
            chunk = self._chunks.popleft()
            if len(self._spare) < _MOST_SPARE:
                self._spare.append(chunk)
        for column in self.columns:
            if column.gaps and column.gaps[0][1] <= step:
                column.gaps = [gap for gap in column.gaps if gap[1] > step]

    def _add_chunk(self, first: int) -> _Chunk:
        steps = max(1, min(_CHUNK_STEPS, _CHUNK_BYTES // max(self.row_bytes, 1)))
        chunk = self._spare.pop() if self._spare else _Chunk(first, steps)
        if chunk.stop - chunk.first != steps:  # of a time when fewer columns were known
            chunk = _Chunk(first, steps)
        chunk.first, chunk.stop = first, first + steps
        self._chunks.append(chunk)
        return chunk

    def _add_array(self, chunk: _Chunk, column: int) -> npt.NDArray[Any]:
        known = self.columns[column]
        # Zeros: cells that are never set travel with their neighbours.
        array = chunk.arrays[column] = np.zeros((chunk.stop - chunk.first, *known.shape), known.dtype)
        return array
