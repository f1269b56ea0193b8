"""What parallel iterators are made of: items, iterables, workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from topology.nodes.courier.client import Client
from topology.nodes.flow.actors import Actor, as_actors
from topology.nodes.flow.checks import check_whole
from topology.nodes.flow.failures import Crew
from topology.nodes.flow.metrics import SharedMetrics
from topology.nodes.flow.parallel_iterator import ParallelIterator, Source
from topology.nodes.flow.shards import ParallelIteratorWorker

__all__ = ["from_actors", "from_items", "from_iterators", "from_range"]

T = TypeVar("T")


def from_items(items: list[T], num_shards: int = 2, repeat: bool = False) -> ParallelIterator[T]:
    """Item i goes to shard i modulo `num_shards`. The shards are served in this process.

    Raises:
        ValueError: `num_shards` below 1.
    """
    check_whole("num_shards", num_shards, 1)
    shards: list[list[T]] = [items[index::num_shards] for index in range(num_shards)]
    kind = type(items[0]).__name__ if items else "None"
    return from_iterators(shards, repeat, f"from_items[{kind}, {len(items)}, shards={num_shards}{_repeats(repeat)}]")


def from_range(n: int, num_shards: int = 2, repeat: bool = False) -> ParallelIterator[int]:
    """0 to n - 1 in blocks of equal length; the last shard also takes what is left over.

    Raises:
        ValueError: `n` below 0, or `num_shards` below 1.
    """
    check_whole("n", n, 0)
    check_whole("num_shards", num_shards, 1)
    size = n // num_shards
    bounds = [(i * size, n if i == num_shards - 1 else (i + 1) * size) for i in range(num_shards)]
    name = f"from_range[{n}, shards={num_shards}{_repeats(repeat)}]"
    return from_iterators([range(*bound) for bound in bounds], repeat, name)


def from_iterators(
    generators: Sequence[Iterable[T] | Callable[[], Iterable[T]]], repeat: bool = False, name: str = ""
) -> ParallelIterator[T]:
    """A shard for each iterable, or function that returns one. They are served in this process.

    Raises:
        ValueError: there is none, or an iterator that can be read once is to be repeated.
    """
    workers = [ParallelIteratorWorker(generator, repeat) for generator in generators]
    return from_actors(workers, name or f"from_iterators[shards={len(workers)}{_repeats(repeat)}]")


def from_actors(
    actors: Sequence[Actor | Client | ParallelIteratorWorker],
    name: str = "",
    *,
    crew: Crew | None = None,
    metrics: SharedMetrics | None = None,
) -> ParallelIterator[Any]:
    """A shard for each worker.

    Args:
        actors: courier clients of `ParallelIteratorWorker`s; such objects themselves are served in this process.
        name: for people.
        crew: what to do when one fails; by default the failure is raised.
        metrics: counters of plans made from it.

    Raises:
        ValueError: there is no worker.
        TypeError: something is none.
    """
    if crew is None and not actors:
        raise ValueError("a parallel iterator needs at least one shard, got none")
    crew = crew or Crew(as_actors(actors))
    sources = [Source(actor, crew) for actor in crew.alive]
    return ParallelIterator(sources, name or f"from_actors[shards={len(sources)}]", metrics)


def _repeats(repeat: bool) -> str:
    return ", repeat=True" if repeat else ""
