"""Streams whose items are made by many workers, and what is done to them there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, final

from topology.nodes.flow.actors import Actor, host
from topology.nodes.flow.checks import check_seconds, check_whole
from topology.nodes.flow.failures import Crew
from topology.nodes.flow.gather import BulkRounds, GatherAsync
from topology.nodes.flow.local_iterator import LocalIterator
from topology.nodes.flow.metrics import SharedMetrics
from topology.nodes.flow.remote_shards import Shard, new_stream
from topology.nodes.flow.shard_operators import (
    ShardBatch,
    ShardFilter,
    ShardFlatten,
    ShardForEach,
    ShardShuffle,
    ShardTransform,
)
from topology.nodes.flow.shards import ParallelIteratorWorker, ShardOperator, StreamSpec

__all__ = ["ParallelIterator", "Source"]

T = TypeVar("T")
U = TypeVar("U")


class Source(NamedTuple):
    """A worker, and what is done to its items in its place.

    Attributes:
        actor: the worker.
        crew: those it belongs to.
        operators: in order.
        part: of a repartition: which part of how many of its items; None for all.
        stream: shared by the readers of the parts; None for a stream of its own.
    """

    actor: Actor
    crew: Crew
    operators: tuple[ShardOperator, ...] = ()
    part: tuple[int, int] | None = None
    stream: str | None = None

    def open(self) -> Shard:
        """The stream, for the driver to ask."""
        spec = StreamSpec(self.stream or new_stream(), self.operators)
        return Shard(self.actor, spec, self.crew, self.part)


@final
class ParallelIterator(Generic[T]):
    """Items made by many workers, with operators that run in the workers. To be read it is gathered.

    Args:
        sources: the shards.
        name: for people.
        metrics: counters of plans made from it; new ones by default.
    """

    def __init__(self, sources: Sequence[Source], name: str, metrics: SharedMetrics | None = None) -> None:
        self._sources = tuple(sources)
        self.name = name
        self._metrics = metrics
        self._is_union = False

    def __repr__(self) -> str:
        return f"ParallelIterator[{self.name}]"

    def __iter__(self) -> Iterator[T]:
        raise TypeError(f"{self!r} cannot be read directly: gather it first, with gather_sync() or gather_async()")

    @property
    def sources(self) -> tuple[Source, ...]:
        """The shards."""
        return self._sources

    def num_shards(self) -> int:
        """How many shards there are."""
        return len(self._sources)

    # --- in the workers ----------------------------------------------------------------------------------------------

    def for_each(
        self, fn: Callable[[T], U], max_concurrency: int = 1, resources: Mapping[str, Any] | None = None
    ) -> ParallelIterator[U]:
        """What `fn` makes of each item. With `max_concurrency` above 1 so many at a time, in no order; 0: no bound.

        Args:
            fn: a function; it travels to the workers.
            max_concurrency: items of a shard at a time, in threads.
            resources: not needed here; accepted for programs that say so.

        Raises:
            TypeError: `fn` cannot be called.
            ValueError: `max_concurrency` is negative.
        """
        del resources
        return self._with([ShardForEach(fn, max_concurrency)], "for_each()")

    def filter(self, fn: Callable[[T], Any]) -> ParallelIterator[T]:
        """The items for which `fn` is true."""
        return self._with([ShardFilter(fn)], "filter()")

    def batch(self, n: int) -> ParallelIterator[list[T]]:
        """Lists of `n` items of a shard; the last one may be shorter."""
        return self._with([ShardBatch(n)], f"batch({n})")

    def flatten(self) -> ParallelIterator[Any]:
        """The items of each item."""
        return self._with([ShardFlatten()], "flatten()")

    def combine(self, fn: Callable[[T], Iterable[U]]) -> ParallelIterator[U]:
        """The items of the list that `fn` makes of each item."""
        return self._with((ShardForEach(fn), ShardFlatten()), "combine()")

    def transform(self, fn: Callable[[Iterator[T]], Iterable[U]]) -> ParallelIterator[U]:
        """Whatever a generator function makes of a shard's items."""
        return self._with([ShardTransform(fn)], "transform()")

    def local_shuffle(self, shuffle_buffer_size: int, seed: int | None = None) -> ParallelIterator[T]:
        """Each item trades places with a random one of so many that wait in its shard."""
        shuffle = ShardShuffle(shuffle_buffer_size, seed)
        return self._with([shuffle], f"{shuffle.name[:-1]}, seed={seed})")

    # --- shards ------------------------------------------------------------------------------------------------------

    def repartition(self, num_partitions: int, batch_ms: float = 0) -> ParallelIterator[T]:
        """Deals the items out anew: item k of each shard goes to partition k modulo `num_partitions`.

        The partitions are new workers, served in this process, which ask the shards. A shard keeps what other
        partitions have not asked for yet.

        Raises:
            ValueError: `num_partitions` below 1, or `batch_ms` below 0.
        """
        check_whole("num_partitions", num_partitions, 1)
        _check_milliseconds(batch_ms)
        opened = [source._replace(stream=new_stream()) for source in self._sources]
        parts = []
        for part in range(num_partitions):
            mine = ParallelIterator[T]([source._replace(part=(part, num_partitions)) for source in opened], self.name)
            parts.append(ParallelIteratorWorker(_Reader(mine, batch_ms)))
        actors = [host(worker, f"partition {part}") for part, worker in enumerate(parts)]
        crew = Crew(actors)
        name = f"{self.name}.repartition[num_partitions={num_partitions}]"
        return ParallelIterator([Source(actor, crew) for actor in actors], name)

    def union(self, other: ParallelIterator[T]) -> ParallelIterator[T]:
        """The shards of both.

        Raises:
            TypeError: `other` is none.
        """
        if not isinstance(other, ParallelIterator):
            raise TypeError(f"union() takes a ParallelIterator, got {other!r}")
        result = ParallelIterator[T]((*self._sources, *other._sources), f"ParallelUnion[{self!r}, {other!r}]")
        result._is_union = True
        return result

    def select_shards(self, shards_to_keep: list[int]) -> ParallelIterator[T]:
        """Some of the shards. Whoever makes several selections keeps them apart.

        Raises:
            ValueError: none is kept, one is kept twice, there is no such shard, or it is a union.
        """
        if self._is_union:
            raise ValueError("select_shards() of a union is ambiguous: select before union()")
        if not shards_to_keep:
            raise ValueError("select_shards() must keep at least one shard")
        for index in shards_to_keep:
            if not isinstance(index, int) or not 0 <= index < self.num_shards():
                raise ValueError(f"select_shards({shards_to_keep}): there are {self.num_shards()} shards")
        if len(set(shards_to_keep)) < len(shards_to_keep):
            raise ValueError(f"select_shards({shards_to_keep}): a shard is there twice, and would give items to both")
        kept = [self._sources[index] for index in shards_to_keep]
        return ParallelIterator(kept, f"{self.name}.select_shards({len(kept)} total)", self._metrics)

    def shards(self) -> list[LocalIterator[T]]:
        """A stream of each shard."""
        return [self.get_shard(index) for index in range(self.num_shards())]

    def get_shard(self, shard_index: int, batch_ms: float = 0, num_async: int = 1) -> LocalIterator[T]:
        """The stream of one shard, with up to `num_async` requests under way.

        Raises:
            ValueError: there is no such shard.
        """
        if not 0 <= shard_index < self.num_shards():
            raise ValueError(f"get_shard({shard_index}): there are {self.num_shards()} shards")
        name = f"shard[{shard_index}]"
        stage = GatherAsync([self._sources[shard_index].open()], name, num_async=num_async, batch_ms=batch_ms)
        return LocalIterator(stage, self._metrics, f"{self.name}.{name}")

    # --- gathering ---------------------------------------------------------------------------------------------------

    def gather_sync(self) -> LocalIterator[T]:
        """Item after item of the workers in turn; a round is asked for when the one before is used up."""
        return self.batch_across_shards().flatten().renamed(f"{self!r}.gather_sync()")

    def batch_across_shards(self, straggler_s: float | None = None) -> LocalIterator[list[T]]:
        """Lists with one item of each shard that has not ended. A round is asked for when its list is, not before.

        Args:
            straggler_s: seconds after the first item at which a round ends without those that are late; their items
                are part of the next one. None waits for all.

        Raises:
            ValueError: `straggler_s` is negative.
        """
        check_seconds("straggler_s", straggler_s)
        stage = BulkRounds(self._open(), "batch_across_shards", straggler_s=straggler_s)
        return LocalIterator(stage, self._metrics, f"{self!r}.batch_across_shards()")

    def gather_async(self, batch_ms: float = 0, num_async: int = 1, prefetch: bool | None = None) -> LocalIterator[T]:
        """Items as they come. At most `num_async` of each worker are under way, or wait to be read.

        Args:
            batch_ms: how long a worker gathers for one reply, in milliseconds.
            num_async: requests of each worker.
            prefetch: whether the next request goes out before an item is handed on. By default only with `num_async`
                above 1: with 1, what the consumer sends the worker acts on its next item.

        Raises:
            ValueError: `num_async` below 1, or `batch_ms` below 0.
        """
        stage = GatherAsync(
            self._open(),
            "gather_async",
            num_async=num_async,
            batch_ms=batch_ms,
            prefetch=num_async > 1 if prefetch is None else prefetch,
        )
        return LocalIterator(stage, self._metrics, f"{self!r}.gather_async()")

    def take(self, n: int) -> list[T]:
        """The first `n` items of `gather_sync`."""
        return self.gather_sync().take(n)

    def show(self, n: int = 20) -> None:
        """Prints the first `n` items of `gather_sync`."""
        self.gather_sync().show(n)

    def _open(self) -> list[Shard]:
        return [source.open() for source in self._sources]

    def _with(self, operators: Sequence[ShardOperator], suffix: str) -> ParallelIterator[Any]:
        sources = [source._replace(operators=(*source.operators, *operators)) for source in self._sources]
        result: ParallelIterator[Any] = ParallelIterator(sources, f"{self.name}.{suffix}", self._metrics)
        result._is_union = self._is_union
        return result


@final
class _Reader:
    """Items of a parallel iterator as they come, begun when the first one is asked for."""

    def __init__(self, items: ParallelIterator[Any], batch_ms: float) -> None:
        self._items = items
        self._batch_ms = batch_ms

    def __call__(self) -> Iterable[Any]:
        return self._items.gather_async(batch_ms=self._batch_ms)


def _check_milliseconds(batch_ms: float) -> None:
    if not batch_ms >= 0:
        raise ValueError(f"batch_ms must be at least 0, got {batch_ms}")
