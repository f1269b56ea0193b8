"""What can be done to the items of a shard, in its own place.

The iterators here are objects, not generators: a generator that has raised is over, and what it held is gone. These go
on after an error with what they hold.
"""

from __future__ import annotations

import concurrent.futures
import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, final

from topology.nodes.flow.checks import check_callable, check_whole
from topology.nodes.flow.naming import name_of_function
from topology.nodes.flow.stages import call_user, parts_of, transformed

__all__ = [
    "ShardBatch",
    "ShardFilter",
    "ShardFlatten",
    "ShardForEach",
    "ShardShuffle",
    "ShardTransform",
    "check_concurrency",
]

MOST_THREADS = 256
"""What "no bound" means: nobody knows how many items there will be."""


def check_concurrency(max_concurrency: int) -> None:
    """Raises `ValueError` for anything but a whole number, at least 0."""
    check_whole("max_concurrency", max_concurrency, 0)


class _Items(Iterator[Any]):
    """An iterator over what becomes of the items of another one."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items


# --- for_each ---------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class ShardForEach:
    """Calls `fn` with each item; with `max_concurrency` above 1 so many at a time, in no order; 0 for no bound."""

    fn: Callable[[Any], Any]
    max_concurrency: int = 1

    def __post_init__(self) -> None:
        check_callable("for_each()", self.fn)
        check_concurrency(self.max_concurrency)

    @property
    def name(self) -> str:
        return f"for_each({name_of_function(self.fn)})"

    def apply(self, items: Iterator[Any]) -> Iterator[Any]:
        return _Applied(items, self.fn) if self.max_concurrency == 1 else _AtOnce(items, self.fn, self.max_concurrency)


@final
class _Applied(_Items):
    def __init__(self, items: Iterator[Any], fn: Callable[[Any], Any]) -> None:
        super().__init__(items)
        self._fn = fn

    def __next__(self) -> Any:
        return call_user(self._fn, next(self._items))


@final
class _AtOnce(_Items):
    def __init__(self, items: Iterator[Any], fn: Callable[[Any], Any], most: int) -> None:
        super().__init__(items)
        self._fn = fn
        self._most = most
        self._pool = ThreadPoolExecutor(most or MOST_THREADS, "flow for_each")
        self._running: set[Future[Any]] = set()
        self._ended = False

    def __next__(self) -> Any:
        self._fill()
        if not self._running:
            self._pool.shutdown(wait=False)
            raise StopIteration
        done, _ = concurrent.futures.wait(self._running, return_when=FIRST_COMPLETED)
        future = done.pop()
        self._running.remove(future)
        return call_user(future.result)

    def _fill(self) -> None:
        while not self._ended and (len(self._running) < self._most if self._most else not self._has_result()):
            for item in self._items:
                self._running.add(self._pool.submit(self._fn, item))
                break
            else:
                self._ended = True

    def _has_result(self) -> bool:
        # Without a bound it would otherwise read on for ever where items never end.
        return any(future.done() for future in self._running)


# --- others -----------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class ShardFilter:
    """Keeps the items for which `fn` is true."""

    fn: Callable[[Any], Any]

    def __post_init__(self) -> None:
        check_callable("filter()", self.fn)

    @property
    def name(self) -> str:
        return f"filter({name_of_function(self.fn)})"

    def apply(self, items: Iterator[Any]) -> Iterator[Any]:
        return _Filtered(items, self.fn)


@final
class _Filtered(_Items):
    def __init__(self, items: Iterator[Any], fn: Callable[[Any], Any]) -> None:
        super().__init__(items)
        self._fn = fn

    def __next__(self) -> Any:
        for item in self._items:
            if call_user(self._fn, item):
                return item
        raise StopIteration


@final
@dataclass(frozen=True)
class ShardBatch:
    """Lists of `size` items; the last one may be shorter."""

    size: int

    def __post_init__(self) -> None:
        check_whole("batch()", self.size, 1)

    @property
    def name(self) -> str:
        return f"batch({self.size})"

    def apply(self, items: Iterator[Any]) -> Iterator[Any]:
        return _Batched(items, self.size)


@final
class _Batched(_Items):
    def __init__(self, items: Iterator[Any], size: int) -> None:
        super().__init__(items)
        self._size = size
        self._waiting: list[Any] = []

    def __next__(self) -> list[Any]:
        for item in self._items:
            self._waiting.append(item)
            if len(self._waiting) == self._size:
                break
        if not self._waiting:
            raise StopIteration
        batch, self._waiting = self._waiting, []
        return batch


@final
@dataclass(frozen=True)
class ShardFlatten:
    """The items of each item."""

    name = "flatten"

    def apply(self, items: Iterator[Any]) -> Iterator[Any]:
        return _Flattened(items)


@final
class _Flattened(_Items):
    def __init__(self, items: Iterator[Any]) -> None:
        super().__init__(items)
        self._parts: Iterator[Any] = iter(())

    def __next__(self) -> Any:
        while True:
            for part in self._parts:
                return part
            self._parts = parts_of(next(self._items), "flatten() or combine()")


@final
@dataclass(frozen=True)
class ShardTransform:
    """Whatever a function makes of the whole iterator; made anew of what is left when it has raised."""

    fn: Callable[[Iterator[Any]], Iterable[Any]]

    def __post_init__(self) -> None:
        check_callable("transform()", self.fn)

    @property
    def name(self) -> str:
        return f"transform({name_of_function(self.fn)})"

    def apply(self, items: Iterator[Any]) -> Iterator[Any]:
        return _Transformed(items, self.fn)


@final
class _Transformed(_Items):
    def __init__(self, items: Iterator[Any], fn: Callable[[Iterator[Any]], Iterable[Any]]) -> None:
        super().__init__(items)
        self._fn = fn
        self._results: Iterator[Any] | None = None

    def __next__(self) -> Any:
        if self._results is None:
            self._results = transformed(self._fn, self._items)
        try:
            return next(self._results)
        except StopIteration:
            raise
        except BaseException:
            self._results = None  # a generator that has raised is over
            raise


@final
@dataclass(frozen=True)
class ShardShuffle:
    """Each item trades places with a random one of the `size` items that wait; `seed` None for another order a run."""

    size: int
    seed: int | None = None

    def __post_init__(self) -> None:
        check_whole("local_shuffle()", self.size, 1)

    @property
    def name(self) -> str:
        return f"local_shuffle(shuffle_buffer_size={self.size})"

    def apply(self, items: Iterator[Any]) -> Iterator[Any]:
        return _Shuffled(items, self.size, self.seed)


@final
class _Shuffled(_Items):
    def __init__(self, items: Iterator[Any], size: int, seed: int | None) -> None:
        super().__init__(items)
        self._size = size
        self._random = random.Random(seed)
        self._waiting: list[Any] = []

    def __next__(self) -> Any:
        for item in self._items:
            self._waiting.append(item)
            if len(self._waiting) >= self._size:
                break
        if not self._waiting:
            raise StopIteration
        return self._waiting.pop(self._random.randrange(len(self._waiting)))
