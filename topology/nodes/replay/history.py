"""A writer's own copy of its latest steps, and the columns by which trajectories are built from them.

Steps are counted from 0 over the life of the writer. They lie in chunks of a few hundred KB, one array a column. A
chunk that has been sent is never written to again but for cells that were not set yet, so the bytes that travel are the
very arrays that `append` filled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from topology.nodes.replay.messages import Cells
from topology.nodes.replay.specs import Spec
from topology.nodes.replay.storage import ColumnSpec
from topology.nodes.replay.structure import Path, show_path

__all__ = ["ColumnHistory", "StepBuffer", "Steps", "TrajectoryColumn"]

# Consecutive or evenly spaced steps, or any others.
Steps: TypeAlias = "range | tuple[int, ...]"

_CHUNK_BYTES = 256 << 10
_CHUNK_STEPS = 256


@final
class _Column:
    """What is known of one column: its spec once it has a value, and the steps in which it has none."""

    __slots__ = ("dtype", "gaps", "last", "path", "shape")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.dtype: np.dtype[Any] | None = None
        self.shape: tuple[int, ...] = ()
        self.last = -1  # the latest step with a value
        self.gaps: list[tuple[int, int]] = []  # earlier steps without, as (first, stop)

    def adopt(self, value: npt.NDArray[Any]) -> None:
        if value.dtype.hasobject or value.dtype.kind in "SU":
            raise TypeError(
                f"column {show_path(self.path)}: values of dtype {value.dtype} cannot be stored; "
                "give numbers, booleans, or arrays of them (text can be stored as an array of bytes, dtype uint8)"
            )
        self.dtype, self.shape = value.dtype, value.shape

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
        """Lets go of steps before `step`."""
        while self._chunks and self._chunks[0].stop <= step:
            self._chunks.popleft()
        for column in self.columns:
            if column.gaps and column.gaps[0][1] <= step:
                column.gaps = [gap for gap in column.gaps if gap[1] > step]

    def _add_chunk(self, first: int) -> _Chunk:
        steps = max(1, min(_CHUNK_STEPS, _CHUNK_BYTES // max(self.row_bytes, 1)))
        self._chunks.append(_Chunk(first, steps))
        return self._chunks[-1]

    def _add_array(self, chunk: _Chunk, column: int) -> npt.NDArray[Any]:
        known = self.columns[column]
        # Zeros: cells that are never set travel with their neighbours.
        array = chunk.arrays[column] = np.zeros((chunk.stop - chunk.first, *known.shape), known.dtype)
        return array


@final
class ColumnHistory:
    """One column of `history`: index it as a list of the column's cells, to build a `TrajectoryColumn`.

    An int gives a single cell without time axis, a slice or a list of ints several with it. Negative indices count from
    the newest step, which may still be open.
    """

    __slots__ = ("_buffer", "_column")

    def __init__(self, buffer: StepBuffer, column: int) -> None:
        self._buffer = buffer
        self._column = column

    def __len__(self) -> int:
        return self._buffer.next_step - self._buffer.history_first

    def __getitem__(self, index: int | slice | Sequence[int]) -> TrajectoryColumn:
        buffer = self._buffer
        first, stop = buffer.history_first, buffer.next_step
        steps: Steps
        if type(index) is slice:
            return TrajectoryColumn(buffer, self._column, range(first, stop)[index])
        if isinstance(index, int | np.integer):
            chosen = int(index) + (first if index >= 0 else stop)
            if not first <= chosen < stop:
                raise IndexError(f"{self}: index {index} is out of range, the history has {stop - first} steps")
            return TrajectoryColumn(buffer, self._column, range(chosen, chosen + 1), True)
        if isinstance(index, list | tuple | np.ndarray):
            steps = tuple(range(first, stop)[i] for i in index)
        else:
            raise TypeError(f"{self}: indices are ints, slices or lists of ints, got {type(index).__name__}")
        return TrajectoryColumn(buffer, self._column, steps)

    def __iter__(self) -> Iterator[TrajectoryColumn]:
        return (self[i] for i in range(len(self)))

    @property
    def path(self) -> Path:
        """Path of the column in the steps."""
        return self._buffer.columns[self._column].path

    def __repr__(self) -> str:
        return f"<history of column {show_path(self.path)}>"


@final
class TrajectoryColumn:
    """Cells of one column: a leaf of a trajectory. Made by indexing `history`, and by indexing another one.

    Attributes:
        buffer: the writer's steps.
        column: index of the column there.
        steps: the steps, counted from the writer's first.
        is_squeezed: whether it is a single cell without time axis.
        first: the earliest of the steps; with `last`, the latest, it makes an empty range when there are none.

    Raises:
        ValueError: a cell was never set, or its step is older than the writer keeps (`num_keep_alive_refs`).
    """

    __slots__ = ("buffer", "column", "first", "is_squeezed", "last", "steps")

    def __init__(self, buffer: StepBuffer, column: int, steps: Steps, is_squeezed: bool = False) -> None:
        self.buffer = buffer
        self.column = column
        self.steps = steps
        self.is_squeezed = is_squeezed
        if not steps:
            self.first, self.last = 1, 0
            return
        if type(steps) is range:
            first, last = steps[0], steps[-1]
            self.first, self.last = (first, last) if first <= last else (last, first)
        else:
            self.first, self.last = min(steps), max(steps)
        known = buffer.columns[column]
        if self.first < buffer.first_alive or self.last > known.last or known.gaps:
            self._check(known)

    def _check(self, known: _Column) -> None:
        expired = [step for step in self.steps if step < self.buffer.first_alive]
        if expired:
            raise ValueError(
                f"column {show_path(known.path)}: {len(expired)} of the steps asked for have expired; "
                f"only the latest {self.buffer.next_step - self.buffer.first_alive} can be used, "
                "see num_keep_alive_refs"
            )
        unset = [step - self.buffer.history_first for step in self.steps if not known.has(step)]
        if unset:
            raise ValueError(f"column {show_path(known.path)} has no value (None) in the steps {unset} of the history")

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, index: int | slice | list[int]) -> TrajectoryColumn:
        if isinstance(index, int):
            return TrajectoryColumn(self.buffer, self.column, (self.steps[index],), True)
        if isinstance(index, slice):
            return TrajectoryColumn(self.buffer, self.column, self.steps[index])
        return TrajectoryColumn(self.buffer, self.column, tuple(self.steps[i] for i in index))

    @property
    def path(self) -> Path:
        """Path of the column in the steps."""
        return self.buffer.columns[self.column].path

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of `numpy()`."""
        cell = self.buffer.columns[self.column].shape
        return cell if self.is_squeezed else (len(self.steps), *cell)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of `numpy()`."""
        dtype = self.buffer.columns[self.column].dtype
        if dtype is None:
            raise ValueError(f"column {show_path(self.path)} has no value yet, so no dtype")
        return dtype

    def numpy(self) -> npt.NDArray[Any]:
        """The cells, copied: [n, *shape], or [*shape] of a single one taken by an int.

        Raises:
            RuntimeError: a step has expired since.
        """
        if self.steps and self.first < self.buffer.first_alive:
            raise RuntimeError(f"column {show_path(self.path)}: a step has expired, see num_keep_alive_refs")
        cells = self.buffer.read(self.column, self.steps)
        return cells[0] if self.is_squeezed else cells

    def __repr__(self) -> str:
        return f"<TrajectoryColumn {show_path(self.path)} {list(self.steps)}>"
