"""A lazy stream in the driver of a plan, made of named operators."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast, final

from topology.nodes.flow.applying import Apply, ApplyAtOnce, Filter
from topology.nodes.flow.checks import check_callable, check_whole
from topology.nodes.flow.events import Waker
from topology.nodes.flow.items import Item
from topology.nodes.flow.metrics import MetricsContext, SharedMetrics, get_shared_metrics
from topology.nodes.flow.shard_operators import check_concurrency
from topology.nodes.flow.stages import FromIterable, Operator, Stage, pull
from topology.nodes.flow.transforms import BatchItems, Flatten, Shuffle, Transform, ZipWithSource
from topology.nodes.flow.union import ANYTIME, AsyncUnion, Copies, Copy, RoundRobinUnion, Weight

__all__ = ["LocalIterator", "join"]

_waking = threading.Lock()  # held for a moment, by who makes the waker of an iterator

T = TypeVar("T")
U = TypeVar("U")


@final
class LocalIterator(Generic[T]):
    """A stream of values that the driver's thread pulls, one at a time. Nothing happens before the first pull.

    Each operator gives a new iterator and takes this one's place: an iterator that was built on is not read any more,
    since both would take each other's items; `duplicate` makes several that see all of them. `next()` blocks until
    there is a value, without polling, and raises what operators and workers raise; the plan can be pulled again then.
    Picklable before the first pull. For one thread at a time.

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
        """The next value with its origins; None at the end. Blocks.

        Raises:
            RuntimeError: something was built on this iterator, another thread reads it, or no flow of it can go on.
            PlanClosed: `close` was called.
            ProgramStopped: the program stops.
            Exception: what an operator, a learner or a worker raised.
        """
        if self._taken_by is not None:
            raise RuntimeError(
                f"{self!r} is read by {self._taken_by}: read that, or make two readers of it with duplicate()"
            )
        waker = self._own_waker()
        with waker.reading(self.name):
            outcome = pull(self._stage, waker)
        return outcome if isinstance(outcome, Item) else None

    def close(self) -> None:
        """Ends a wait for the next value, in whatever thread, and all later ones. Workers are not told."""
        self._own_waker().close()

    def _own_waker(self) -> Waker:
        if self._waker is None:
            with _waking:  # two threads may come first: one of them is refused, by the same waker
                self._waker = self._waker or Waker()
        return self._waker

    def take(self, n: int) -> list[T]:
        """The next `n` values, fewer at the end."""
        check_whole("take()", n, 0)
        values: list[T] = []
        while len(values) < n and (item := self.next_item()) is not None:
            values.append(item.value)
        return values

    def show(self, n: int = 20) -> None:
        """Prints the next `n` values."""
        for value in self.take(n):
            print(value)  # noqa: T201 - what it is for

    # --- operators ---------------------------------------------------------------------------------------------------

    def for_each(
        self, fn: Callable[[T], U] | Operator, max_concurrency: int = 1, resources: Mapping[str, Any] | None = None
    ) -> LocalIterator[U]:
        """What `fn` makes of each value; with `max_concurrency` above 1 so many at a time, in no order; 0 for no bound.

        Args:
            fn: a function, or an `Operator`.
            max_concurrency: values at a time, in threads.
            resources: not needed here; accepted for programs that say so.

        Raises:
            TypeError: `fn` cannot be called.
            ValueError: `max_concurrency` is negative, or not 1 for an operator that sees items in order.
        """
        del resources
        _check_function("for_each()", fn)
        check_concurrency(max_concurrency)
        if max_concurrency == 1:
            return self._then(Apply(self._take("for_each"), fn, self.shared_metrics), "for_each()")
        if isinstance(fn, Operator):
            raise ValueError(  # noqa: TRY004 - the number is wrong
                f"{type(fn).__name__} sees items in order: it cannot have max_concurrency={max_concurrency}"
            )
        return self._then(ApplyAtOnce(self._take("for_each"), fn, max_concurrency), "for_each()")

    def filter(self, fn: Callable[[T], Any]) -> LocalIterator[T]:
        """The values for which `fn` is true. Raises `TypeError` for what cannot be called."""
        check_callable("filter()", fn)
        return self._then(Filter(self._take("filter"), fn, self.shared_metrics), "filter()")

    def batch(self, n: int) -> LocalIterator[list[T]]:
        """Lists of `n` values; the last one may be shorter. Raises `ValueError` for `n` below 1."""
        check_whole("batch()", n, 1)
        return self._then(BatchItems(self._take("batch"), n), f"batch({n})")

    def flatten(self) -> LocalIterator[Any]:
        """The values in each value."""
        return self._then(Flatten(self._take("flatten")), "flatten()")

    def combine(self, fn: Callable[[T], Sequence[U]] | Operator) -> LocalIterator[U]:
        """The values in the list that `fn` makes of each value; an empty list for none yet."""
        _check_function("combine()", fn)
        applied = Apply(self._take("combine"), fn, self.shared_metrics)
        return self._then(Flatten(applied), "combine()")

    def transform(self, fn: Callable[[Iterator[T]], Iterable[U]]) -> LocalIterator[U]:
        """Whatever a generator function makes of the whole stream; see `transforms.Transform`."""
        check_callable("transform()", fn)
        return self._then(Transform(self._take("transform"), fn, self.shared_metrics), "transform()")

    def shuffle(self, shuffle_buffer_size: int, seed: int | None = None) -> LocalIterator[T]:
        """Each value trades places with a random one of so many that wait. Raises `ValueError` for less than 1."""
        check_whole("shuffle()", shuffle_buffer_size, 1)
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
        check_whole("duplicate()", n, 2)
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
        self._check_free()
        self._taken_by = reader
        return self._stage

    def _check_free(self) -> None:
        if self._taken_by is not None:
            raise ValueError(f"{self!r} is read by {self._taken_by} already: make two readers of it with duplicate()")

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
        iterator._check_free()  # noqa: SLF001 - of this module
    if len(iterators) < 2:
        raise ValueError(f"at least two flows can be joined, got {len(iterators)}")
    if len({id(iterator) for iterator in iterators}) < len(iterators):
        raise ValueError("one of the flows to be joined is there twice: make two readers of it with duplicate()")
    if weights is not None:
        _check_weights(weights, len(iterators), in_turn)
    if outputs is not None:
        _check_outputs(outputs, len(iterators))
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


def _check_function(name: str, fn: Callable[..., Any] | Operator) -> None:
    if not isinstance(fn, Operator):
        check_callable(name, fn)


def _check_weights(weights: Sequence[Weight], count: int, in_turn: bool) -> None:
    if not in_turn:
        raise ValueError("round_robin_weights are for mode 'round_robin' only")
    if len(weights) != count:
        raise ValueError(f"round_robin_weights={list(weights)}: one for each of the {count} flows")
    if all(weight == ANYTIME for weight in weights):
        raise ValueError("round_robin_weights: at least one flow must have a number, not '*'")
    if not all(
        weight == ANYTIME or (isinstance(weight, int | float) and 0 < weight < math.inf)  # nan is neither
        for weight in weights
    ):
        raise ValueError(f"round_robin_weights={list(weights)}: each a number above 0, or '*'")


def _check_outputs(outputs: Collection[int], count: int) -> None:
    if not outputs:
        raise ValueError("output_indexes is empty: nothing would ever come out of the plan")
    for index in outputs:
        if not isinstance(index, int) or not 0 <= index < count:
            raise ValueError(f"output_indexes={list(outputs)}: {index!r} is not one of the {count} flows")
