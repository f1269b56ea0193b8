"""How a plan waits: for the first of many events, in one thread, without polling.

A stage of a plan is asked for an item with a `Waker`. If it has none it says why (`Signal`) and remembers the waker;
whatever may change the answer (a reply, room in a queue) wakes it, from any thread. The thread that drives the plan
then asks again. Nobody ever asks without having been woken.
"""

from __future__ import annotations

import enum
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, final

from topology.clock import SYSTEM_CLOCK, Clock
from topology.context import StopToken, try_get_context
from topology.errors import ProgramStopped, TopologyError

__all__ = ["PlanClosed", "Signal", "Waker"]

_READS_ITSELF_S = 0.02
"""How long a thread that needs every one of some futures reads their replies itself, one after the other.

Reading costs less than being told. But while it reads one reply it sees neither another one fail nor the program stop,
so that what takes longer is waited for like anything else: then either ends the wait at once.
"""


class Signal(enum.Enum):
    """Why a stage has no item now.

    PENDING: one is under way, whatever the other flows of the plan do. `Concurrently` in turns waits for it.
    STALLED: another flow has to act first, say fill a replay buffer or empty a queue: the turn goes to the others.
    END: there will never be one again.
    """

    PENDING = enum.auto()
    STALLED = enum.auto()
    END = enum.auto()


class PlanClosed(TopologyError):
    """This side has closed the plan."""


@final
class Waker:
    """Wakes the one thread that drives a plan.

    Args:
        clock: of the deadlines.
        stop: ends every wait with `ProgramStopped`; that of the current node by default.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK, stop: StopToken | None = None) -> None:
        self._clock = clock
        self._condition = threading.Condition()
        self._awake = False
        self._stopped = False
        self._closed = False
        self._reader = threading.Lock()
        self._nested: list[Waker] = []
        self._armed = False
        self._futures: Sequence[Future[Any]] = ()
        self._alone = True  # whether nothing but `_futures` was promised
        self._heard: weakref.WeakSet[Future[Any]] = weakref.WeakSet()  # those that tell when they are done
        self._until: float | None = None
        context = try_get_context()
        token = stop or (context.stop if context is not None else None)
        if token is not None:
            _subscribe(token, weakref.WeakMethod(self._on_stop))

    @property
    def clock(self) -> Clock:
        """Tells the time of the deadlines."""
        return self._clock

    @contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """Around whatever asks and waits.

        Raises:
            RuntimeError: another thread does so, or this one already does.
        """
        if not self._reader.acquire(blocking=False):
            raise RuntimeError(
                f"{what} is being read, by another thread or by an operator of its own: an iterator has one reader at "
                "a time"
            )
        try:
            yield
        finally:
            self._reader.release()

    def nested(self) -> Waker:
        """One for a wait inside of what this one's thread does: what wakes this one does not wake it, an end does."""
        waker = Waker(self._clock)
        self._nested.append(waker)
        if self._closed:
            waker.close()
        return waker

    def close(self) -> None:
        """Ends the plan: every wait, now and later. From any thread."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        for waker in list(self._nested):
            waker.close()

    def check(self) -> None:
        """Called by whatever begins an item, so that a plan that never has to wait ends, too.

        Raises:
            ProgramStopped: the program stops.
            PlanClosed: `close` was called.
        """
        if self._stopped:
            raise ProgramStopped("the program stopped while a plan waited for its next item")
        if self._closed:
            raise PlanClosed("the plan was closed: build it anew to go on")

    def clear(self) -> None:
        """Forgets earlier wake-ups; call it before asking a stage."""
        self._awake = False
        self._armed = False
        self._futures = ()
        self._alone = True
        self._until = None

    def arm(self) -> None:
        """Says that somebody outside this thread will call `wake`, sooner or later."""
        self._armed = True
        self._alone = False

    def arm_futures(self, futures: Sequence[Future[Any]], *, every: bool = False) -> None:
        """Wakes the thread when one of these is done.

        Args:
            futures: to be waited for.
            every: whether all of them are needed: the thread is woken when all are done, or one has failed. Then, and
                where there is only one, it may read the replies itself if there is nothing else to wait for, which
                costs less than being woken.
        """
        self._armed = True
        if self._futures or not (every or len(futures) == 1):
            self._alone = False
        self._futures = [*self._futures, *futures] if self._futures else futures

    def wake_at(self, time_s: float) -> None:
        """Ends the wait at that time of the clock at the latest."""
        self._armed = True
        self._until = time_s if self._until is None else min(self._until, time_s)

    def wake(self) -> None:
        """Ends the wait, or the next one. From any thread; cheap when nobody waits."""
        if self._awake:
            return
        with self._condition:
            self._awake = True
            self._condition.notify_all()

    def wait(self) -> None:
        """Blocks until `wake`, the earliest `wake_at`, or the stop of the program.

        Raises:
            ProgramStopped: the program stops.
            PlanClosed: `close` was called.
            RuntimeError: nobody has promised to wake it: the plan can never go on.
        """
        if self._futures and not self._awake:
            if self._alone and self._until is None and self._read_all():
                return
            self._listen()
        with self._condition:
            if not self._armed and not self._is_over():
                raise RuntimeError(
                    "the plan can never go on: every flow in it waits for another one that nobody drives. A replay "
                    "buffer needs a flow that fills it, and both halves of duplicate() must be driven: join them "
                    "with Concurrently()"
                )
            timeout_s = None if self._until is None else max(0.0, self._until - self._clock.monotonic())
            self._clock.wait_for(self._condition, self._is_over, timeout_s)
        self.check()

    def _read_all(self) -> bool:
        """Reads for a while; returns whether all are done, or one has failed."""
        end = SYSTEM_CLOCK.monotonic() + _READS_ITSELF_S
        try:
            for future in self._futures:
                if future.exception(max(0.0, end - SYSTEM_CLOCK.monotonic())) is not None:
                    return True
        except TimeoutError:
            return False
        return True

    def _listen(self) -> None:
        """Has the futures tell when they are done; if all are needed, when the last one is, or one has failed."""
        needed = _Needed(self.wake, len(self._futures)) if self._alone else None
        for future in self._futures:
            if needed is not None:
                future.add_done_callback(needed.on_done)
            elif future not in self._heard:
                self._heard.add(future)
                future.add_done_callback(self._on_done)

    def _on_done(self, _: Future[Any]) -> None:
        self.wake()

    def _is_over(self) -> bool:
        return self._awake or self._stopped or self._closed

    def _on_stop(self) -> None:
        with self._condition:
            self._stopped = True
            self._condition.notify_all()


@final
class _Needed:
    """Wakes a thread that needs all of so many futures: when the last is done, or one has failed."""

    def __init__(self, wake: Callable[[], None], count: int) -> None:
        self._wake = wake
        self._left = count
        self._lock = threading.Lock()

    def on_done(self, future: Future[Any]) -> None:
        """A callback of each future."""
        with self._lock:
            self._left -= 1
            over = not self._left
        if over or future.cancelled() or future.exception() is not None:
            self._wake()


def _subscribe(token: StopToken, handler: weakref.WeakMethod[Callable[[], None]]) -> None:
    """The program must not keep the wakers of iterators that everybody else has dropped."""

    def tell() -> None:
        on_stop = handler()
        if on_stop is not None:
            on_stop()

    token.subscribe(tell)
