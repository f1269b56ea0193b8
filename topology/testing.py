"""Tools for tests of programs; they need no test framework.

`ManualClock` moves time by hand, `Gate` holds code at a point, `Sequencer` orders blocks of several threads, `within`
bounds a call that may hang, `no_leaks` fails when something is left behind, `assert_graph_equal` shows how two graphs
differ. Every wait has a deadline in real seconds, after which it fails with a reason.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar, final

from topology.clock import Deadline
from topology.graph import ProgramGraph
from topology.leak_guard import no_leaks, stack_of
from topology.program import Program

__all__ = ["Gate", "ManualClock", "Sequencer", "assert_graph_equal", "no_leaks", "within"]

DEADLINE_S = 30.0

ResultT = TypeVar("ResultT")


@final
class ManualClock:
    """A `topology.clock.Clock` that stands still until `advance` is called; that wakes whoever waits for it.

    Args:
        start: what `time()` and `monotonic()` say at first, in seconds.
        deadline_s: how long, in real seconds, anybody may wait for this clock before the wait fails.

    Example:
        >>> clock = ManualClock(start=100.0)
        >>> clock.advance(2.5)
        >>> clock.monotonic()
        102.5
    """

    def __init__(self, start: float = 0.0, *, deadline_s: float = DEADLINE_S) -> None:
        self._now = start
        self._deadline_s = deadline_s
        self._changed = threading.Condition()
        self._waits: dict[int, tuple[threading.Condition, float | None]] = {}
        self._ids = itertools.count()

    def __repr__(self) -> str:
        return f"<ManualClock at {self._now:g}, {len(self._waits)} waiting>"

    def time(self) -> float:
        return self.monotonic()

    def monotonic(self) -> float:
        with self._changed:
            return self._now

    def sleep(self, seconds: float) -> None:
        condition = threading.Condition()
        with condition:
            self.wait_for(condition, lambda: False, seconds)

    def wait_for(
        self, condition: threading.Condition, predicate: Callable[[], bool], timeout_s: float | None = None
    ) -> bool:
        end = None if timeout_s is None else self.monotonic() + timeout_s
        real = Deadline(self._deadline_s)
        with self._waiting(condition, end):
            while not (result := predicate()) and (end is None or self.monotonic() < end):
                if not condition.wait(real.remaining()) and real.expired:
                    raise AssertionError(f"waited {self._deadline_s:g} real seconds for {self!r}: nobody moved it")
        return result

    @contextlib.contextmanager
    def _waiting(self, condition: threading.Condition, end: float | None) -> Iterator[None]:
        with self._changed:
            key = next(self._ids)
            self._waits[key] = condition, end
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                del self._waits[key]

    def advance(self, seconds: float) -> None:
        """Moves the clock and wakes everybody who waits; those whose time has come go on."""
        if seconds < 0:
            raise ValueError(f"a clock does not go back; advance() was asked for {seconds} s")
        with self._changed:
            self._now += seconds
            waiting = [condition for condition, _ in self._waits.values()]
        for condition in waiting:  # not under our lock: those who wait take theirs first
            with condition:
                condition.notify_all()

    def wait_until_waiting(self, count: int = 1) -> None:
        """Blocks until at least `count` threads wait on this clock for a time to come.

        Raises:
            AssertionError: they did not come within the real deadline.
        """

        def timed() -> int:
            return sum(end is not None for _, end in self._waits.values())

        with self._changed:
            if not self._changed.wait_for(lambda: timed() >= count, self._deadline_s):
                raise AssertionError(f"{timed()} of {count} threads wait on the clock after {self._deadline_s:g} s")


@final
class Gate:
    """Holds code at a point until the test lets it go on.

    The code calls the gate (`gate()`), which blocks; the test waits for that with `wait_entered` and ends it with
    `release`. Once released, the gate stays open.

    Args:
        deadline_s: how long either side waits, in seconds.
    """

    def __init__(self, deadline_s: float = DEADLINE_S) -> None:
        self._deadline_s = deadline_s
        self._changed = threading.Condition()
        self._entered = 0
        self._released = False

    @property
    def entered(self) -> int:
        """How many calls have come to the gate."""
        return self._entered

    def __call__(self, *_: object, **__: object) -> None:
        """Blocks until `release`. Takes any arguments, so that it can stand for any function."""
        with self._changed:
            self._entered += 1
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._released, self._deadline_s):
                raise AssertionError(f"nobody called release() of the gate within {self._deadline_s:g} s")

    def wait_entered(self, count: int = 1) -> None:
        """Blocks until `count` calls have come to the gate.

        Raises:
            AssertionError: they did not come in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._entered >= count, self._deadline_s):
                raise AssertionError(f"{self._entered} of {count} calls came to the gate within {self._deadline_s:g} s")

    def release(self) -> None:
        """Opens the gate for good."""
        with self._changed:
            self._released = True
            self._changed.notify_all()


@final
class Sequencer:
    """Puts blocks of several threads into one order: `with sequencer(2): ...` runs after the blocks 0 and 1 ended.

    Args:
        deadline_s: how long a block waits for its turn, in seconds.
    """

    def __init__(self, deadline_s: float = DEADLINE_S) -> None:
        self._deadline_s = deadline_s
        self._changed = threading.Condition()
        self._next = 0
        self._broken: BaseException | None = None

    @contextlib.contextmanager
    def __call__(self, number: int) -> Iterator[None]:
        """Block number `number`, from 0. Each number is used once.

        Raises:
            AssertionError: an earlier block did not end in time, or raised.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._next >= number or self._broken is not None, self._deadline_s)
            if self._broken is not None:
                raise AssertionError(f"block {number} cannot run: an earlier one raised") from self._broken
            if self._next != number:
                reason = "ran already" if self._next > number else f"waits for block {self._next} in vain"
                raise AssertionError(f"block {number} {reason}")
        try:
            yield
        except BaseException as error:
            self._end(number, error)
            raise
        self._end(number, None)

    def _end(self, number: int, error: BaseException | None) -> None:
        with self._changed:
            self._next = number + 1
            self._broken = error
            self._changed.notify_all()


def within(seconds: float, function: Callable[..., ResultT], *args: object, **kwargs: object) -> ResultT:
    """`function(*args, **kwargs)`, run in a thread of its own so that a hang cannot hold the test.

    The thread sees the caller's context variables, hence its node context.

    Raises:
        AssertionError: it did not return in `seconds`; the message shows where it hangs. The thread is left behind.
        BaseException: whatever the function raised.
    """
    outcome: list[tuple[ResultT | None, BaseException | None]] = []

    def run() -> None:
        try:
            outcome.append((function(*args, **kwargs), None))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            outcome.append((None, error))

    name = getattr(function, "__qualname__", repr(function))
    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name=f"within {name}", daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise AssertionError(f"{name} did not return within {seconds:g} s; it is at:\n{stack_of(thread)}")
    result, error = outcome[0]
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # None only where ResultT admits it


def assert_graph_equal(actual: Program | ProgramGraph, expected: Program | ProgramGraph) -> None:
    """Fails unless both graphs are equal.

    Raises:
        AssertionError: one line for each difference: "+" for what is there and was not expected.
    """
    graphs = [given.graph() if isinstance(given, Program) else given for given in (actual, expected)]
    difference = graphs[1].diff(graphs[0])
    if difference:
        raise AssertionError(f"the graph is not the expected one:\n{difference}")
