"""The structure of a writer's history: the union of the structures of all steps, with a column at every leaf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from topology.nodes.replay.history import ColumnHistory, Spans
from topology.nodes.replay.step_buffer import StepBuffer
from topology.nodes.replay.structure import Matcher, Path, Shape, flatten, paths, show_path, unflatten

__all__ = ["Template"]


@final
class Template:
    """Maps structures of steps to columns, and makes new columns for new leaves. Not thread-safe.

    Args:
        buffer: the writer's steps.
        clips: see `Spans`.
    """

    def __init__(self, buffer: StepBuffer, *, clips: bool = True) -> None:
        self._buffer = buffer
        self._union: Shape = None
        self._column_of: dict[Path, int] = {}
        self._plans: dict[Shape, list[int]] = {}
        self._history: Any = None
        self._spans = Spans(buffer, clips=clips)
        self._latest = Matcher(None)
        self._latest_plan: list[int] | None = None

    def open(self, step: Any) -> tuple[Sequence[Any], list[int]]:
        """The leaves of a step, and the column of each. The list of columns is the same object for the same structure.

        Raises:
            ValueError: a container there is of another type, or a leaf, in earlier steps.
        """
        leaves = self._latest.leaves(step)
        if leaves is not None and self._latest_plan is not None:
            return leaves, self._latest_plan
        leaves, shape = flatten(step)
        plan = self._plans.get(shape)
        if plan is None:
            plan = self._add(shape)
        self._latest, self._latest_plan = Matcher(shape), plan
        return leaves, plan

    def path_text(self, column: int) -> str:
        """The column's path, for messages."""
        return show_path(self._buffer.columns[column].path)

    @property
    def history(self) -> Any:
        """A `ColumnHistory` at every leaf of the union.

        Raises:
            RuntimeError: nothing was appended yet.
        """
        if not self._plans:
            raise RuntimeError("history cannot be read before append was called at least once")
        if self._history is None:
            leaves = [ColumnHistory(self._buffer, self._spans, self._column_of[path]) for path in paths(self._union)]
            self._history = unflatten(self._union, leaves)
        return self._history

    def _add(self, shape: Shape) -> list[int]:
        self._union = _union(self._union, shape, ()) if self._plans else shape
        for path in paths(shape):
            if path not in self._column_of:
                self._column_of[path] = self._buffer.add_column(path)
        self._history = None
        plan = self._plans[shape] = [self._column_of[path] for path in paths(shape)]
        return plan


def _union(old: Shape, new: Shape, path: Path) -> Shape:
    if old == new:
        return old
    if old is None or new is None or old[0] is not new[0]:
        raise ValueError(f"{show_path(path)}: earlier steps have {_kind(old)} there, the new step {_kind(new)}")
    kind, old_keys, old_shapes = old
    before, after = dict(zip(old_keys, old_shapes, strict=True)), dict(zip(new[1], new[2], strict=True))
    keys = [*old_keys, *(key for key in new[1] if key not in before)]
    if issubclass(kind, dict):
        keys.sort()
    shapes = [
        _union(before[key], after[key], (*path, key))
        if key in before and key in after
        else before.get(key, after.get(key))
        for key in keys
    ]
    return kind, tuple(keys), tuple(shapes)


def _kind(shape: Shape) -> str:
    return "a value" if shape is None else f"a {shape[0].__name__}"
