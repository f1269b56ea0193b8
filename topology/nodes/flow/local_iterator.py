"""A lazy stream in the driver of a plan, made of named operators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar, cast, final

from topology.nodes.flow.events import Waker
from topology.nodes.flow.items import Item
from topology.nodes.flow.metrics import MetricsContext, SharedMetrics, get_shared_metrics
from topology.nodes.flow.shard_operators import check_concurrency
from topology.nodes.flow.stages import FromIterable, Operator, Stage, pull
from topology.nodes.flow.transforms import (
    Apply,
    ApplyAtOnce,
    BatchItems,
    Filter,
    Flatten,
    Shuffle,
    Transform,
    ZipWithSource,
)
from topology.nodes.flow.union import ANYTIME, AsyncUnion, Copies, Copy, RoundRobinUnion, Weight

__all__ = ["LocalIterator", "join"]

T = TypeVar("T")
U = TypeVar("U")


@final
class LocalIterator(Generic[T]):
    """A stream of values that the driver's thread pulls, one at a time. Nothing happens before the first pull.

    Each operator gives a new iterator and takes this one's place: an iterator that was built on is not read any more,
    since both would take each other's items; `duplicate` makes several that see all of them. `next()` blocks until
    there is a value, without polling, and raises what operators and workers raise; the plan can be pulled again then.
    Picklable before the first pull.

    Args:
        stage: what gives the items.
        metrics: counters of the plan.
        name: for people; see `repr`.
    """

    def __init__(self, stage: Stage, metrics: SharedMetrics | None = None, name: str = "") -> None:
        self._stage = stage
        self.shared_metrics = metrics or SharedMetrics()
        self.name = name or stage.name
        self._waker: Waker | None = None
        self._taken_by: str | None = None

    @classmethod
    def of(cls, items: Iterable[T] | Callable[[], Iterable[T]], name: str = "items") -> LocalIterator[T]:
        """The items of an iterable, or of what a function returns at the first pull."""
        factory = items if callable(items) else lambda: items
        return cls(FromIterable(factory, name), name=name)

    @property
    def stage(self) -> Stage:
        """What gives the items: for graphs, and for those who build on it."""
        return self._stage

    @staticmethod
    def get_metrics() -> MetricsContext:
        """Counters of the plan whose operator runs now. Raises `ValueError` outside one."""
        return get_shared_metrics()

    def __repr__(self) -> str:
        return f"LocalIterator[{self.name}]"

    # --- reading -----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        item = self.next_item()
        if item is None:
            raise StopIteration
        return cast("T", item.value)

    def next_item(self) -> Item | None:
        """The next value with its origins; None at the end. Blocks."""
        if self._taken_by is not None:
            raise RuntimeError(
                f"{self!r} is read by {self._taken_by}: read that, or make two readers of it with duplicate()"
            )
        if self._waker is None:
            self._waker = Waker()
        outcome = pull(self._stage, self._waker)
        return outcome if isinstance(outcome, Item) else None

    def take(self, n: int) -> list[T]:
        """The next `n` values, fewer at the end."""
        values: list[T] = []
        while len(values) < n and (item := self.next_item()) is not None:
            values.append(item.value)
        return values

    def show(self, n: int = 20) -> None:
        """Prints the next `n` values."""
        for value in self.take(n):
            print(value)  # noqa: T201 - what it is for

    # --- operators ---------------------------------------------------------------------------------------------------

    def for_each(self, fn: Callable[[T], U] | Operator, max_concurrency: int = 1) -> LocalIterator[U]:
        """What `fn` makes of each value; with `max_concurrency` above 1 so many at a time, in no order; 0 for no bound.

        Raises:
            ValueError: `max_concurrency` is negative.
        """
        check_concurrency(max_concurrency)
        if max_concurrency == 1:
            return self._then(Apply(self._take("for_each"), fn, self.shared_metrics), "for_each()")
        if isinstance(fn, Operator):
            raise ValueError(  # noqa: TRY004 - the number is wrong
                f"{type(fn).__name__} sees items in order: it cannot have max_concurrency={max_concurrency}"
            )
        return self._then(ApplyAtOnce(self._take("for_each"), fn, max_concurrency), "for_each()")

    def filter(self, fn: Callable[[T], Any]) -> LocalIterator[T]:
        """The values for which `fn` is true."""
        return self._then(Filter(self._take("filter"), fn, self.shared_metrics), "filter()")

    def batch(self, n: int) -> LocalIterator[list[T]]:
        """Lists of `n` values; the last one may be shorter."""
        return self._then(BatchItems(self._take("batch"), n), f"batch({n})")

    def flatten(self) -> LocalIterator[Any]:
        """The values in each value."""
        return self._then(Flatten(self._take("flatten")), "flatten()")

    def combine(self, fn: Callable[[T], Sequence[U]] | Operator) -> LocalIterator[U]:
        """The values in the list that `fn` makes of each value; an empty list for none yet."""
        applied = Apply(self._take("combine"), fn, self.shared_metrics)
        return self._then(Flatten(applied), "combine()")

    def transform(self, fn: Callable[[Iterator[T]], Iterable[U]]) -> LocalIterator[U]:
        """Whatever a generator function makes of the whole stream; see `transforms.Transform`."""
        return self._then(Transform(self._take("transform"), fn, self.shared_metrics), "transform()")

    def shuffle(self, shuffle_buffer_size: int, seed: int | None = None) -> LocalIterator[T]:
        """Each value trades places with a random one of so many that wait."""
        return self._then(Shuffle(self._take("shuffle"), shuffle_buffer_size, seed), f"shuffle({shuffle_buffer_size})")

    def zip_with_source_actor(self) -> LocalIterator[tuple[Any, T]]:
        """Pairs of the `Actor` that a value came from, or the `ActorGroup` of all that went into it, and the value.

        Reading it raises `ValueError` for a value that no worker made.
        """
        return self._then(ZipWithSource(self._take("zip_with_source_actor")), "zip_with_source_actor()")

    def duplicate(self, n: int) -> list[LocalIterator[T]]:
        """`n` iterators that each give all values, in step: drive them together, with `union` or `Concurrently`.

        Raises:
            ValueError: `n` is below 2.
        """
        if n < 2:
            raise ValueError(f"duplicate({n}): at least 2")
        copies = Copies(self._take("duplicate"), n)
        return [self._then(Copy(copies, index), f"duplicate[{index}]") for index in range(n)]

    def union(
        self,
        *others: LocalIterator[T],
        deterministic: bool = False,
        round_robin_weights: Sequence[Weight] | None = None,
        strict: bool = False,
    ) -> LocalIterator[T]:
        """The values of all. See `Concurrently`; `deterministic` is its mode "round_robin".

        Raises:
            ValueError: something else than a `LocalIterator`, or weights that make no sense.
        """
        return join([self, *others], in_turn=deterministic, weights=round_robin_weights, outputs=None, strict=strict)

    def renamed(self, name: str) -> LocalIterator[T]:
        """The same iterator under another name."""
        self.name = name
        return self

    # --- building ----------------------------------------------------------------------------------------------------

    def _take(self, reader: str) -> Stage:
        """This iterator's stage, for one reader."""
        if self._taken_by is not None:
            raise ValueError(f"{self!r} is read by {self._taken_by} already: make two readers of it with duplicate()")
        self._taken_by = reader
        return self._stage

    def _then(self, stage: Stage, suffix: str) -> LocalIterator[Any]:
        return LocalIterator(stage, self.shared_metrics, f"{self.name}.{suffix}")


def join(
    iterators: Sequence[LocalIterator[Any]],
    *,
    in_turn: bool,
    weights: Sequence[Weight] | None,
    outputs: Collection[int] | None,
    strict: bool,
    seed: int | None = None,
) -> LocalIterator[Any]:
    """Several flows as one. See `Concurrently`."""
    for iterator in iterators:
        if not isinstance(iterator, LocalIterator):
            raise ValueError(f"flows to be joined must be LocalIterators, got {iterator!r}: gather it first")  # noqa: TRY004
    if len(iterators) < 2:
        raise ValueError(f"at least two flows can be joined, got {len(iterators)}")
    if weights is not None:
        _check_weights(weights, len(iterators), in_turn)
    for index in outputs or ():
        if not 0 <= index < len(iterators):
            raise ValueError(f"output_indexes={list(outputs or ())}: {index} is not one of the {len(iterators)} flows")
    metrics = iterators[0].shared_metrics
    for iterator in iterators[1:]:
        metrics.join(iterator.shared_metrics)
    stages = [iterator._take("union") for iterator in iterators]  # noqa: SLF001 - of this module
    stage: Stage = (
        RoundRobinUnion(stages, outputs, weights=weights, strict=strict, seed=seed)
        if in_turn
        else AsyncUnion(stages, outputs, strict=strict)
    )
    return LocalIterator(stage, metrics, f"LocalUnion[{', '.join(map(repr, iterators))}]")


def _check_weights(weights: Sequence[Weight], count: int, in_turn: bool) -> None:
    if not in_turn:
        raise ValueError("round_robin_weights are for mode 'round_robin' only")
    if len(weights) != count:
        raise ValueError(f"round_robin_weights={list(weights)}: one for each of the {count} flows")
    if all(weight == ANYTIME for weight in weights):
        raise ValueError("round_robin_weights: at least one flow must have a number, not '*'")
    if any(
        (isinstance(weight, str) and weight != ANYTIME) or (not isinstance(weight, str) and not weight > 0)
        for weight in weights
    ):
        raise ValueError(f"round_robin_weights={list(weights)}: each a number above 0, or '*'")
