"""The stages that do something to the items of one other stage, in the driver."""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, final

from topology.nodes.flow.actors import ActorGroup
from topology.nodes.flow.events import Signal, Waker
from topology.nodes.flow.items import Item, merge_origins
from topology.nodes.flow.metrics import SharedMetrics
from topology.nodes.flow.naming import name_of_function
from topology.nodes.flow.stages import Operator, Outcome, Stage, call_user, pull

__all__ = [
    "Apply",
    "ApplyAtOnce",
    "BatchItems",
    "Filter",
    "Flatten",
    "Shuffle",
    "Transform",
    "ZipWithSource",
]


class _OneInput(Stage):
    def __init__(self, source: Stage) -> None:
        self.inputs = (source,)
        self._source = source


@final
class Apply(_OneInput):
    """Calls a function with each value."""

    def __init__(self, source: Stage, fn: Callable[[Any], Any] | Operator, metrics: SharedMetrics) -> None:
        super().__init__(source)
        self.fn = fn
        self._metrics = metrics
        self._held: Item | None = None
        self._on_fetch_start: Callable[[], None] | None = getattr(fn, "_on_fetch_start", None)

    @property
    def name(self) -> str:
        return name_of_function(self.fn)

    def poll(self, waker: Waker) -> Outcome:
        item = self._held
        if item is None:
            if self._on_fetch_start is not None:
                self._announce()
            outcome = self._source.poll(waker)
            if isinstance(outcome, Signal):
                return outcome
            item = outcome
            self._announced = False
        self._held = None
        origins = item.origins
        token = self._metrics.enter(origins[-1].actor if origins else None)
        try:
            if isinstance(self.fn, Operator):
                result = self.fn.process(item, waker)
                if isinstance(result, Signal):
                    self._held = item  # asked again with the same one: nothing is lost
                    return result
            else:
                result = call_user(self.fn, item.value)
        finally:
            self._metrics.leave(token)
        return Item(result, origins)

    _announced = False

    def _announce(self) -> None:
        """Tells the function that an item is being waited for, once for each."""
        if not self._announced and self._on_fetch_start is not None:
            self._announced = True
            token = self._metrics.enter(None)
            try:
                self._on_fetch_start()
            finally:
                self._metrics.leave(token)


@final
class ApplyAtOnce(_OneInput):
    """Calls a function with several values at a time, in threads; results come in no order."""

    def __init__(self, source: Stage, fn: Callable[[Any], Any], max_concurrency: int) -> None:
        super().__init__(source)
        self.fn = fn
        self._most = max_concurrency
        self._pool: ThreadPoolExecutor | None = None
        self._running: set[Future[Any]] = set()
        self._done: deque[tuple[Item, Future[Any]]] = deque()
        self._waker: Waker | None = None
        self._ended = False

    @property
    def name(self) -> str:
        return name_of_function(self.fn)

    def poll(self, waker: Waker) -> Outcome:
        self._waker = waker
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._most or 256, "flow for_each")
        signal = self._fill(waker)
        if self._done:
            item, future = self._done.popleft()
            self._running.discard(future)
            return Item(call_user(future.result), item.origins)
        if self._running:
            waker.arm()
            return Signal.PENDING
        if self._ended:
            self._pool.shutdown(wait=False)
            return Signal.END
        return signal

    def _fill(self, waker: Waker) -> Signal:
        while not self._ended and (not self._most or len(self._running) < self._most):
            outcome = self._source.poll(waker)
            if isinstance(outcome, Signal):
                self._ended = outcome is Signal.END
                return outcome
            assert self._pool is not None
            future = self._pool.submit(self.fn, outcome.value)
            self._running.add(future)
            future.add_done_callback(functools.partial(self._arrived, outcome))
        return Signal.PENDING

    def _arrived(self, item: Item, future: Future[Any]) -> None:
        self._done.append((item, future))
        if self._waker is not None:
            self._waker.wake()


@final
class Filter(_OneInput):
    """Keeps the values for which a function is true."""

    def __init__(self, source: Stage, fn: Callable[[Any], Any], metrics: SharedMetrics) -> None:
        super().__init__(source)
        self.fn = fn
        self._metrics = metrics

    @property
    def name(self) -> str:
        return f"filter({name_of_function(self.fn)})"

    def poll(self, waker: Waker) -> Outcome:
        while True:
            outcome = self._source.poll(waker)
            if isinstance(outcome, Signal):
                return outcome
            origins = outcome.origins
            token = self._metrics.enter(origins[-1].actor if origins else None)
            try:
                if call_user(self.fn, outcome.value):
                    return outcome
            finally:
                self._metrics.leave(token)


@final
class BatchItems(_OneInput):
    """Lists of values; the last one may be shorter."""

    def __init__(self, source: Stage, size: int) -> None:
        if size < 1:
            raise ValueError(f"batch({size}): at least 1")
        super().__init__(source)
        self._size = size
        self._waiting: list[Item] = []

    @property
    def name(self) -> str:
        return f"batch({self._size})"

    def poll(self, waker: Waker) -> Outcome:
        while len(self._waiting) < self._size:
            outcome = self._source.poll(waker)
            if outcome is Signal.END and self._waiting:
                break
            if isinstance(outcome, Signal):
                return outcome
            self._waiting.append(outcome)
        waiting, self._waiting = self._waiting, []
        return Item([item.value for item in waiting], merge_origins(item.origins for item in waiting))


@final
class Flatten(_OneInput):
    """The parts of each value. Origins of values without parts go to what comes next: it was made of them, too."""

    name = "flatten"

    def __init__(self, source: Stage) -> None:
        super().__init__(source)
        self._parts: Iterator[Any] = iter(())
        self._origins: tuple[Any, ...] = ()
        self._waiting: list[tuple[Any, ...]] = []

    def poll(self, waker: Waker) -> Outcome:
        while True:
            for part in self._parts:
                return Item(part, self._merged())
            outcome = self._source.poll(waker)
            if isinstance(outcome, Signal):
                return outcome
            self._waiting.append(outcome.origins)
            self._parts = iter(outcome.value)

    def _merged(self) -> tuple[Any, ...]:
        if self._waiting:
            self._origins = merge_origins(self._waiting)
            self._waiting = []
        return self._origins


@final
class Shuffle(_OneInput):
    """Each item trades places with a random one of those that wait."""

    def __init__(self, source: Stage, size: int, seed: int | None) -> None:
        super().__init__(source)
        self._size = size
        self._random = random.Random(seed)
        self._waiting: list[Item] = []

    @property
    def name(self) -> str:
        return f"shuffle({self._size})"

    def poll(self, waker: Waker) -> Outcome:
        while len(self._waiting) < self._size:
            outcome = self._source.poll(waker)
            if outcome is Signal.END:
                break
            if isinstance(outcome, Signal):
                return outcome
            self._waiting.append(outcome)
        if not self._waiting:
            return Signal.END
        return self._waiting.pop(self._random.randrange(len(self._waiting)))


@final
class Transform(_OneInput):
    """Whatever a generator function makes of the whole stream. It blocks the plan while the generator waits for items.

    A generator cannot be left in the middle of a wait; put it at the end of a plan, or give it items that are there.
    """

    def __init__(self, source: Stage, fn: Callable[[Iterator[Any]], Iterable[Any]], metrics: SharedMetrics) -> None:
        super().__init__(source)
        self.fn = fn
        self._metrics = metrics
        self._results: Iterator[Any] | None = None
        self._waker = Waker()  # its own: what has woken the plan meanwhile must not be forgotten
        self._taken: list[Item] = []

    @property
    def name(self) -> str:
        return f"transform({name_of_function(self.fn)})"

    def poll(self, waker: Waker) -> Outcome:  # noqa: ARG002 - waits for itself
        if self._results is None:
            self._results = iter(self.fn(self._items()))
        with self._metrics.active():
            for value in self._results:
                origins = merge_origins(item.origins for item in self._taken)
                self._taken = []
                return Item(value, origins)
        return Signal.END

    def _items(self) -> Iterator[Any]:
        while isinstance(outcome := pull(self._source, self._waker), Item):
            self._taken.append(outcome)
            yield outcome.value


@final
class ZipWithSource(_OneInput):
    """Pairs of the worker, or the group of workers, that a value came from, and the value."""

    name = "zip_with_source_actor"

    def poll(self, waker: Waker) -> Outcome:
        outcome = self._source.poll(waker)
        if isinstance(outcome, Signal):
            return outcome
        actors = list(dict.fromkeys(origin.actor for origin in outcome.origins))
        if not actors:
            raise ValueError("zip_with_source_actor(): the item was made by the driver, not by a worker")
        return Item((actors[0] if len(actors) == 1 else ActorGroup(actors), outcome.value), outcome.origins)
