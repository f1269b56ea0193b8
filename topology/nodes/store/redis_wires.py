"""The connections of one handle to its Redis server, which its threads share, and which end with it and the program."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

from topology.clock import SYSTEM_CLOCK
from topology.context import try_get_context
from topology.errors import ProgramStopped, StoreClosed
from topology.nodes.store.redis_wire import Argument, Wire, WireBroken

__all__ = ["Wires"]

_STOPPED = "the program was asked to stop while this call waited for Redis"


@final
class Wires:
    """Connections for the threads that share a handle. Made when they are needed, kept, made anew after a fork.

    Args:
        url: of the server.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._changed = threading.Condition()  # guards all this
        self._process = os.getpid()
        self._idle: list[Wire] = []
        self._busy: set[Wire] = set()
        self._closed = False

    def ask(self, commands: Sequence[Sequence[Argument]], timeout_s: float = 0.0) -> list[Any]:
        """See `Wire.ask`.

        Raises:
            StoreClosed: `close` was called.
            ProgramStopped: the program was asked to stop.
            StoreDenied, WireBroken, ValueError: see `Wire`.
        """
        wire = self.borrow()
        replies: list[Any] = self.use(wire, lambda wire: wire.ask(commands, timeout_s))
        self.give_back(wire, whole=True)
        return replies

    def use(self, wire: Wire, what: Callable[[Wire], Any]) -> Any:
        """What `what` makes of a borrowed connection; when it raises, the connection is given back.

        Raises:
            StoreClosed, ProgramStopped: see `ask`.
            Exception: what it raises.
        """
        try:
            with _until_stop(wire.interrupt) as stopped:
                result = what(wire)
        except BaseException as error:
            self.give_back(wire, whole=False)
            self._check_open()
            if stopped.is_set() and isinstance(error, WireBroken):
                raise ProgramStopped(_STOPPED) from None
            raise
        if stopped.is_set():
            self.give_back(wire, whole=False)  # it was cut off, if only after that
        return result

    def pause(self, seconds: float) -> None:
        """Blocks for so long.

        Raises:
            StoreClosed, ProgramStopped: see `ask`.
        """
        self._check_open()
        with _until_stop(self._pause_over) as stopped, self._changed:
            SYSTEM_CLOCK.wait_for(self._changed, lambda: stopped.is_set() or self._closed, seconds)
        self._check_open()
        if stopped.is_set():
            raise ProgramStopped(_STOPPED)

    def _pause_over(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the calls under way, and closes every connection. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for wire in busy:
            wire.interrupt()
        for wire in idle:
            wire.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("this handle of the memory is closed; open another")

    def owns(self, wire: Wire) -> bool:
        """Whether it was borrowed here, by this process."""
        return self._process == os.getpid() and wire in self._busy

    def borrow(self) -> Wire:
        """A connection, until `give_back`. Raises as `ask` does."""
        self._check_open()
        with self._changed:
            if self._process != os.getpid():  # a fork: what is open belongs to the parent
                self._process, self._idle, self._busy = os.getpid(), [], set()
            if self._idle:
                wire = self._idle.pop()
                self._busy.add(wire)
                return wire
        wire = Wire(self._url)
        with self._changed:
            self._busy.add(wire)
        return wire

    def give_back(self, wire: Wire, *, whole: bool) -> None:
        """Others may use it, if it is `whole`: no reply is to come on it. Else it is closed."""
        with self._changed:
            if wire not in self._busy:
                return  # it was given back already
            self._busy.discard(wire)
            if whole and not self._closed:
                self._idle.append(wire)
                return
        wire.close()


@contextlib.contextmanager
def _until_stop(wake: Callable[[], None]) -> Iterator[threading.Event]:
    """Calls `wake` when the program stops within the block; gives an event that is set then."""
    stopped = threading.Event()
    context = try_get_context()
    if context is None:
        yield stopped
        return

    def stop() -> None:
        stopped.set()
        wake()

    forget = context.stop.subscribe(stop)
    try:
        yield stopped
    finally:
        forget()
