"""What the parts of a plan that run in the driver have in common, and how they are driven."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, final

from topology.nodes.flow.events import Signal, Waker
from topology.nodes.flow.items import Item
from topology.nodes.flow.naming import name_of_function

__all__ = ["FromIterable", "OneInput", "Operator", "Outcome", "Stage", "call_user", "parts_of", "pull", "transformed"]

Outcome = Item | Signal
"""What a stage answers: an item, or why there is none."""

DRIVER = "driver"


class Stage(abc.ABC):
    """Part of a plan that gives items when asked. For the thread that drives the plan.

    Attributes:
        inputs: the stages it asks.
        place: where it runs, e.g. "driver".
    """

    place: ClassVar[str] = DRIVER
    inputs: tuple[Stage, ...] = ()

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """For people."""

    @abc.abstractmethod
    def poll(self, waker: Waker) -> Outcome:
        """The next item, or why there is none; then `waker` is woken once there may be one. Does not block."""

    def get_state(self) -> Any:
        """What it holds from one item to the next, as plain data and `Item`s; None for nothing. See `states`."""
        return None

    def set_state(self, state: Any) -> None:
        """Takes `get_state` back, in the place of what it holds."""
        if state is not None:
            raise ValueError(f"{self.name} holds nothing, and was to take up {type(state).__name__}")


class OneInput(Stage):
    """A stage that asks one other stage."""

    def __init__(self, source: Stage) -> None:
        self.inputs = (source,)
        self._source = source


class Operator(abc.ABC):
    """An operator that sees whole items, or may have to wait. Give it to `LocalIterator.for_each`."""

    @abc.abstractmethod
    def process(self, item: Item, waker: Waker) -> Any:
        """What becomes of the item's value; or a `Signal`: it is then given the same item again when woken."""


def pull(stage: Stage, waker: Waker) -> Outcome:
    """The next item, or `Signal.END`; blocks until there is one. Raises what operators and workers raise."""
    while True:
        waker.clear()
        outcome = stage.poll(waker)
        if isinstance(outcome, Item) or outcome is Signal.END:
            return outcome
        waker.wait()


def call_user(fn: Callable[..., Any], *args: Any) -> Any:
    """A call of a user's function, whose StopIteration is an error like any other."""
    try:
        return fn(*args)
    except StopIteration as error:
        raise RuntimeError(f"{name_of_function(fn)} raised StopIteration, which does not end a plan") from error


def parts_of(value: Any, who: str) -> Iterator[Any]:
    """An iterator over the parts of a value.

    Raises:
        TypeError: it has none.
    """
    try:
        return iter(value)
    except TypeError as error:
        raise TypeError(
            f"{who} takes values that have parts, such as lists (an empty one for none), got {type(value).__name__}"
        ) from error


def transformed(fn: Callable[[Iterator[Any]], Iterable[Any]], items: Iterator[Any]) -> Iterator[Any]:
    """What a user's generator function makes of items.

    Raises:
        TypeError: it returned no iterable.
    """
    results = call_user(fn, items)
    if not isinstance(results, Iterable):
        raise TypeError(
            f"transform() takes a function that returns an iterator, such as a generator function; "
            f"{name_of_function(fn)} returned {type(results).__name__}"
        )
    return iter(results)


@final
class FromIterable(Stage):
    """Items of a Python iterable, begun anew never. `factory` is called at the first pull."""

    def __init__(self, factory: Callable[[], Iterable[Any]], name: str) -> None:
        self._factory = factory
        self._name = name
        self._items: Iterator[Any] | None = None

    @property
    def name(self) -> str:
        return self._name

    def poll(self, waker: Waker) -> Outcome:
        waker.check()
        if self._items is None:
            items = self._factory()
            if not isinstance(items, Iterable):
                raise TypeError(f"a LocalIterator is made of an iterable, got {type(items).__name__}")
            self._items = iter(items)
        for value in self._items:
            return Item(value)
        return Signal.END
