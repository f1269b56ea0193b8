"""From tables to a checkpoint and back."""

from __future__ import annotations

import base64
import dataclasses
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from topology.nodes.replay.checkpoint_files import (
    ArrayReader,
    ArrayWriter,
    CheckpointError,
    dtype_of,
    name_of_dtype,
    open_arrays,
    read_index,
    write_index,
)
from topology.nodes.replay.core import Counts, TableCore, count_each
from topology.nodes.replay.items import ItemsState, RowMatrix
from topology.nodes.replay.layouts import Layout, LayoutSpec, LeafPattern, Store
from topology.nodes.replay.soundness import check_counts, check_layout, check_parts, check_rows, check_table
from topology.nodes.replay.storage import ColumnSpec, RowGroup
from topology.nodes.replay.structure import Path as Keys
from topology.nodes.replay.structure import show_path
from topology.nodes.replay.table import Table

__all__ = ["restore", "save"]

_BLOCK_BYTES = 64 << 20
_Array = npt.NDArray[Any]


class _Snapshot(NamedTuple):
    """A table at one moment. Holds a reference to each row."""

    settings: dict[str, Any]
    counts: Counts
    rng: dict[str, Any]
    items: ItemsState
    sampler_order: _Array
    remover_order: _Array
    taken: dict[int, int]

    def release(self) -> None:
        for layout, _, rows in self.items.parts:
            layout.group.release(rows)


# --- saving ----------------------------------------------------------------------------------------------------------


def save(tables: Mapping[str, Table], folder: Path, time_s: float) -> None:
    """Writes the tables into a directory. Each stands still only while its indices are copied.

    Raises:
        OSError: the disk refused.
    """
    snapshots: dict[str, _Snapshot] = {}
    try:
        for name, table in tables.items():
            snapshots[name] = _take(table)
        with open_arrays(folder) as file:
            index = _Saver(ArrayWriter(file)).save(snapshots)
            file.flush()
            os.fsync(file.fileno())
        write_index(folder, {"time_s": time_s, **index})
    finally:
        for snapshot in snapshots.values():
            snapshot.release()


def _take(table: Table) -> _Snapshot:
    with table.locked() as core:
        items = core.items.state
        for layout, _, rows in items.parts:
            layout.group.retain(rows)
        return _Snapshot(
            _settings(core),
            core.counts,
            core.rng_state,
            items,
            core.sampler.order(),
            core.remover.order(),
            dict(core.taken),
        )


def _settings(core: TableCore) -> dict[str, Any]:
    options = core.options
    return {
        "sampler": dataclasses.asdict(options.sampler.options),
        "remover": dataclasses.asdict(options.remover.options),
        "max_size": options.max_size,
        "max_times_sampled": options.max_times_sampled,
        "rate_limiter": repr(options.rate_limiter),
    }


@final
class _Saver:
    """Writes each group of rows once, numbered anew without gaps, and then what refers to them."""

    def __init__(self, writer: ArrayWriter) -> None:
        self._writer = writer

    def save(self, snapshots: Mapping[str, _Snapshot]) -> dict[str, Any]:
        layouts = list(dict.fromkeys(part[0] for snapshot in snapshots.values() for part in snapshot.items.parts))
        groups = list(dict.fromkeys(layout.group for layout in layouts))
        rows_of = {group: _rows(group, snapshots.values()) for group in groups}
        return {
            "groups": [self._group(group, rows_of[group]) for group in groups],
            "layouts": [_layout_entry(layout, groups.index(layout.group)) for layout in layouts],
            "tables": {name: self._table(snapshot, layouts, rows_of) for name, snapshot in snapshots.items()},
        }

    def _group(self, group: RowGroup, rows: npt.NDArray[np.int64]) -> dict[str, Any]:
        columns = []
        for spec, column in zip(group.specs, group.columns, strict=True):
            blocks = []
            step = max(1, _BLOCK_BYTES // max(column.cell_bytes, 64))
            for first in range(0, rows.size, step):
                some = rows[first : first + step]
                cells = np.empty((some.size, *spec.shape), spec.dtype)
                column.read(some, cells)
                blocks.append(self._writer.put(cells))
            columns.append(
                {
                    "path": [key if isinstance(key, int | str) else str(key) for key in spec.path],
                    "dtype": name_of_dtype(spec.dtype),
                    "shape": spec.shape,
                    "blocks": blocks,
                }
            )
        return {"rows": rows.size, "columns": columns}

    def _table(
        self, snapshot: _Snapshot, layouts: list[Layout], rows_of: Mapping[RowGroup, npt.NDArray[np.int64]]
    ) -> dict[str, Any]:
        put, items = self._writer.put, snapshot.items
        return {
            "settings": snapshot.settings,
            "counts": snapshot.counts._asdict(),
            "rng": snapshot.rng,
            "arrays": {
                **{name: put(getattr(items, name)) for name in ItemsState._fields if name != "parts"},
                "sampler_order": put(snapshot.sampler_order),
                "remover_order": put(snapshot.remover_order),
                "writers": put(np.array(list(snapshot.taken.keys()), np.uint64)),
                "taken": put(np.array(list(snapshot.taken.values()), np.int64)),
            },
            "parts": [
                {
                    "layout": layouts.index(layout),
                    "where": None if where is None else put(where),
                    "rows": put(np.searchsorted(rows_of[layout.group], rows).astype(np.int32)),
                }
                for layout, where, rows in items.parts
            ],
        }


def _rows(group: RowGroup, snapshots: Any) -> npt.NDArray[np.int64]:
    """The rows of a group that items use, ascending, each once."""
    used = [part[2].ravel() for snapshot in snapshots for part in snapshot.items.parts if part[0].group is group]
    is_used = np.zeros(max(int(rows.max(initial=-1)) for rows in used) + 1, np.bool_)
    for rows in used:
        is_used[rows] = True
    return np.flatnonzero(is_used)


def _layout_entry(layout: Layout, group: int) -> dict[str, Any]:
    spec = layout.spec
    return {
        "group": group,
        "leaves": spec.leaves,
        "structure_key": spec.structure_key,
        "of_steps": spec.of_steps,
        "unchecked": spec.unchecked,
        "structure": base64.b64encode(spec.structure).decode(),
        "paths": [[key if isinstance(key, int | str) else str(key) for key in path] for path in spec.paths],
    }


# --- restoring -------------------------------------------------------------------------------------------------------


def restore(tables: Mapping[str, Table], store: Store, folder: Path) -> None:
    """Fills tables, which must be new, from a directory that `save` wrote.

    Raises:
        CheckpointError: it is damaged, or does not fit the tables.
    """
    index, reader = read_index(folder)
    try:
        _restore(tables, store, folder, index, reader)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(
            f"{folder} is damaged ({type(error).__name__}: {error}); remove the directory to restore the checkpoint "
            "before it, if there is one"
        ) from error
    finally:
        reader.close()


def _restore(
    tables: Mapping[str, Table], store: Store, folder: Path, index: dict[str, Any], reader: ArrayReader
) -> None:
    missing = sorted(index["tables"].keys() - tables.keys())
    if missing:
        raise CheckpointError(
            f"{folder} has the tables {', '.join(missing)}, which this server does not; it has "
            f"{', '.join(sorted(tables))}"
        )
    loaded: list[_Loaded] = []
    try:
        for entry in index["groups"]:
            _load_group(entry, store, reader, loaded)
        layouts = [_load_layout(entry, store, loaded) for entry in index["layouts"]]
        _check(folder, index, tables, layouts)
        contents = {name: _load_items(name, entry, layouts, reader) for name, entry in index["tables"].items()}
        for name, entry in index["tables"].items():
            _fill(tables[name], entry, *contents[name])
    finally:
        for group, rows in loaded:
            group.release(rows)


_Loaded = tuple[RowGroup, npt.NDArray[np.int64]]


def _load_group(entry: dict[str, Any], store: Store, reader: ArrayReader, loaded: list[_Loaded]) -> None:
    """Writes rows into the store; adds their numbers there to `loaded`, each with a reference."""
    columns = entry["columns"]
    for each in columns:
        check_rows(entry["rows"], each["blocks"], show_path(_keys(each["path"])))
    group = store.group(
        [ColumnSpec(_keys(each["path"]), dtype_of(each["dtype"]), tuple(each["shape"])) for each in columns]
    )
    rows = group.take(entry["rows"])
    loaded.append((group, rows))
    for column, described in zip(group.columns, columns, strict=True):
        first = 0
        for block in described["blocks"]:
            cells = reader.get(block)
            if cells.dtype != column.dtype or cells.shape[1:] != column.shape:
                raise ValueError(f"cells {cells.dtype}{list(cells.shape[1:])} in column {described['path']}")
            column.write(rows[first : first + len(cells)], cells)
            first += len(cells)


def _keys(path: Sequence[Any]) -> Keys:
    return tuple(path)


def _load_layout(entry: dict[str, Any], store: Store, loaded: Sequence[_Loaded]) -> tuple[Layout, _Loaded]:
    found = loaded[entry["group"]]
    leaves = tuple(LeafPattern(column, tuple(steps), squeezed) for column, steps, squeezed in entry["leaves"])
    structure = base64.b64decode(entry["structure"], validate=True)
    item_paths = tuple(_keys(path) for path in entry["paths"])
    spec = LayoutSpec(
        leaves,
        entry["structure_key"],
        structure,
        item_paths,
        entry.get("of_steps", False),
        entry.get("unchecked", False),
    )
    check_layout(spec, len(found[0].columns))
    return store.layout(found[0], spec), found


def _check(
    folder: Path, index: dict[str, Any], tables: Mapping[str, Table], layouts: Sequence[tuple[Layout, _Loaded]]
) -> None:
    for name, entry in index["tables"].items():
        for part in entry["parts"]:
            try:
                layout = layouts[part["layout"]][0]
                tables[name].check_item(layout)
            except ValueError as error:
                raise CheckpointError(
                    f"{folder} has items that the table's signature does not admit: {error}. Start with the old "
                    "signature, or with another checkpoint directory"
                ) from error


_Parts = list[tuple[Layout, npt.NDArray[np.int64] | None, RowMatrix]]


def _load_items(
    name: str, entry: dict[str, Any], layouts: Sequence[tuple[Layout, _Loaded]], reader: ArrayReader
) -> tuple[dict[str, _Array], _Parts]:
    """What is known of the items of a table, and their rows."""
    arrays = {name: reader.get(each) for name, each in entry["arrays"].items()}
    found = []
    for part in entry["parts"]:
        where = None if part["where"] is None else reader.get(part["where"])
        found.append((*layouts[part["layout"]], where, reader.get(part["rows"])))
    check_table(name, arrays)
    check_counts(name, entry["counts"], arrays["slots"].size)
    sizes = [(layout.offsets.size, where, rows, known.size) for layout, (_, known), where, rows in found]
    check_parts(name, sizes, arrays["slots"].size)
    return arrays, [(layout, where, known[rows].astype(np.int32)) for layout, (_, known), where, rows in found]


def _fill(table: Table, entry: dict[str, Any], arrays: dict[str, _Array], parts: _Parts) -> None:
    with table.locked() as core:
        if core.items.count or core.inserts or core.limiter.inserts:
            raise CheckpointError(f"table {table.name!r} is in use: a checkpoint is restored into new tables only")
        core.rng_state = entry["rng"]
        for layout, _, rows in parts:
            layout.group.retain(rows)
        core.items.state = ItemsState(
            arrays["generations"],
            arrays["slots"],
            arrays["priority"],
            arrays["times_sampled"],
            arrays["episode"],
            parts,
        )
        core.counts = Counts(**entry["counts"])
        core.episodes = Counter(dict(count_each(arrays["episode"])))
        for writer, count in zip(arrays["writers"].tolist(), arrays["taken"].tolist(), strict=True):
            core.note_taken(writer, count)
        _fill_selectors(core, entry["settings"], arrays)
        _apply_limits(core)


def _fill_selectors(core: TableCore, stored: dict[str, Any], arrays: Mapping[str, _Array]) -> None:
    """Each selector gets the items in the order it had, or, if it was another one, in the order of their insertion."""
    orders = {name: arrays[f"{name}_order"] for name in ("sampler", "remover")}
    inserted = next((orders[name] for name in orders if stored[name]["fifo"] or stored[name]["lifo"]), None)
    for name, options, selector in (
        ("sampler", core.options.sampler.options, core.sampler),
        ("remover", core.options.remover.options, core.remover),
    ):
        same = dataclasses.asdict(options) == stored[name]
        order = orders[name] if same or inserted is None else inserted
        if order.size:
            selector.add(order, core.items.priority[order])


def _apply_limits(core: TableCore) -> None:
    """Removes what the settings of today do not allow."""
    limit = core.options.max_times_sampled
    if limit:
        slots = core.items.all_slots()
        used_up = slots[core.items.times_sampled[slots] >= limit]
        if used_up.size:
            core.remove(used_up)
    core.shrink()
