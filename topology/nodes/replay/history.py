"""The columns of a writer's history, and the trajectories that are built by indexing them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, final

import cloudpickle
import numpy as np
import numpy.typing as npt

from topology.nodes.replay.layouts import LayoutSpec, LeafPattern
from topology.nodes.replay.step_buffer import StepBuffer, Steps
from topology.nodes.replay.structure import Path, Shape, describe, paths, show_path

__all__ = ["ColumnHistory", "Span", "Spans", "TrajectoryColumn", "layout_of", "pattern_of"]

_MOST_FORMS = 1024
_FORM_STRIDE = 1 << 32  # so that the sum of a form and a column tells both


@final
class Span:
    """The steps that an index means, for all columns of a writer.

    Attributes:
        buffer: the writer's steps.
        at: the newest step's number + 1 when the span was made.
        origin: the step that index 0 meant then.
        steps: the steps, counted from the writer's first.
        is_squeezed: whether the index was an int.
        first: the earliest of the steps; with `last`, the latest, it makes an empty range when there are none.
        form: equal for spans that are alike relative to `at`; a multiple of a number above all columns.
        has_expired: whether a step is older than the writer keeps.
    """

    __slots__ = ("at", "buffer", "first", "form", "has_expired", "is_squeezed", "last", "origin", "steps")

    def __init__(self, buffer: StepBuffer, steps: Steps, is_squeezed: bool, form: int) -> None:
        self.buffer = buffer
        self.at = buffer.next_step
        self.origin = buffer.history_first
        self.steps = steps
        self.is_squeezed = is_squeezed
        self.form = form
        self.first, self.last = 1, 0
        if steps:
            first, last = (steps[0], steps[-1]) if type(steps) is range else (min(steps), max(steps))
            self.first, self.last = (first, last) if first <= last else (last, first)
        self.has_expired = bool(steps) and self.first < buffer.first_alive


@final
class Spans:
    """Makes spans, each once a step: an item takes the same steps of most of its columns. Not thread-safe.

    Attributes:
        known: by index, those made lately; valid while `at` and `origin` are the buffer's.

    Args:
        buffer: the writer's steps.
        clips: whether an index that reaches back beyond the history means what is there of it, as in a list; otherwise
            it is refused.
    """

    def __init__(self, buffer: StepBuffer, *, clips: bool = True) -> None:
        self._buffer = buffer
        self._clips = clips
        self._form_of: dict[tuple[Any, ...], int] = {}
        self._next_form = itertools.count(0, _FORM_STRIDE)
        self.known: dict[Any, Span] = {}

    def find(self, index: int | tuple[Any, Any, Any]) -> Span:
        """The span of an int, or of a slice given as (start, stop, step).

        Raises:
            IndexError: the history has no such step.
            ValueError: it reaches back beyond the history, and that is refused.
        """
        buffer = self._buffer
        span = self.known.get(index)
        if span is not None and span.at == buffer.next_step and span.origin == buffer.history_first:
            return span
        if len(self.known) >= _MOST_FORMS:
            self.known.clear()
        steps = range(buffer.history_first, buffer.next_step)
        if not self._clips:
            _refuse_what_is_beyond(steps, index)
        if isinstance(index, tuple):
            span = self.make(steps[slice(*index)])
        else:
            span = self.make(range(steps[index], steps[index] + 1), is_squeezed=True)
        self.known[index] = span
        return span

    def make(self, steps: Steps, *, is_squeezed: bool = False) -> Span:
        """The span of any steps."""
        buffer = self._buffer
        if type(steps) is range:
            at = buffer.next_step
            shape: tuple[Any, ...] = (steps.start - at, steps.stop - at, steps.step, is_squeezed)
        else:
            shape = (tuple([step - buffer.next_step for step in steps]), is_squeezed)
        form = self._form_of.get(shape)
        if form is None:
            if len(self._form_of) >= _MOST_FORMS:
                self._form_of.clear()
            form = self._form_of[shape] = next(self._next_form)
        return Span(buffer, steps, is_squeezed, form)


def _refuse_what_is_beyond(steps: range, index: int | tuple[Any, Any, Any]) -> None:
    start = index[0] if isinstance(index, tuple) else index
    if start is not None and start < -len(steps):
        raise ValueError(
            f"a column of a trajectory cannot contain None: index {start} reaches back beyond the {len(steps)} steps "
            "of the history"
        )


@final
class ColumnHistory:
    """One column of `history`: index it as a list of the column's cells, to build a `TrajectoryColumn`.

    An int gives a single cell without time axis, a slice or a list of ints several with it. Negative indices count from
    the newest step, which may still be open.
    """

    __slots__ = ("_buffer", "_column", "_known", "_spans")

    def __init__(self, buffer: StepBuffer, spans: Spans, column: int) -> None:
        self._buffer = buffer
        self._spans = spans
        self._known = spans.known
        self._column = column

    def __len__(self) -> int:
        return self._buffer.next_step - self._buffer.history_first

    def __getitem__(self, index: int | slice | Sequence[int]) -> TrajectoryColumn:
        if type(index) is slice:
            key, buffer = (index.start, index.stop, index.step), self._buffer
            span = self._known.get(key)
            if span is None or span.at != buffer.next_step or span.origin != buffer.history_first:
                span = self._spans.find(key)
            return TrajectoryColumn(self._column, span, self._spans)
        if isinstance(index, int | np.integer):
            try:
                return TrajectoryColumn(self._column, self._spans.find(int(index)), self._spans)
            except IndexError:
                message = f"{self}: index {index} is out of range, the history has {len(self)} steps"
                raise IndexError(message) from None
        if not isinstance(index, list | tuple | np.ndarray):
            raise TypeError(f"{self}: indices are ints, slices or lists of ints, got {type(index).__name__}")
        steps = range(self._buffer.history_first, self._buffer.next_step)
        return TrajectoryColumn(self._column, self._spans.make(tuple([steps[i] for i in index])), self._spans)

    def __iter__(self) -> Iterator[TrajectoryColumn | None]:
        """Every cell; None for those that were never set."""
        known, first = self._buffer.columns[self._column], self._buffer.history_first
        return (self[i] if known.has(first + i) else None for i in range(len(self)))

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
        column: index of the column among those of its writer.
        span: the steps it has cells of.

    Raises:
        ValueError: a cell was never set, or its step is older than the writer keeps (`num_keep_alive_refs`).
    """

    __slots__ = ("_spans", "column", "span")

    def __init__(self, column: int, span: Span, spans: Spans) -> None:
        self.column = column
        self.span = span
        self._spans = spans
        known = span.buffer.columns[column]
        if span.last > known.last or span.has_expired or known.gaps:
            self._check()

    @classmethod
    def of_cells(cls, cells: Sequence[TrajectoryColumn], *, squeeze: bool = False) -> TrajectoryColumn:
        """The column that has the cells of several columns, one after the other.

        Args:
            cells: at least one; all of one column of one writer.
            squeeze: whether the result is a single cell without time axis.

        Raises:
            ValueError: they are of several columns.
        """
        first = cells[0]
        if any(cell.column != first.column or cell.span.buffer is not first.span.buffer for cell in cells):
            raise ValueError(f"the cells of one column are of one column of the history, got {list(cells)}")
        steps = tuple(step for cell in cells for step in cell.span.steps)
        spans = first._spans  # noqa: SLF001 - of this class
        return cls(first.column, spans.make(steps, is_squeezed=squeeze), spans)

    def _check(self) -> None:
        span, buffer = self.span, self.span.buffer
        known = buffer.columns[self.column]
        expired = [step for step in span.steps if step < buffer.first_alive]
        if expired:
            raise ValueError(
                f"column {show_path(known.path)}: {len(expired)} of the steps asked for have expired; "
                f"only the latest {buffer.next_step - buffer.first_alive} can be used, "
                "see num_keep_alive_refs"
            )
        unset = [step - buffer.history_first for step in span.steps if not known.has(step)]
        if unset:
            raise ValueError(f"column {show_path(known.path)} has no value (None) in the steps {unset} of the history")

    def __len__(self) -> int:
        return len(self.span.steps)

    def __getitem__(self, index: int | slice | list[int]) -> TrajectoryColumn:
        steps = self.span.steps
        if isinstance(index, int | np.integer):
            try:
                step = steps[int(index)]
            except IndexError:
                raise IndexError(f"{self}: index {index} is out of range, it has {len(steps)} steps") from None
            span = self._spans.make(range(step, step + 1), is_squeezed=True)
        elif isinstance(index, slice):
            span = self._spans.make(steps[index])
        else:
            span = self._spans.make(tuple([steps[i] for i in index]))
        return TrajectoryColumn(self.column, span, self._spans)

    @property
    def is_squeezed(self) -> bool:
        """Whether it is a single cell without time axis."""
        return self.span.is_squeezed

    @property
    def path(self) -> Path:
        """Path of the column in the steps."""
        return self.span.buffer.columns[self.column].path

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of `numpy()`."""
        cell = self.span.buffer.columns[self.column].shape
        return cell if self.span.is_squeezed else (len(self), *cell)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of `numpy()`."""
        dtype = self.span.buffer.columns[self.column].dtype
        if dtype is None:
            raise ValueError(f"column {show_path(self.path)} has no value yet, so no dtype")
        return dtype

    def numpy(self) -> npt.NDArray[Any]:
        """The cells, copied: [n, *shape], or [*shape] of a single one taken by an int.

        Raises:
            RuntimeError: a step has expired since.
        """
        span, buffer = self.span, self.span.buffer
        if span.steps and span.first < buffer.first_alive:
            raise RuntimeError(f"column {show_path(self.path)}: a step has expired, see num_keep_alive_refs")
        cells = buffer.read(self.column, span.steps)
        return cells[0] if span.is_squeezed else cells

    def __repr__(self) -> str:
        return f"<TrajectoryColumn {show_path(self.path)} {list(self.span.steps)}>"


def pattern_of(leaf: TrajectoryColumn, base: int) -> tuple[Any, ...]:
    """What two leaves have in common that take the same cells relative to their items' first steps."""
    steps = leaf.span.steps
    if type(steps) is range:
        return leaf.column, steps.start - base, steps.stop - base, steps.step, leaf.is_squeezed
    return leaf.column, tuple([step - base for step in steps]), leaf.is_squeezed


def layout_of(shape: Shape, leaves: Sequence[TrajectoryColumn], base: int) -> LayoutSpec:
    """The layout of items with that structure and these leaves, relative to the step `base`."""
    patterns = tuple(
        LeafPattern(leaf.column, tuple(step - base for step in leaf.span.steps), leaf.is_squeezed) for leaf in leaves
    )
    return LayoutSpec(patterns, describe(shape), cloudpickle.dumps(shape), tuple(paths(shape)))
