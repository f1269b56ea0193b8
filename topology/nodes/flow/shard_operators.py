"""What can be done to the items of a shard, in its own place."""

from __future__ import annotations

import concurrent.futures
import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, final

from topology.nodes.flow.naming import name_of_function

__all__ = [
    "ShardBatch",
    "ShardFilter",
    "ShardFlatten",
    "ShardForEach",
    "ShardShuffle",
    "ShardTransform",
    "batched",
    "check_concurrency",
    "shuffled",
]


def check_concurrency(max_concurrency: int) -> None:
    """Raises `ValueError` for a negative number."""
    if max_concurrency < 0:
        raise ValueError(f"max_concurrency={max_concurrency}: at least 1, or 0 for no bound")


@final
@dataclass(frozen=True)
class ShardForEach:
    """Calls `fn` with each item; with `max_concurrency` above 1 so many at a time, in no order; 0 for no bound."""

    fn: Callable[[Any], Any]
    max_concurrency: int = 1

    def __post_init__(self) -> None:
        check_concurrency(self.max_concurrency)

    @property
    def name(self) -> str:
        return f"for_each({name_of_function(self.fn)})"

    def apply(self, items: Iterator[Any]) -> Iterator[Any]:
        # A generator, not map(): a StopIteration of the function is an error of it, and must not end the stream.
        return (self.fn(item) for item in items) if self.max_concurrency == 1 else self._at_once(items)

    def _at_once(self, items: Iterator[Any]) -> Iterator[Any]:
        # A thread each: without a bound nobody knows how many there will be.
        with ThreadPoolExecutor(self.max_concurrency or 256, "flow for_each") as pool:
            running: set[Future[Any]] = set()
            more = True
            while more or running:
                while more and (not self.max_concurrency or len(running) < self.max_concurrency):
                    for item in items:
                        running.add(pool.submit(self.fn, item))
                        break
                    else:
                        more = False
                if running:
                    done, _ = concurrent.futures.wait(running, return_when=FIRST_COMPLETED)
                    future = done.pop()
                    running.remove(future)
                    yield future.result()


@final
@dataclass(frozen=True)
class ShardFilter:
    """Keeps the items for which `fn` is true."""

    fn: Callable[[Any], Any]

    @property
    def name(self) -> str:
        return f"filter({name_of_function(self.fn)})"

    def apply(self, items: Iterator[Any]) -> Iterator[Any]:
        return (item for item in items if self.fn(item))


@final
@dataclass(frozen=True)
class ShardBatch:
    """Lists of `size` items; the last one may be shorter."""

    size: int

    @property
    def name(self) -> str:
        return f"batch({self.size})"

    def apply(self, items: Iterator[Any]) -> Iterator[Any]:
        return batched(items, self.size)


@final
@dataclass(frozen=True)
class ShardFlatten:
    """The items of each item."""

    name = "flatten"

    def apply(self, items: Iterator[Any]) -> Iterator[Any]:
        return (inner for item in items for inner in item)


@final
@dataclass(frozen=True)
class ShardTransform:
    """Whatever a function makes of the whole iterator."""

    fn: Callable[[Iterator[Any]], Iterable[Any]]

    @property
    def name(self) -> str:
        return f"transform({name_of_function(self.fn)})"

    def apply(self, items: Iterator[Any]) -> Iterator[Any]:
        return iter(self.fn(items))


@final
@dataclass(frozen=True)
class ShardShuffle:
    """Each item trades places with a random one of the `size` items that wait; `seed` None for another order a run."""

    size: int
    seed: int | None = None

    @property
    def name(self) -> str:
        return f"local_shuffle(shuffle_buffer_size={self.size})"

    def apply(self, items: Iterator[Any]) -> Iterator[Any]:
        return shuffled(items, self.size, self.seed)


def batched(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    """Lists of `size` items; the last one may be shorter."""
    batch: list[Any] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def shuffled(items: Iterator[Any], size: int, seed: int | None) -> Iterator[Any]:
    """The items in an order that is random within a window of `size`."""
    source = random.Random(seed)
    waiting: list[Any] = []
    for item in items:
        waiting.append(item)
        if len(waiting) >= size:
            yield waiting.pop(source.randrange(len(waiting)))
    while waiting:
        yield waiting.pop(source.randrange(len(waiting)))
