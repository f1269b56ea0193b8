"""Experience as items of a replay table, and back.

An item has a head, which is a piece of JSON in an array of bytes, and the columns as they are, except for dtypes that
replay does not keep as memory (dates, text, bfloat16, ...): these travel as bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from topology.errors import StoreDataError
from topology.nodes import replay
from topology.nodes.replay.messages import SampleBatch
from topology.nodes.store.codec import Array, check_meta
from topology.nodes.store.dtypes import dtype_of
from topology.nodes.store.experience import Experience, check_columns
from topology.nodes.store.parcel import Parcel

__all__ = ["Item", "Packed", "items_of", "pack"]

_HEAD_BYTES = 256  # heads are filled up to a multiple, so that most have one shape
_AS_THEY_ARE = "biufc"


class Packed(NamedTuple):
    """What a writer appends: a step with the head, then the steps of the experience.

    Attributes:
        form: equal for what one writer of replay can write.
    """

    head: Array
    columns: dict[str, Array]
    steps: int

    @property
    def form(self) -> tuple[Any, ...]:
        return self.head.size, *((column.dtype.str, column.shape[1:]) for column in self.columns.values())


class Item(NamedTuple):
    """An experience in the table.

    Attributes:
        key: of the item.
        delivered: whether a reader has got it before.
    """

    experience: Experience
    steps: int
    nbytes: int
    key: int
    delivered: bool

    @property
    def whole_episode(self) -> bool:
        return self.experience.whole_episode


def pack(parcel: Parcel, id_: str) -> Packed:
    """A parcel as an item."""
    names, columns = [], {}
    for number, (name, column) in enumerate(parcel.columns.items()):
        array = np.ascontiguousarray(column)
        text = None
        if array.dtype.kind not in _AS_THEY_ARE:
            text = array.dtype.str if array.dtype.kind != "V" else array.dtype.name
            array = array.view("u1").reshape(*array.shape, array.dtype.itemsize)
        names.append([name, text])
        columns[f"{number:04}"] = array
    head = json.dumps([id_, parcel.whole_episode, parcel.meta, names]).encode()
    head += b" " * (-len(head) % _HEAD_BYTES)
    return Packed(np.frombuffer(head, "u1"), columns, parcel.steps)


def items_of(client: replay.Client, batch: SampleBatch) -> list[Item]:
    """The items of a batch, in its order. The columns are views of it, and read-only.

    Raises:
        StoreDataError: an item is not what `pack` makes.
    """
    items: dict[int, Item] = {}
    for group in batch.groups:
        data = client.assemble(batch._replace(groups=[group])).data
        positions = range(batch.keys.size) if group.positions is None else group.positions.tolist()
        for row, position in enumerate(positions):
            try:
                experience = _experience(data["head"][row].tobytes(), data["columns"], row)
            except (KeyError, TypeError, ValueError, IndexError) as error:
                raise StoreDataError(f"an item of the memory's table was not stored as experience: {error}") from error
            nbytes = sum(column.nbytes for column in experience.columns.values())
            key, delivered = int(batch.keys[position]), bool(batch.priorities[position])
            items[position] = Item(experience, experience.steps, nbytes, key, delivered)
    return [items[position] for position in sorted(items)]


def _experience(head: bytes, columns: dict[str, Array], row: int) -> Experience:
    id_, whole_episode, meta, names = json.loads(head)
    arrays = dict(_columns(names, columns, row))
    check_columns(arrays)
    return Experience(arrays, check_meta(meta), bool(whole_episode), str(id_))


def _columns(names: list[tuple[str, str | None]], columns: dict[str, Array], row: int) -> Iterator[tuple[str, Array]]:
    for number, (name, text) in enumerate(names):
        array: Array = columns[f"{number:04}"][row]
        if text is not None:
            array = np.ascontiguousarray(array).view(dtype_of(text)).reshape(array.shape[:-1])
        array.setflags(write=False)
        yield name, array
