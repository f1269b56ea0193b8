"""Layouts: how the leaves of an item are found in the rows of its steps.

Items that look alike share one layout, and are then read together: a batch of B items is a matrix of rows [B, T], and
each leaf is one gather from one column. An item itself is T row numbers.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np

from topology.nodes.replay.compression import Compression
from topology.nodes.replay.specs import LeafSpec
from topology.nodes.replay.storage import ColumnSpec, RowGroup
from topology.nodes.replay.structure import Path

__all__ = ["Layout", "LayoutSpec", "Leaf", "LeafPattern", "Store"]


class LeafPattern(NamedTuple):
    """One leaf of an item, relative to the item's first step.

    Attributes:
        column: index of the column in the writer's steps.
        steps: steps it takes cells from, counted from the item's first step.
        squeezed: whether it is a single cell without a time axis.
    """

    column: int
    steps: tuple[int, ...]
    squeezed: bool


class LayoutSpec(NamedTuple):
    """A layout as a writer describes it.

    Attributes:
        leaves: one pattern a leaf, in the order of the structure.
        structure_key: text that tells structures apart, the same in every process.
        structure: the pickled structure. The server hands it on and never opens it.
        paths: path of each leaf, for messages.
        of_steps: whether a signature may also be that of one of its steps, as with Reverb's first writer.
        unchecked: whether its items may differ from the signature of their table.
    """

    leaves: tuple[LeafPattern, ...]
    structure_key: str
    structure: bytes
    paths: tuple[Path, ...]
    of_steps: bool = False
    unchecked: bool = False

    def offsets(self) -> list[int]:
        """The distinct steps that the leaves use, in order."""
        return sorted({step for leaf in self.leaves for step in leaf.steps})


class Leaf(NamedTuple):
    """A leaf of a layout.

    Attributes:
        column: its column.
        choice: which of the layout's choices of rows it takes.
        steps: length of its time axis; None when it has none.
    """

    column: int
    choice: int
    steps: int | None


@final
class Layout:
    """How the leaves of alike items are found. Compared by identity: a `Store` makes each only once.

    Attributes:
        group: the rows' group.
        offsets: distinct steps of an item relative to its first, [T].
        choices: positions among the item's rows, [t] each; leaves that take the same rows share one.
        leaves: where each leaf comes from.
        signature: path, shape and dtype of each leaf.
        of_steps, unchecked: see `LayoutSpec`.
        item_bytes: bytes of the leaves of one item.
        item_steps: steps of its longest leaf.
        paths: path of each leaf.
        merge_key: layouts of equal key give batches that can be one: same structure, shapes and dtypes.
    """

    __slots__ = (
        "__weakref__",
        "choices",
        "group",
        "item_bytes",
        "item_steps",
        "leaves",
        "merge_key",
        "of_steps",
        "offsets",
        "paths",
        "signature",
        "structure",
        "structure_key",
        "unchecked",
    )

    def __init__(self, group: RowGroup, spec: LayoutSpec) -> None:
        offsets = spec.offsets()
        place = {step: position for position, step in enumerate(offsets)}
        choices = list(dict.fromkeys(pattern.steps for pattern in spec.leaves))
        self.group = group
        self.offsets = np.array(offsets, np.int64)
        self.choices = [np.array([place[step] for step in steps], np.int64) for steps in choices]
        self.leaves = tuple(
            Leaf(pattern.column, choices.index(pattern.steps), None if pattern.squeezed else len(pattern.steps))
            for pattern in spec.leaves
        )
        self.structure_key = spec.structure_key
        self.structure = spec.structure
        self.signature: tuple[LeafSpec, ...] = tuple(
            (path, _leaf_shape(group.specs[leaf.column], leaf), group.specs[leaf.column].dtype)
            for path, leaf in zip(spec.paths, self.leaves, strict=True)
        )
        self.paths = spec.paths
        self.of_steps, self.unchecked = spec.of_steps, spec.unchecked
        self.item_bytes = sum(math.prod(shape) * dtype.itemsize for _, shape, dtype in self.signature)
        self.item_steps = max((leaf.steps or 1 for leaf in self.leaves), default=1)
        self.merge_key = (spec.structure_key, tuple((shape, dtype) for _, shape, dtype in self.signature))

    @property
    def spec(self) -> LayoutSpec:
        """The layout as a writer would describe it."""
        steps = [tuple(self.offsets[choice].tolist()) for choice in self.choices]
        leaves = tuple(LeafPattern(leaf.column, steps[leaf.choice], leaf.steps is None) for leaf in self.leaves)
        return LayoutSpec(leaves, self.structure_key, self.structure, self.paths, self.of_steps, self.unchecked)


def _leaf_shape(column: ColumnSpec, leaf: Leaf) -> tuple[int, ...]:
    return column.shape if leaf.steps is None else (leaf.steps, *column.shape)


@final
class Store:
    """The row groups and layouts of one server, shared by its tables and writers. Thread-safe.

    It knows those that somebody else holds: a writer's stream, a table with such items, a sample on its way.
    """

    def __init__(self, compression: Compression | None = None) -> None:
        self._compression = compression
        self._lock = threading.Lock()
        self._groups: weakref.WeakValueDictionary[tuple[Any, ...], RowGroup] = weakref.WeakValueDictionary()
        self._layouts: weakref.WeakValueDictionary[tuple[Any, ...], Layout] = weakref.WeakValueDictionary()

    @property
    def live_rows(self) -> int:
        """Steps that something refers to."""
        with self._lock:
            groups = list(self._groups.values())
        return sum(group.live_rows for group in groups)

    def group(self, specs: Sequence[ColumnSpec]) -> RowGroup:
        """The group of steps with these columns."""
        key = tuple(specs)
        with self._lock:
            found = self._groups.get(key)
            if found is None:
                found = self._groups[key] = RowGroup(specs, self._compression)
            return found

    def layout(self, group: RowGroup, spec: LayoutSpec) -> Layout:
        """The layout of items that are described by `spec`, over the steps of `group`."""
        key = (id(group), spec.leaves, spec.structure_key, spec.of_steps, spec.unchecked)
        with self._lock:
            found = self._layouts.get(key)
            if found is None:
                found = self._layouts[key] = Layout(group, spec)
            return found
