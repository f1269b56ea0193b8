"""The items of one table: a column for each thing known about an item, by slot.

The key of an item is its slot and how often that slot was used before, so that looking up 256 keys is a few numpy
operations and no dictionary, and the key of an item that is gone is not mistaken for that of another (before the slot
was used 16 million times). The highest byte of a key is zero, for those who must tell servers apart by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from topology.nodes.replay.layouts import Layout
from topology.nodes.replay.storage import Allocator

__all__ = ["Items", "ItemsState", "RowMatrix"]

RowMatrix = npt.NDArray[np.int32]
_Slots = npt.NDArray[np.int64]

_SLOT_BITS = 32
_SLOT_MASK = (1 << _SLOT_BITS) - 1
_GENERATIONS = 1 << 24

_MOST_POOLS = 64  # of which empty ones may be kept: the next items will often be like the last


@final
class _Pool:
    """Row numbers of the items of one layout, [capacity, T]."""

    __slots__ = ("allocator", "layout", "rows")

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.allocator = Allocator()
        self.rows: RowMatrix = np.empty((16, layout.offsets.size), np.int32)

    def add(self, rows: RowMatrix) -> _Slots:
        places = self.allocator.take(len(rows))
        if self.allocator.high > len(self.rows):
            larger = np.empty((max(self.allocator.high, 2 * len(self.rows)), self.rows.shape[1]), np.int32)
            larger[: len(self.rows)] = self.rows
            self.rows = larger
        self.rows[places] = rows
        return places


class ItemsState(NamedTuple):
    """All items at one moment, copied.

    Attributes:
        generations: of every slot ever used.
        slots: of the items, ascending, [n].
        priority, times_sampled, episode: of the items, [n].
        parts: for each layout among them: the layout, which of the items have it (None: all), their rows [k, T].
    """

    generations: npt.NDArray[np.uint32]
    slots: npt.NDArray[np.int64]
    priority: npt.NDArray[np.float64]
    times_sampled: npt.NDArray[np.int32]
    episode: npt.NDArray[np.uint64]
    parts: list[tuple[Layout, npt.NDArray[np.int64] | None, RowMatrix]]


@final
class Items:
    """Items by slot. Not thread-safe; the table's lock is held around every method.

    Attributes:
        priority: by slot, float64.
        times_sampled: by slot, int32.
        count: number of items.
        steps: steps of all of them.
    """

    def __init__(self, first_generation: int = 0) -> None:
        self.priority = np.zeros(16)
        self.times_sampled = np.zeros(16, np.int32)
        self.count = 0
        self.steps = 0
        self._first_generation = first_generation % _GENERATIONS
        self._generation = np.full(16, self._first_generation, np.uint32)
        self._episode = np.zeros(16, np.uint64)
        self._pool = np.full(16, -1, np.int32)  # -1: no item in this slot
        self._place = np.zeros(16, np.int32)
        self._allocator = Allocator()
        self._pools: list[_Pool | None] = []
        self._pool_of: dict[Layout, int] = {}
        self._unused: list[int] = []  # numbers of pools that are gone

    def add(self, layout: Layout, rows: RowMatrix, priorities: npt.NDArray[np.float64], episode: int) -> _Slots:
        """Adds an item for each of `rows` [n, T]; returns their slots."""
        slots = self._allocator.take(len(rows))
        self._reserve(self._allocator.high)
        number = self._number_of(layout)
        self._place[slots] = self._pool_numbered(number).add(rows)
        self._pool[slots] = number
        self.priority[slots] = priorities
        self.times_sampled[slots] = 0
        self._episode[slots] = episode
        self.count += len(rows)
        self.steps += len(rows) * layout.item_steps
        return slots

    def remove(self, slots: _Slots) -> list[tuple[Layout, RowMatrix]]:
        """Removes items; returns the rows they held, by layout, for release."""
        held = []
        for layout, where, rows in self.rows_of(slots):
            held.append((layout, rows))
            self.steps -= len(rows) * layout.item_steps
            chosen = slots if where is None else slots[where]
            number = self._pool_of[layout]
            allocator = self._pool_numbered(number).allocator
            allocator.give_back(self._place[chosen].astype(np.int64))
            if not allocator.live and len(self._pool_of) > _MOST_POOLS:
                self._pools[number] = None
                self._unused.append(number)
                del self._pool_of[layout]
        self._pool[slots] = -1
        self._generation[slots] = (self._generation[slots] + np.uint32(1)) % np.uint32(_GENERATIONS)
        self._allocator.give_back(slots)
        self.count -= slots.size
        return held

    def rows_of(self, slots: _Slots) -> Iterator[tuple[Layout, npt.NDArray[np.int64] | None, RowMatrix]]:
        """The rows of items: for each layout among them, which of `slots` have it (None: all) and their rows [k, T]."""
        if len(self._pools) == 1:
            pool = self._pool_numbered(0)
            yield pool.layout, None, pool.rows.take(self._place.take(slots), 0)
            return
        numbers = self._pool[slots]
        for number in np.flatnonzero(np.bincount(numbers, minlength=1)).tolist():
            pool = self._pool_numbered(number)
            where = np.flatnonzero(numbers == number)
            yield pool.layout, where, pool.rows[self._place[slots[where]]]

    @property
    def state(self) -> ItemsState:
        """All items, copied. Does not retain their rows."""
        slots = self.all_slots()
        return ItemsState(
            self._generation[: self._allocator.high].copy(),
            slots,
            self.priority[slots],
            self.times_sampled[slots],
            self._episode[slots],
            list(self.rows_of(slots)),
        )

    @state.setter
    def state(self, state: ItemsState) -> None:
        """Becomes what `state` says: for a new, empty instance. Takes over a reference to each row."""
        high, slots = state.generations.size, state.slots
        self._reserve(high)
        is_free = np.ones(high, np.bool_)
        is_free[slots] = False
        self._allocator.restart(high, np.flatnonzero(is_free))
        self._generation[:high] = state.generations
        self.priority[slots] = state.priority
        self.times_sampled[slots] = state.times_sampled
        self._episode[slots] = state.episode
        for layout, where, rows in state.parts:
            chosen = slots if where is None else slots[where]
            number = self._number_of(layout)
            self._place[chosen] = self._pool_numbered(number).add(rows)
            self._pool[chosen] = number
            self.steps += len(rows) * layout.item_steps
        self.count = slots.size

    def _number_of(self, layout: Layout) -> int:
        number = self._pool_of.get(layout)
        if number is None:
            if not self._unused:
                self._unused.append(len(self._pools))
                self._pools.append(None)
            number = self._pool_of[layout] = self._unused.pop()
            self._pools[number] = _Pool(layout)
        return number

    def _pool_numbered(self, number: int) -> _Pool:
        pool = self._pools[number]
        assert pool is not None  # an item is in it, or about to be
        return pool

    def episodes(self, slots: _Slots) -> npt.NDArray[np.uint64]:
        """Episode of each item."""
        return self._episode[slots]

    def all_slots(self) -> _Slots:
        """Slots of all items, ascending."""
        return np.flatnonzero(self._pool[: self._allocator.high] >= 0)

    def keys(self, slots: _Slots) -> npt.NDArray[np.uint64]:
        """Keys of the items in `slots`."""
        return (self._generation.take(slots).astype(np.uint64) << np.uint64(_SLOT_BITS)) | slots.astype(np.uint64)

    def find(self, keys: npt.NDArray[np.uint64]) -> tuple[_Slots, npt.NDArray[np.bool_]]:
        """Slots of those `keys` [n] that are items here, and which of the keys these are [n]."""
        slots = (keys & np.uint64(_SLOT_MASK)).astype(np.int64)
        inside = slots < self._allocator.high
        slots = np.where(inside, slots, 0)
        generation = (keys >> np.uint64(_SLOT_BITS)).astype(np.uint32)
        known = inside & (self._generation[slots] == generation) & (self._pool[slots] >= 0)
        return slots[known], known

    def _reserve(self, size: int) -> None:
        old = self._pool.size
        if size <= old:
            return
        new = max(size, 2 * old)
        self.priority = _resized(self.priority, new, 0)
        self.times_sampled = _resized(self.times_sampled, new, 0)
        self._generation = _resized(self._generation, new, self._first_generation)
        self._episode = _resized(self._episode, new, 0)
        self._pool = _resized(self._pool, new, -1)
        self._place = _resized(self._place, new, 0)


def _resized(array: npt.NDArray[Any], size: int, fill: float) -> npt.NDArray[Any]:
    larger = np.full(size, fill, array.dtype)
    larger[: array.size] = array
    return larger
