"""Ctrl-C and its relatives in the launching process, while programs run.

Once is a graceful stop of every running program, twice is at once; `Run.wait` then raises `KeyboardInterrupt`, so that
the script exits with 130 (`SystemExit(143)` after SIGTERM). When the main thread is elsewhere in the script, it gets
the exception there at once, as it would without us. Handlers can be installed from the main thread only: a program
launched from another thread, with none running that the main thread launched, changes nothing about signals.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Protocol

__all__ = ["Interruptible", "active_runs", "register", "unregister", "waiting"]

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGQUIT") if hasattr(signal, name))


class Interruptible(Protocol):
    """A run, as far as signals go."""

    def interrupt(self, reason: str, *, now: bool) -> None:
        """Asks for the stop; the second time, or with `now`, at once. Called in a signal handler."""


_runs: list[tuple[int, Interruptible]] = []  # with the process that launched it: a fork inherits the list, not the runs
_previous: dict[int, signal.Handlers | object] = {}
_waiting = 0
_received: list[int] = []


def active_runs() -> list[Interruptible]:
    """The runs of this process that have not ended."""
    return [run for pid, run in list(_runs) if pid == os.getpid()]


def register(run: Interruptible) -> None:
    """Lets signals stop `run`, from now on."""
    _runs.append((os.getpid(), run))
    if not _in_main_thread():
        return
    for number in _SIGNALS:
        current = signal.getsignal(number)
        if current is not _handle and current is not signal.SIG_IGN and current is not None:  # nohup stays nohup
            _previous[number] = current
            signal.signal(number, _handle)


def unregister(run: Interruptible) -> None:
    """The run has ended. The handlers go at the next chance in the main thread; until then they are transparent."""
    _runs[:] = [entry for entry in _runs if entry[1] is not run]
    restore()


def restore() -> None:
    """Puts the handlers back that were there before, if nothing runs and this is the main thread."""
    if active_runs() or not _in_main_thread():
        return
    for number, handler in list(_previous.items()):
        if signal.getsignal(number) is _handle:
            signal.signal(number, handler)  # type: ignore[arg-type]  # it came from getsignal
        del _previous[number]


@contextlib.contextmanager
def waiting(*, raise_later: bool = False) -> Iterator[None]:
    """While the main thread waits for a run inside: signals stop the run, and are raised when the block ends.

    Args:
        raise_later: not at the end of this block, but of the next: the caller is to get its run first.
    """
    global _waiting
    if not _in_main_thread():
        yield
        return
    _waiting += 1
    try:
        yield
    finally:
        _waiting -= 1
        received: list[int] = []
        if not raise_later:
            received, _received[:] = list(_received), []
        handler = _handler_before(received[0]) if received else None
        restore()
    if handler is not None:
        handler(received[0], None)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _handle(number: int, frame: FrameType | None) -> None:
    runs = active_runs()
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    for run in runs:
        run.interrupt(name, now=number == getattr(signal, "SIGQUIT", None))
    if runs and _waiting:
        _received.append(number)
    else:
        _handler_before(number)(number, frame)


def _handler_before(number: int) -> Callable[[int, FrameType | None], object]:
    """What the signal does without us."""
    previous = _previous.get(number)
    if callable(previous):
        return previous
    return signal.default_int_handler if number == signal.SIGINT else _exit


def _exit(number: int, frame: FrameType | None) -> None:
    del frame
    raise SystemExit(128 + number)  # the system's own way would leave the nodes to the fork server
