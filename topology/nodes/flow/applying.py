"""The stages that call a function with each item of one other stage, in the driver."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, final

from topology.nodes.flow.events import Signal, Waker
from topology.nodes.flow.items import Item
from topology.nodes.flow.metrics import SharedMetrics
from topology.nodes.flow.naming import name_of_function
from topology.nodes.flow.shard_operators import MOST_THREADS
from topology.nodes.flow.stages import OneInput, Operator, Outcome, Stage, call_user

__all__ = ["Apply", "ApplyAtOnce", "Filter"]


@final
class Apply(OneInput):
    """Calls a function with each value."""

    def __init__(self, source: Stage, fn: Callable[[Any], Any] | Operator, metrics: SharedMetrics) -> None:
        super().__init__(source)
        self.fn = fn
        self._metrics = metrics
        self._held: Item | None = None
        self._announced = False
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

    def get_state(self) -> Any:
        return self._held

    def set_state(self, state: Any) -> None:
        self._held = state

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
class ApplyAtOnce(OneInput):
    """Calls a function with several values at a time, in threads; results come in no order."""

    def __init__(self, source: Stage, fn: Callable[[Any], Any], max_concurrency: int) -> None:
        super().__init__(source)
        self.fn = fn
        self._most = max_concurrency
        self._pool: ThreadPoolExecutor | None = None
        self._running: dict[Future[Any], Item] = {}  # begun, and not handed on
        self._done: deque[Future[Any]] = deque()
        self._again: deque[Item] = deque()  # of an earlier run, to be begun again
        self._waker: Waker | None = None
        self._ended = False

    @property
    def name(self) -> str:
        return name_of_function(self.fn)

    def poll(self, waker: Waker) -> Outcome:
        self._waker = waker
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._most or MOST_THREADS, "flow for_each")
        signal = self._fill(waker)
        while self._done:
            future = self._done.popleft()
            item = self._running.pop(future, None)
            if item is not None:  # otherwise it was begun before the plan was taken back
                return Item(call_user(future.result), item.origins)
        if self._running:
            waker.arm()
            return Signal.PENDING
        if self._ended:
            self._pool.shutdown(wait=False)
            return Signal.END
        return signal

    def _fill(self, waker: Waker) -> Signal:
        # Without a bound only until there is a result: where items never end it would otherwise read on for ever.
        while not self._ended and (len(self._running) < self._most if self._most else not self._done):
            outcome = self._again.popleft() if self._again else self._source.poll(waker)
            if isinstance(outcome, Signal):
                self._ended = outcome is Signal.END
                return outcome
            assert self._pool is not None
            future = self._pool.submit(self.fn, outcome.value)
            self._running[future] = outcome
            future.add_done_callback(self._arrived)
        return Signal.PENDING

    def _arrived(self, future: Future[Any]) -> None:
        self._done.append(future)
        if self._waker is not None:
            self._waker.wake()

    def get_state(self) -> Any:
        return [*self._running.values(), *self._again]

    def set_state(self, state: Any) -> None:
        for future in self._running:
            future.cancel()
        self._running, self._done, self._again = {}, deque(), deque(state)


@final
class Filter(OneInput):
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
