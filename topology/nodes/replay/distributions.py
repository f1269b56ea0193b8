"""The state behind each selector: which slots are in, and how one is chosen.

A slot is a small integer that the table gives to an item while it is there. Every method takes a batch; none is
thread-safe; the table's lock is held around them.
"""

from __future__ import annotations

import abc
import heapq
from typing import final

import numpy as np
import numpy.typing as npt

from topology.nodes.replay.sum_tree import SumTree

__all__ = ["Distribution", "Heap", "Ordered", "Proportional", "UniformSet"]

Slots = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_LARGEST_WEIGHT = 1e290  # so that no sum of weights overflows


class Distribution(abc.ABC):
    """A changing set of slots from which one can choose.

    Attributes:
        removes_in_batches: whether removing k slots and then adding k gives what alternating would give.
        is_random: whether choosing draws; otherwise there is always one slot that comes first.
    """

    removes_in_batches: bool = False
    is_random: bool = True

    @abc.abstractmethod
    def add(self, slots: Slots, priorities: Floats) -> None:
        """Adds slots that are not in the set, in this order."""

    @abc.abstractmethod
    def remove(self, slots: Slots) -> None:
        """Removes slots that are in the set; each once."""

    def update(self, slots: Slots, priorities: Floats) -> None:  # noqa: B027  (most selectors ignore priorities)
        """Gives slots of the set new priorities."""

    @abc.abstractmethod
    def choose(self, count: int, rng: np.random.Generator) -> tuple[Slots, Floats]:
        """`count` independent choices from a set that is not empty, and the probability each had."""

    @abc.abstractmethod
    def clear(self) -> None:
        """Empties the set."""

    @abc.abstractmethod
    def order(self) -> Slots:
        """All slots, in an order in which adding them to an empty set gives this one."""

    def first(self, count: int) -> Slots:
        """The `count` slots that come first, where choosing is not random."""
        raise NotImplementedError(f"{type(self).__name__} chooses at random")

    def chances(self, slots: Slots) -> Floats:
        """The probability with which `choose` gives each of `slots`, where choosing is random."""
        raise NotImplementedError(f"{type(self).__name__} does not choose at random")

    def pop(self, count: int, rng: np.random.Generator) -> tuple[Slots, Floats]:
        """`count` choices, each removed before the next."""
        slots, probabilities = np.empty(count, np.int64), np.empty(count)
        for i in range(count):
            slots[i : i + 1], probabilities[i : i + 1] = self.choose(1, rng)
            self.remove(slots[i : i + 1])
        return slots, probabilities


def _grown(array: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    """`array` itself, or a copy with room for at least `size` entries."""
    if size <= array.size:
        return array
    larger = np.empty(max(size, 2 * array.size), array.dtype)
    larger[: array.size] = array
    return larger


@final
class UniformSet(Distribution):
    """Every slot alike: a dense array of members, and where each member stands in it."""

    def __init__(self) -> None:
        self._members = np.empty(64, np.int64)
        self._position = np.empty(64, np.int64)
        self._count = 0

    def add(self, slots: Slots, priorities: Floats) -> None:  # noqa: ARG002  (part of the interface)
        end = self._count + slots.size
        self._members = _grown(self._members, end)
        self._position = _grown(self._position, int(slots.max()) + 1)
        self._members[self._count : end] = slots
        self._position[slots] = np.arange(self._count, end)
        self._count = end

    def remove(self, slots: Slots) -> None:
        # The members at the end that stay move into the holes further down.
        end = self._count - slots.size
        holes = self._position[slots]
        self._members[holes] = -1
        tail = self._members[end : self._count]
        movers, holes = tail[tail >= 0], holes[holes < end]
        self._members[holes] = movers
        self._position[movers] = holes
        self._count = end

    def choose(self, count: int, rng: np.random.Generator) -> tuple[Slots, Floats]:
        # A third of what `integers` takes, and no less even: 53 bits over so few members.
        slots = self._members.take((rng.random(count) * self._count).astype(np.int64))
        probabilities = np.empty(count)
        probabilities.fill(1.0 / self._count)  # a third of what np.full takes
        return slots, probabilities

    def clear(self) -> None:
        self._count = 0

    def order(self) -> Slots:
        return self._members[: self._count].copy()

    def chances(self, slots: Slots) -> Floats:
        return np.full(slots.size, 1.0 / self._count)


@final
class Proportional(Distribution):
    """In proportion to priority ** exponent; all alike while every weight is zero."""

    def __init__(self, exponent: float) -> None:
        self._exponent = exponent
        self._tree = SumTree()
        self._alive = np.zeros(64, np.bool_)
        self._count = 0

    def add(self, slots: Slots, priorities: Floats) -> None:
        largest = int(slots.max())
        if largest >= self._alive.size:
            alive = np.zeros(max(largest + 1, 2 * self._alive.size), np.bool_)
            alive[: self._alive.size] = self._alive
            self._alive = alive
        self._alive[slots] = True
        self._count += slots.size
        self.update(slots, priorities)

    def remove(self, slots: Slots) -> None:
        self._alive[slots] = False
        self._count -= slots.size
        self._tree.set(slots, 0.0)

    def update(self, slots: Slots, priorities: Floats) -> None:
        with np.errstate(over="ignore"):
            weights = priorities**self._exponent
        self._tree.set(slots, np.minimum(weights, _LARGEST_WEIGHT))

    def choose(self, count: int, rng: np.random.Generator) -> tuple[Slots, Floats]:
        total = self._tree.total
        fractions = rng.random(count)
        if total > 0:
            slots = self._tree.find(fractions)
            return slots, self._tree.get(slots) / total
        members = np.flatnonzero(self._alive)
        return members[(fractions * members.size).astype(np.int64)], np.full(count, 1.0 / members.size)

    def clear(self) -> None:
        self._tree.clear()
        self._alive.fill(False)
        self._count = 0

    def order(self) -> Slots:
        return np.flatnonzero(self._alive)

    def chances(self, slots: Slots) -> Floats:
        total = self._tree.total
        return self._tree.get(slots) / total if total > 0 else np.full(slots.size, 1.0 / self._count)


@final
class Ordered(Distribution):
    """First in first out, or last in first out: slots in the order they came, with gaps where some were removed."""

    is_random = False

    def __init__(self, *, newest_first: bool) -> None:
        self._newest_first = newest_first
        self.removes_in_batches = not newest_first
        self._order = np.empty(64, np.int64)
        self._position = np.empty(64, np.int64)
        self._head = 0
        self._tail = 0
        self._count = 0

    def add(self, slots: Slots, priorities: Floats) -> None:  # noqa: ARG002  (part of the interface)
        if self._tail + slots.size > self._order.size:
            self._compact(slots.size)
        end = self._tail + slots.size
        self._position = _grown(self._position, int(slots.max()) + 1)
        self._order[self._tail : end] = slots
        self._position[slots] = np.arange(self._tail, end)
        self._tail = end
        self._count += slots.size

    def remove(self, slots: Slots) -> None:
        self._order[self._position[slots]] = -1
        self._count -= slots.size
        if self._count == 0:
            self._head = self._tail = 0
            return
        while self._order[self._head] < 0:
            self._head += self._gap(self._order[self._head : self._tail])
        while self._order[self._tail - 1] < 0:
            self._tail -= self._gap(self._order[self._head : self._tail][::-1])

    @staticmethod
    def _gap(order: npt.NDArray[np.int64]) -> int:
        """How many removed entries `order` begins with, looking a limited way ahead."""
        ahead = order[:256] >= 0
        first = int(ahead.argmax())
        return first if ahead[first] else ahead.size

    def choose(self, count: int, rng: np.random.Generator) -> tuple[Slots, Floats]:  # noqa: ARG002  (part of the interface)
        at = self._tail - 1 if self._newest_first else self._head
        return np.full(count, self._order[at]), np.ones(count)

    def pop(self, count: int, rng: np.random.Generator) -> tuple[Slots, Floats]:  # noqa: ARG002  (part of the interface)
        slots = self.first(count)
        self.remove(slots)
        return slots, np.ones(count)

    def first(self, count: int) -> Slots:
        span = self._order[self._head : self._tail]
        if self._newest_first:
            span = span[::-1]
        slots = span[: 2 * count]
        slots = slots[slots >= 0]
        if slots.size < count:
            slots = span[span >= 0]
        return slots[:count].copy()

    def clear(self) -> None:
        self._head = self._tail = self._count = 0

    def order(self) -> Slots:
        span = self._order[self._head : self._tail]
        return span[span >= 0]

    def _compact(self, extra: int) -> None:
        """Closes the gaps, into twice the room when less than half of it would stay free."""
        span = self._order[self._head : self._tail]
        alive = span[span >= 0]
        size = self._order.size
        while 2 * (alive.size + extra) > size:
            size *= 2
        order = np.empty(size, np.int64)
        order[: alive.size] = alive
        self._position[alive] = np.arange(alive.size)
        self._order, self._head, self._tail = order, 0, alive.size


@final
class Heap(Distribution):
    """The slot of least (or greatest) priority; among equals the one set earliest.

    A removed or updated entry stays in the heap, out of date, until it comes up or until such entries outnumber the
    others.
    """

    is_random = False

    def __init__(self, *, sign: float) -> None:
        self._sign = sign
        self._heap: list[tuple[float, int, int]] = []
        self._current: dict[int, int] = {}
        self._clock = 0

    def add(self, slots: Slots, priorities: Floats) -> None:
        for slot, priority in zip(slots.tolist(), (self._sign * priorities).tolist(), strict=True):
            self._clock += 1
            self._current[slot] = self._clock
            heapq.heappush(self._heap, (priority, self._clock, slot))
        if len(self._heap) > 64 + 2 * len(self._current):
            self._heap = [entry for entry in self._heap if self._current.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def remove(self, slots: Slots) -> None:
        for slot in slots.tolist():
            del self._current[slot]

    def update(self, slots: Slots, priorities: Floats) -> None:
        self.add(slots, priorities)

    def choose(self, count: int, rng: np.random.Generator) -> tuple[Slots, Floats]:  # noqa: ARG002  (part of the interface)
        while self._current.get(self._heap[0][2]) != self._heap[0][1]:
            heapq.heappop(self._heap)
        return np.full(count, self._heap[0][2], np.int64), np.ones(count)

    def clear(self) -> None:
        self._heap.clear()
        self._current.clear()

    def order(self) -> Slots:
        return np.array(sorted(self._current, key=self._current.__getitem__), np.int64)

    def first(self, count: int) -> Slots:
        # Out and in again: to look through all of them would take longer the larger the table is.
        heap, current = self._heap, self._current
        found: list[tuple[float, int, int]] = []
        while len(found) < count and heap:
            entry = heapq.heappop(heap)
            if current.get(entry[2]) == entry[1]:
                found.append(entry)
        for entry in found:
            heapq.heappush(heap, entry)
        return np.array([slot for _, _, slot in found], np.int64)
