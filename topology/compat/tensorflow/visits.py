"""Python code that TensorFlow calls in threads of its own, and how there comes to be none when the interpreter ends.

A thread of TensorFlow that is on its way into Python when the interpreter is taken down never comes back, and whoever
waits for it, as an iterator does that is destroyed, waits for ever. Threads that come later do no harm: TensorFlow
looks whether there still is an interpreter. So before that, the iterators that there are are let go of, which ends
their threads while Python can still be called; what others read is ended; and visits that remain are waited for.
"""

from __future__ import annotations

import atexit
import functools
import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar, final

import tensorflow as tf

from topology.clock import SYSTEM_CLOCK, Deadline

__all__ = ["OVER", "close_at_exit", "is_over", "tracked", "unless_over", "visiting"]

_T = TypeVar("_T")
_P = ParamSpec("_P")

OVER = b"the interpreter is about to end"
"""Why nothing can be read then."""

_QUIET_S = 0.5
"""Iterators that cannot be let go of are taken for quiet when they have not called for so long."""

_PATIENCE_S = 5.0
_LOOK_S = 0.005  # nothing tells that a visit has left TensorFlow's own Python code
_ITERATORS = "tensorflow.python.data.ops"
_TRAMPOLINE = os.path.join("python", "ops", "script_ops.py")


class _Closable(Protocol):
    def close(self) -> None:
        """Ends it, also for those who are blocked in it. Idempotent."""


@final
class _Visits:
    """What is known of the visits.

    Attributes:
        visitors: threads that have ever called.
        latest: when the latest visit began.
        alive: generators that TensorFlow has not dropped yet.
        closed: what is closed when no iterator can be let go of any more.
        closed_first: what is closed before.
        process: that of all this; a fork has none of the threads.
        is_over: whether the interpreter is about to end.
    """

    def __init__(self) -> None:
        self.visitors: set[int] = set()
        self.latest = 0.0
        self.alive: weakref.WeakSet[_Tracked[Any]] = weakref.WeakSet()
        self.closed: weakref.WeakSet[_Closable] = weakref.WeakSet()
        self.closed_first: weakref.WeakSet[_Closable] = weakref.WeakSet()
        self.process = os.getpid()
        self.is_over = False

    def note(self) -> None:
        """A visit begins."""
        self.visitors.add(threading.get_ident())
        self.latest = SYSTEM_CLOCK.monotonic()


_visits = _Visits()


@final
class _Tracked(Generic[_T]):
    """A generator of which it is known when TensorFlow calls it, and when it drops it."""

    def __init__(self, generator: Iterator[_T]) -> None:
        self._generator = generator
        _visits.alive.add(self)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> _T:
        _visits.note()
        return next(self._generator)


def tracked(function: Callable[_P, Iterator[_T]]) -> Callable[_P, Iterator[_T]]:
    """A generator function for TensorFlow to iterate over."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> Iterator[_T]:
        return _Tracked(function(*args, **kwargs))

    return call


def visiting(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """A function for TensorFlow to call."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        _visits.note()
        return function(*args, **kwargs)

    return call


def is_over() -> bool:
    """Whether the interpreter is about to end."""
    return _visits.is_over


def unless_over(read: Callable[[], _T], otherwise: _T) -> _T:
    """What `read` gives; something else where it fails because what it reads has been closed at the end."""
    try:
        return read()
    except EOFError:
        raise
    except Exception:
        if _visits.is_over:
            return otherwise
        raise


def close_at_exit(closable: _Closable, *, first: bool = False) -> None:
    """Closes what visits may be blocked in, before the interpreter ends.

    Args:
        closable: what to close.
        first: whether visits may be blocked in it for so long that no iterator ends before.
    """
    (_visits.closed_first if first else _visits.closed).add(closable)


@atexit.register
def _end() -> None:
    if _visits.process != os.getpid():
        return
    _visits.is_over = True
    threading.excepthook = functools.partial(_unless_it_read, threading.excepthook)
    for closable in list(_visits.closed_first):
        closable.close()
    if _visits.alive:
        _let_go_of_iterators()
    # Not before: an error, or an end of the data, is something that TensorFlow and the program's threads tell of.
    for closable in list(_visits.closed):
        closable.close()
    _wait_until_quiet()


def _unless_it_read(report: Callable[[Any], Any], failure: threading.ExceptHookArgs) -> None:
    """Says nothing of daemon threads that fail because what they read has ended with the interpreter."""
    if failure.thread is not None and failure.thread.daemon and _passes_through_tensorflow(failure.exc_traceback):
        return
    report(failure)


def _passes_through_tensorflow(traceback: TracebackType | None) -> bool:
    while traceback is not None:
        if str(traceback.tb_frame.f_globals.get("__name__")).startswith("tensorflow."):
            return True
        traceback = traceback.tb_next
    return False


def _let_go_of_iterators() -> None:
    """Takes their handles from all iterators and sessions: the last reference ends an iterator and its threads.

    There is no list of them, and a stage behind a dataset of ours makes iterators of its own.
    """
    for each in gc.get_objects():
        kind = type(each)
        module = str(getattr(kind, "__module__", ""))  # some classes of other libraries have none
        if issubclass(kind, tf.compat.v1.Session | tf.compat.v1.InteractiveSession):
            each.__del__()
        elif module.startswith(_ITERATORS) and "iterator" in module:
            handles = [name for name, value in vars(each).items() if _is_handle(value)]
            for name in handles:
                del vars(each)[name]


def _is_handle(value: Any) -> bool:
    if isinstance(value, tuple):  # of an iterator that was made of its handle
        return any(map(_is_handle, value))
    return isinstance(value, tf.Tensor) and hasattr(value, "numpy") and value.dtype == tf.resource


def _wait_until_quiet() -> None:
    """Blocks until no thread of TensorFlow is in Python, nor will come; at most `_PATIENCE_S`."""
    deadline = Deadline(_PATIENCE_S)
    while not deadline.expired and (_is_visited() or _may_be_visited()):
        SYSTEM_CLOCK.sleep(_LOOK_S)


def _is_visited() -> bool:
    frames = sys._current_frames()  # noqa: SLF001 - documented; nothing else tells of threads that are not Python's
    return any(map(_is_visit, (frames.get(thread) for thread in _visits.visitors - {threading.get_ident()})))


def _is_visit(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.endswith(_TRAMPOLINE):
            return True
        frame = frame.f_back
    return False


def _may_be_visited() -> bool:
    """Whether there are iterators of which nobody knows whether they wait, or are about to call."""
    return bool(_visits.alive) and SYSTEM_CLOCK.monotonic() - _visits.latest < _QUIET_S
