"""Experience as items of a replay table, and back.

An item has a row of bytes for each step. Together they are the frame of `codec`, filled up, with its size in the last 8
bytes: so the table can count steps, whatever they are made of, and columns may be packed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topology.errors import StoreDataError
from topology.nodes import replay
from topology.nodes.replay.messages import LentArray, SampleBatch
from topology.nodes.replay.region_pool import RegionPool
from topology.nodes.replay.shared_memory import FIRST_BYTE, view
from topology.nodes.store.codec import MAX_BYTES, Array, decode, encode, size_of
from topology.nodes.store.experience import Experience, common_length
from topology.nodes.store.packing import Packer
from topology.nodes.store.parcel import Parcel

__all__ = ["Frame", "Item", "items_of", "pack"]

_SIZE = np.dtype("<u8")
_LEAST_WIDTH = 32
_SHARED_BYTES = 64 << 10  # less is as fast through the socket
_ID, _EPISODE, _META = "id", "episode", "."  # keys beside the frame's columns; those of its writer begin with a dot


class Frame(NamedTuple):
    """An experience on its way.

    Attributes:
        id: of the experience.
        rows: [T, width] of bytes.
        lent: where the server finds them, if they are in memory that is shared with it: for as long as `rows` lives.
    """

    id: str
    rows: Array
    lent: LentArray | None


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


def pack(parcel: Parcel, id_: str, packer: Packer, width: int, pool: RegionPool | None) -> Frame:
    """A parcel as an item.

    Args:
        parcel: the experience.
        id_: its id.
        packer: says how columns are packed.
        width: of rows, in bytes, to be kept to if that suits.
        pool: of memory shared with the server; None for none.
    """
    nbytes = sum(column.nbytes for column in parcel.columns.values())
    packing = packer.choose() if nbytes <= MAX_BYTES else None  # a reader unpacks no more
    meta = {_ID: id_, _EPISODE: parcel.whole_episode, **{_META + key: value for key, value in parcel.meta.items()}}
    parts = encode(parcel.columns, meta, packing=packing)
    size = size_of(parts)
    if packing is not None:
        packer.note(nbytes, size)
    needed = -(-(size + _SIZE.itemsize) // parcel.steps)
    if not needed <= width <= 2 * needed:
        width = _round_up(needed)
    rows, lent = _room((parcel.steps, width), pool)
    memory, end = rows.reshape(-1), 0
    for part in parts:
        memory[end : end + len(part)] = np.frombuffer(part, "u1")
        end += len(part)
    memory[end:] = 0
    memory[-_SIZE.itemsize :].view(_SIZE)[0] = size
    return Frame(id_, rows, lent)


def _room(shape: tuple[int, int], pool: RegionPool | None) -> tuple[Array, LentArray | None]:
    """Memory for rows, the server's too if it can be."""
    size = shape[0] * shape[1]
    region = pool.take(size) if pool is not None and size >= _SHARED_BYTES else None
    if region is None or pool is None:
        return np.empty(shape, "u1"), None
    rows = view(pool.hold(region), FIRST_BYTE, np.dtype(np.uint8), shape)
    return rows, LentArray(region.address, FIRST_BYTE, rows.dtype, shape)


def _round_up(width: int) -> int:
    """To one of four numbers between powers of two, so that the server sees few."""
    unit = max(_LEAST_WIDTH, 1 << max(width - 1, 1).bit_length() - 1) // 4
    return max(_LEAST_WIDTH, -(-width // unit) * unit)


def items_of(client: replay.Client, batch: SampleBatch) -> list[Item]:
    """The items of a batch, in its order. The columns are views of it where they were not packed, and read-only.

    Raises:
        StoreDataError: an item is not what `pack` makes.
    """
    items: dict[int, Item] = {}
    for group in batch.groups:
        data = client.assemble(batch._replace(groups=[group])).data
        positions = range(batch.keys.size) if group.positions is None else group.positions.tolist()
        for row, position in enumerate(positions):
            try:
                experience = _experience(data[row])
            except (KeyError, TypeError, ValueError, IndexError, StoreDataError) as error:
                raise StoreDataError(f"an item of the memory's table was not stored as experience: {error}") from error
            nbytes = sum(column.nbytes for column in experience.columns.values())
            key, delivered = int(batch.keys[position]), bool(batch.priorities[position])
            items[position] = Item(experience, experience.steps, nbytes, key, delivered)
    return [items[position] for position in sorted(items)]


def _experience(rows: Array) -> Experience:
    memory = rows.reshape(-1)
    memory.setflags(write=False)
    size = int(memory[-_SIZE.itemsize :].view(_SIZE)[0])
    arrays, meta = decode(memory.data[:size], max_bytes=max(MAX_BYTES, size))
    common_length(arrays)
    own = {key[len(_META) :]: value for key, value in meta.items() if key.startswith(_META)}
    return Experience(arrays, own, bool(meta[_EPISODE]), str(meta[_ID]))
