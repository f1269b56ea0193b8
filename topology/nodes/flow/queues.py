"""Bounded queues between a plan and threads beside it. Threads block; the plan is woken."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, final

from topology.clock import SYSTEM_CLOCK, Clock
from topology.errors import TopologyError
from topology.nodes.flow.checks import check_callable, check_whole
from topology.nodes.flow.events import Signal, Waker
from topology.nodes.flow.items import Item
from topology.nodes.flow.local_iterator import LocalIterator
from topology.nodes.flow.metrics import SharedMetrics
from topology.nodes.flow.stages import Operator, Outcome, Stage

__all__ = ["Dequeue", "Enqueue", "Queue", "QueueClosed"]

_CHECK_S = 1.0


def _never() -> bool:
    return False


class QueueClosed(TopologyError):
    """Nothing will ever come, or go, through the queue again."""


@final
class Queue:
    """A queue for any number of threads, and for plans.

    Args:
        maxsize: most items in it; 0 for no bound.
        clock: of the timeouts.

    Raises:
        ValueError: `maxsize` is no whole number, or negative.
    """

    def __init__(self, maxsize: int = 0, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.maxsize = check_whole("maxsize", maxsize, 0)
        self._clock = clock
        self._changed = threading.Condition()
        self._items: deque[Any] = deque()
        self._closed = False
        self._error: BaseException | None = None
        self._wakers: set[Waker] = set()

    def __repr__(self) -> str:
        return f"<flow.Queue {len(self._items)} of {self.maxsize or 'any number'}{', closed' * self._closed}>"

    def qsize(self) -> int:
        """How many items are in it now."""
        return len(self._items)

    def empty(self) -> bool:
        """Whether there is none now."""
        return not self._items

    def full(self) -> bool:
        """Whether there is no room now."""
        return 0 < self.maxsize <= len(self._items)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    # --- for threads -------------------------------------------------------------------------------------------------

    def put(self, item: Any, timeout: float | None = None) -> None:
        """Puts an item in; blocks while there is no room.

        Raises:
            TimeoutError: there was none in `timeout` seconds.
            QueueClosed: the queue is closed; or the error it was closed with.
        """
        with self._changed:
            if not self._clock.wait_for(self._changed, lambda: self._closed or not self.full(), timeout):
                raise TimeoutError(f"no room in {self!r} within {timeout} s")
            self._raise_if_closed()
            self._items.append(item)
            self._tell()

    def get(self, timeout: float | None = None) -> Any:
        """Takes the oldest item out; blocks while there is none. Raises like `put`, once the last item is gone."""
        with self._changed:
            if not self._clock.wait_for(self._changed, lambda: self._closed or bool(self._items), timeout):
                raise TimeoutError(f"nothing in {self!r} within {timeout} s")
            if not self._items:
                self._raise_if_closed()
            item = self._items.popleft()
            self._tell()
            return item

    def wait_for_item(self, timeout: float | None = None, *, unless: Callable[[], bool] = _never) -> bool:
        """Blocks until `get` has something to give or to raise; False if that took `timeout` seconds.

        Or until `unless()` is true, which is asked whenever the queue changes.
        """
        with self._changed:
            return self._clock.wait_for(self._changed, lambda: self._closed or bool(self._items) or unless(), timeout)

    def wait_for_room(self, timeout: float | None = None) -> bool:
        """Blocks until `put` would not; False if that took `timeout` seconds."""
        with self._changed:
            return self._clock.wait_for(self._changed, lambda: self._closed or not self.full(), timeout)

    def get_state(self) -> list[Any]:
        """What is in it now."""
        with self._changed:
            return list(self._items)

    def set_state(self, state: Sequence[Any]) -> None:
        """Takes `get_state` back, in the place of what is in it."""
        with self._changed:
            self._items = deque(state)
            self._tell()

    def close(self, error: BaseException | None = None) -> None:
        """Ends the queue: what is in it can still be taken. With `error`, readers and writers raise that."""
        with self._changed:
            if not self._closed:
                self._closed, self._error = True, error
            self._tell()

    # --- for plans ---------------------------------------------------------------------------------------------------

    def try_put(self, item: Any, waker: Waker) -> bool:
        """Puts an item in if there is room; otherwise the waker is woken when there may be. Raises like `put`."""
        with self._changed:
            self._raise_if_closed()
            if self.full():
                self._remember(waker)
                return False
            self._items.append(item)
            self._tell()
            return True

    def try_get(self, waker: Waker) -> Item | None:
        """Takes an item out if there is one; otherwise the waker is woken when there may be. Raises like `get`."""
        with self._changed:
            if self._items:
                item = self._items.popleft()
                self._tell()
                return Item(item)
            self._raise_if_closed()
            self._remember(waker)
            return None

    def _remember(self, waker: Waker) -> None:
        self._wakers.add(waker)
        waker.arm()

    def _tell(self) -> None:
        """Something has changed; the lock is held."""
        self._changed.notify_all()
        for waker in self._wakers:
            waker.wake()
        self._wakers.clear()

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise QueueClosed(f"{self!r} is closed") if self._error is None else self._error


def _check(queue: object, who: str) -> Queue:
    if not isinstance(queue, Queue):
        raise ValueError(  # noqa: TRY004 - as everybody knows it
            f"{who}() takes a topology.nodes.flow.Queue, which wakes a plan that waits for it, got {queue!r}"
        )
    return queue


@final
class Enqueue(Operator):
    """Puts each value into a queue, and hands it on. While there is no room it is kept, and nothing new asked for.

    Args:
        output_queue: where to.

    Raises:
        ValueError: not a `Queue`.
    """

    def __init__(self, output_queue: Queue) -> None:
        self.queue = _check(output_queue, "Enqueue")
        self.flow_shared = (self.queue,)

    def process(self, item: Item, waker: Waker) -> Any:
        return item.value if self.queue.try_put(item.value, waker) else Signal.STALLED


@final
class _DequeueStage(Stage):
    name = "Dequeue"

    def __init__(self, queue: Queue, check: Callable[[], bool]) -> None:
        self.queue = queue
        self.flow_shared = (queue,)
        self._is_alive = check_callable("check of Dequeue()", check)
        # Who closes its queues at its end wakes us; others have to be looked after.
        self._tells = getattr(getattr(check, "__self__", None), "closes_its_queues", False)

    def poll(self, waker: Waker) -> Outcome:
        waker.check()
        try:
            item = self.queue.try_get(waker)
        except QueueClosed:
            return Signal.END
        if item is not None:
            return item
        if not self._tells:
            if not self._is_alive():
                raise RuntimeError(
                    "Dequeue: check() returned False, so nothing will be put into the queue any more; see why its "
                    "writer ended"
                )
            waker.wake_at(waker.clock.monotonic() + _CHECK_S)
        return Signal.STALLED


def _always() -> bool:
    return True


def Dequeue(input_queue: Queue, check: Callable[[], bool] = _always) -> LocalIterator[Any]:  # noqa: N802 - its name
    """The items of a queue as they come; ends with the queue.

    Reading it raises the error that the queue was closed with, such as that of a learner's thread.

    Args:
        input_queue: where from.
        check: whether there may be more; asked once a second while there is nothing. Not asked where it belongs to a
            `LearnerThread`, which closes its queues.

    Raises:
        ValueError: not a `Queue`.
    """
    if check is _always:
        check = _Told().is_alive
    return LocalIterator(_DequeueStage(_check(input_queue, "Dequeue"), check), SharedMetrics())


@final
class _Told:
    closes_its_queues = True

    def is_alive(self) -> bool:
        return True
