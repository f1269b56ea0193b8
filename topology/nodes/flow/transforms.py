"""The stages that put the items of one other stage into another form or order, in the driver."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

from topology.nodes.flow.actors import ActorGroup
from topology.nodes.flow.events import Signal, Waker
from topology.nodes.flow.items import Item, merge_origins
from topology.nodes.flow.metrics import SharedMetrics
from topology.nodes.flow.naming import name_of_function
from topology.nodes.flow.stages import OneInput, Outcome, Stage, parts_of, pull, transformed

__all__ = ["BatchItems", "Flatten", "Shuffle", "Transform", "ZipWithSource"]


@final
class BatchItems(OneInput):
    """Lists of values; the last one may be shorter."""

    def __init__(self, source: Stage, size: int) -> None:
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

    def get_state(self) -> Any:
        return list(self._waiting)

    def set_state(self, state: Any) -> None:
        self._waiting = list(state)


@final
class Flatten(OneInput):
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
            self._parts = parts_of(outcome.value, "flatten() or combine()")

    def _merged(self) -> tuple[Any, ...]:
        if self._waiting:
            self._origins = merge_origins(self._waiting)
            self._waiting = []
        return self._origins

    def get_state(self) -> Any:
        parts = list(self._parts)
        self._parts = iter(parts)
        return {"parts": Item(parts, self._origins), "waiting": [Item(None, origins) for origins in self._waiting]}

    def set_state(self, state: Any) -> None:
        self._parts, self._origins = iter(state["parts"].value), state["parts"].origins
        self._waiting = [item.origins for item in state["waiting"]]


@final
class Shuffle(OneInput):
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

    def get_state(self) -> Any:
        return {"waiting": list(self._waiting), "random": self._random.getstate()}

    def set_state(self, state: Any) -> None:
        self._waiting = list(state["waiting"])
        self._random.setstate(state["random"])


@final
class Transform(OneInput):
    """Whatever a generator function makes of the whole stream. It blocks the plan while the generator waits for items.

    A generator cannot be left in the middle of a wait; put it at the end of a plan, or give it items that are there.
    When it raises, the function is called again with what is left of the stream. What a generator holds is in no state
    of the plan.
    """

    def __init__(self, source: Stage, fn: Callable[[Iterator[Any]], Iterable[Any]], metrics: SharedMetrics) -> None:
        super().__init__(source)
        self.fn = fn
        self._metrics = metrics
        self._results: Iterator[Any] | None = None
        self._waker: Waker | None = None  # its own: what has woken the plan meanwhile must not be forgotten
        self._taken: list[Item] = []

    @property
    def name(self) -> str:
        return f"transform({name_of_function(self.fn)})"

    def poll(self, waker: Waker) -> Outcome:
        if self._waker is None:
            self._waker = waker.nested()
        with self._metrics.active():
            if self._results is None:
                self._results = transformed(self.fn, self._items())
            try:
                for value in self._results:
                    origins = merge_origins(item.origins for item in self._taken)
                    self._taken = []
                    return Item(value, origins)
            except BaseException:
                self._results = None  # a generator that has raised is over
                raise
        return Signal.END

    def _items(self) -> Iterator[Any]:
        assert self._waker is not None  # made by the first poll
        while isinstance(outcome := pull(self._source, self._waker), Item):
            self._taken.append(outcome)
            yield outcome.value


@final
class ZipWithSource(OneInput):
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
