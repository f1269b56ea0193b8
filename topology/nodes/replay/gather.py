"""From picked items to contiguous arrays: the one place where sampled bytes are copied on a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from topology.nodes.replay.items import RowMatrix
from topology.nodes.replay.layouts import Layout
from topology.nodes.replay.messages import SampleBatch, SampleGroup
from topology.nodes.replay.requests import Picks

__all__ = ["Empty", "gather"]


class Empty(Protocol):
    """Makes an array like `np.empty`."""

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]: ...


class _Part(NamedTuple):
    """Items of one layout, and where in the batch they belong."""

    layout: Layout
    where: npt.NDArray[np.int64] | slice
    rows: RowMatrix


def gather(picks: Sequence[Picks], empty: Empty = np.empty) -> SampleBatch:
    """Copies the picked items into arrays, in the order of the picks. Does not release them.

    Args:
        picks: the items.
        empty: makes the arrays.
    """
    total = sum(each.size for each in picks)
    groups: dict[Any, list[_Part]] = {}
    offset = 0
    for each in picks:
        for layout, where, rows in each.parts:
            target = slice(offset, offset + len(rows)) if where is None else where + offset
            groups.setdefault(layout.merge_key, []).append(_Part(layout, target, rows))
        offset += each.size
    if len(groups) == 1:
        (parts,) = groups.values()
        found = [SampleGroup(parts[0].layout.structure, None, _leaves(parts, total, empty))]
    else:
        found = [_scattered(parts, empty) for parts in groups.values()]
    return SampleBatch(
        _joined([each.keys for each in picks]),
        _joined([each.probabilities for each in picks]),
        _joined([np.full(each.size, each.table_size, np.int64) for each in picks]),
        _joined([each.priorities for each in picks]),
        _joined([each.times_sampled for each in picks]),
        found,
    )


def _joined(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _scattered(parts: list[_Part], empty: Empty) -> SampleGroup:
    """A group that is only part of the batch: its items side by side, with their positions in the batch."""
    positions, dense, offset = [], [], 0
    for layout, where, rows in parts:
        positions.append(np.arange(where.start, where.stop) if isinstance(where, slice) else where)
        dense.append(_Part(layout, slice(offset, offset + len(rows)), rows))
        offset += len(rows)
    return SampleGroup(parts[0].layout.structure, _joined(positions), _leaves(dense, offset, empty))


def _leaves(parts: list[_Part], total: int, empty: Empty) -> list[npt.NDArray[Any]]:
    leaves = [empty((total, *shape), dtype) for _, shape, dtype in parts[0].layout.signature]
    for layout, where, rows in parts:
        chosen = [rows.take(positions, 1).astype(np.int64).ravel() for positions in layout.choices]
        for leaf, out in zip(layout.leaves, leaves, strict=True):
            column, source = layout.group.columns[leaf.column], chosen[leaf.choice]
            if not source.size:
                continue
            if isinstance(where, slice):
                column.read(source, out[where].reshape(source.size, *column.shape))
            else:
                some = np.empty((source.size, *column.shape), column.dtype)
                column.read(source, some)
                out[where] = some.reshape(len(rows), *out.shape[1:])
    return leaves
