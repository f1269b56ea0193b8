"""Whether what a checkpoint says can be true: files are copied, cut short, and written by others.

The checksums find what happened to the bytes; these checks find what was never right. Nothing of it has been put into a
table then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from topology.nodes.replay.checkpoint_files import CheckpointError
from topology.nodes.replay.layouts import LayoutSpec

__all__ = ["check_counts", "check_layout", "check_parts", "check_rows", "check_table"]

_Array = npt.NDArray[Any]

_COLUMNS = {
    "slots": np.int64,
    "priority": np.float64,
    "times_sampled": np.int32,
    "episode": np.uint64,
    "sampler_order": np.int64,
    "remover_order": np.int64,
}


def _demand(holds: Any, what: str) -> None:
    if not holds:
        raise CheckpointError(f"the checkpoint contradicts itself: {what}")


def check_rows(count: Any, blocks: list[Any], path: str) -> None:
    """The blocks of a column must have the group's rows."""
    _demand(isinstance(count, int), f"{count!r} is no number of rows")
    found = sum(block["shape"][0] for block in blocks)
    _demand(found == count, f"column {path} has {found} of {count} rows")


def check_layout(spec: LayoutSpec, num_columns: int) -> None:
    """Its leaves must be of columns that there are."""
    for leaf in spec.leaves:
        _demand(leaf.column in range(num_columns), f"a leaf of column {leaf.column}, of {num_columns}")
        _demand(all(isinstance(step, int) for step in leaf.steps), f"a leaf of the steps {leaf.steps}")
        _demand(not leaf.squeezed or len(leaf.steps) == 1, f"a single cell of the steps {leaf.steps}")
    _demand(len(spec.paths) == len(spec.leaves) and spec.offsets(), "an item without leaves, or without their paths")


def check_table(name: str, arrays: Mapping[str, _Array]) -> None:
    """The columns of the items must fit together, and each order name every item once."""
    slots, generations = arrays["slots"], arrays["generations"]
    for column, dtype in _COLUMNS.items():
        found = arrays[column]
        _demand(found.dtype == dtype and found.shape == (slots.size,), f"{column} of table {name!r} is {found.shape}")
    _demand(generations.ndim == 1 and generations.dtype == np.uint32, f"generations of table {name!r}")
    rising = not slots.size or (slots[0] >= 0 and slots[-1] < generations.size and (np.diff(slots) > 0).all())
    _demand(rising, f"the slots of table {name!r} are not in order")
    priorities = arrays["priority"]
    _demand((np.isfinite(priorities) & (priorities >= 0)).all(), f"a priority in table {name!r} is none")
    for order in ("sampler_order", "remover_order"):
        _demand(np.array_equal(np.sort(arrays[order]), slots), f"{order} of table {name!r} is not that of its items")
    _demand(arrays["writers"].shape == arrays["taken"].shape, f"writers of table {name!r}")


def check_counts(name: str, counts: Mapping[str, Any], num_items: int) -> None:
    """What came in and did not leave is there."""
    _demand(all(isinstance(n, int) and n >= 0 for n in counts.values()), f"counts of table {name!r} are {counts}")
    size = counts["inserts"] - counts["deletes"]
    _demand(size == num_items, f"table {name!r} has {num_items} items, by its counts {size}")


def check_parts(name: str, parts: list[tuple[int, _Array | None, _Array, int]], num_items: int) -> None:
    """Every item must have its rows, once.

    Args:
        name: of the table.
        parts: steps of an item, which of the items (None: all), their rows, and how many rows there are.
        num_items: of the table.
    """
    owners = [np.arange(num_items) if where is None else where for _, where, _, _ in parts]
    found = np.sort(np.concatenate(owners)) if owners else np.empty(0, np.int64)
    _demand(np.array_equal(found, np.arange(num_items)), f"not every item of table {name!r} has its steps once")
    for (steps, _, rows, num_rows), mine in zip(parts, owners, strict=True):
        _demand(rows.shape == (mine.size, steps), f"the rows of items of table {name!r} are {rows.shape}")
        _demand(not rows.size or (rows.min() >= 0 and rows.max() < num_rows), f"a step of table {name!r} is not there")
