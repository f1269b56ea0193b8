"""What a reader can be given: experience in order, and how much of it makes up what was asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar, final

__all__ = ["Shelf", "Wish"]


class Wish(NamedTuple):
    """At least `number` steps, or episodes."""

    number: int
    of_episodes: bool

    def __str__(self) -> str:
        return f"{self.number} {'episode' if self.of_episodes else 'step'}{'' if self.number == 1 else 's'}"


class _Item(Protocol):
    @property
    def steps(self) -> int: ...
    @property
    def whole_episode(self) -> bool: ...
    @property
    def nbytes(self) -> int: ...


ItemT = TypeVar("ItemT", bound=_Item)


@final
class Shelf(Generic[ItemT]):
    """Items in order. Not thread-safe.

    Attributes:
        steps, episodes, nbytes: of all items on it.
    """

    def __init__(self) -> None:
        self._items: deque[ItemT] = deque()
        self.steps = 0
        self.episodes = 0
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: ItemT) -> None:
        """Puts an item behind the others."""
        self._items.append(item)
        self._count(item, 1)

    def add_first(self, items: Iterable[ItemT]) -> None:
        """Puts items, in their order, before the others."""
        for item in reversed(list(items)):
            self._items.appendleft(item)
            self._count(item, 1)

    def clear(self) -> None:
        """Removes all items."""
        self._items.clear()
        self.steps = self.episodes = self.nbytes = 0

    def has(self, wish: Wish) -> bool:
        """Whether the wish can be fulfilled."""
        return (self.episodes if wish.of_episodes else self.steps) >= wish.number

    def missing(self, wish: Wish) -> int:
        """How much is missing."""
        return max(0, wish.number - (self.episodes if wish.of_episodes else self.steps))

    def take(self, wish: Wish) -> list[ItemT]:
        """The first items that fulfil the wish, and no more. It must be one that can be fulfilled."""
        taken: list[ItemT] = []
        found = 0
        while found < wish.number:
            item = self._pop()
            taken.append(item)
            found += item.whole_episode if wish.of_episodes else item.steps
        return taken

    def take_at_most(self, max_steps: int | None) -> list[ItemT]:
        """The first items with at most so many steps; one item at least, if there is one."""
        taken: list[ItemT] = []
        found = 0
        while self._items and (not taken or max_steps is None or found + self._items[0].steps <= max_steps):
            taken.append(self._pop())
            found += taken[-1].steps
        return taken

    def _pop(self) -> ItemT:
        item = self._items.popleft()
        self._count(item, -1)
        return item

    def _count(self, item: ItemT, sign: int) -> None:
        self.steps += sign * item.steps
        self.episodes += sign * item.whole_episode
        self.nbytes += sign * item.nbytes
