"""A memory's way to its Redis server: scripts called by their names, a server that is away waited for."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, final

from topology.clock import Deadline
from topology.errors import StoreDenied, StoreError, StoreFull, StoreUnavailable
from topology.nodes.store.long_wait import LongWait
from topology.nodes.store.redis_scripting import Script
from topology.nodes.store.redis_wire import Argument, Refusal, Wire, WireBroken
from topology.nodes.store.redis_wires import Wires

__all__ = ["Call", "Command", "Line", "RedisLink"]

_logger = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0
_SLICE_S = 1.0  # of a wait: whoever should have rung may have been killed before
_LATER = {"LOADING", "BUSY", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN", "MISCONF"}
_NOT_FOR_US = {"NOAUTH", "WRONGPASS", "NOPERM", "READONLY"}


@final
class Call(NamedTuple):
    """Of a script."""

    script: Script
    keys: Sequence[bytes]
    arguments: Sequence[bytes] = ()


Command: TypeAlias = Sequence[Argument] | Call


@final
class RedisLink:
    """Thread-safe.

    Args:
        url: of the server.
        name: of the memory, for messages.
        patience_s: how long a server that is not there is waited for, in seconds.
    """

    def __init__(self, url: str, name: str, patience_s: float) -> None:
        self._wires = Wires(url)
        self._name = name
        self._patience_s = patience_s

    def ask(
        self, commands: Sequence[Command], deadline: Deadline | None = None, *, timeout_s: float = 0.0
    ) -> list[Any]:
        """The replies of commands, each of which may be sent twice.

        Args:
            commands: to send together.
            deadline: when to give up if the server's memory is full. For one that is away there is the patience, on
                top of it: nobody knows what became of a command that was sent.
            timeout_s: how long the commands may block.

        Raises:
            StoreUnavailable: the server did not come back in time.
            StoreDenied: it does not let us do this.
            StoreFull: its memory was full until the deadline.
            StoreError: it refused a command for another reason.
            StoreClosed, ProgramStopped: as their names say.
        """
        patience = Deadline(self._patience_s)
        told: LongWait | None = None
        pause_s = _FIRST_PAUSE_S
        whole = full = False  # whether scripts are sent with their text; whether the server had no room
        while True:
            try:
                replies = self._wires.ask([_written(command, whole=whole) for command in commands], timeout_s)
                refusal = next((reply for reply in replies if isinstance(reply, Refusal)), None)
                if refusal is None:
                    if told is not None:
                        told.is_over(f"memory {self._name!r} {'has room again' if full else 'is back'}")
                    return replies
                if refusal.code == "NOSCRIPT" and not whole:
                    whole = True
                    continue
                reason = str(refusal)
                if refusal.code == "OOM":
                    patience = Deadline(self._patience_s)  # it is there: writers wait, as for any other bound
                elif refusal.code not in _LATER:
                    kind = StoreDenied if refusal.code in _NOT_FOR_US else StoreError
                    raise kind(f"Redis refused a command of memory {self._name!r}: {refusal}")
            except WireBroken as error:
                reason = str(error)
            full = reason.startswith("OOM")
            if patience.expired or (full and deadline is not None and deadline.expired):
                kind = StoreFull if full else StoreUnavailable
                raise kind(f"Redis did not take a command of memory {self._name!r} in time: {reason}")
            told = told or LongWait(_logger)
            until = "room" if full else f"its Redis server, {self._patience_s:g} s at most"
            told.goes_on(f"memory {self._name!r} waits for {until}: {reason}")
            self._wires.pause(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def sleep_until_rung(self, bell: bytes, deadline: Deadline) -> None:
        """Blocks until the list `bell` has an entry, the deadline, or the end of a slice."""
        left_s = deadline.remaining()
        slice_s = max(0.001, _SLICE_S if left_s is None else min(_SLICE_S, left_s))
        self.ask([(b"BLPOP", bell, b"%.3f" % slice_s)], timeout_s=slice_s)

    def line(self) -> Line:
        """A connection of one's own, on which commands are sent before the replies to others have come."""
        return Line(self._wires, functools.partial(_written, whole=False))

    def close(self) -> None:
        """Ends the calls under way, and closes every connection. Idempotent."""
        self._wires.close()


def _written(command: Command, *, whole: bool) -> Sequence[Argument]:
    if not isinstance(command, Call):
        return command
    name = (b"EVAL", command.script.text) if whole else (b"EVALSHA", command.script.digest)
    return *name, b"%d" % len(command.keys), *command.keys, *command.arguments


@final
class Line:
    """A connection for one thread, made when it is needed, and anew after it broke.

    Args:
        wires: of the handle.
        write: makes a command of the server's of one of ours.
    """

    def __init__(self, wires: Wires, write: Callable[[Command], Sequence[Argument]]) -> None:
        self._wires = wires
        self._write = write
        self._wire: Wire | None = None

    def send(self, commands: Sequence[Command]) -> None:
        """Sends commands, and waits for no reply.

        Raises:
            WireBroken: the server went away. No replies will come to what was sent before.
            StoreDenied: it does not let us in.
            StoreClosed, ProgramStopped: as their names say.
        """
        if self._wire is None:
            self._wire = self._wires.borrow()
        self._use(lambda wire: wire.send([self._write(command) for command in commands]))

    def receive(self, count: int) -> list[Any]:
        """The next replies. Blocks.

        Raises:
            WireBroken, StoreClosed, ProgramStopped: see `send`.
        """
        replies: list[Any] = self._use(lambda wire: wire.receive(count))
        return replies

    def _use(self, what: Callable[[Wire], Any]) -> Any:
        wire = self._wire
        if wire is None or not self._wires.owns(wire):
            self._wire = None
            raise WireBroken("the connection is that of another process")
        try:
            return self._wires.use(wire, what)
        except BaseException:
            self._wire = None
            raise

    def close(self) -> None:
        """Closes the connection: replies may be under way on it."""
        wire, self._wire = self._wire, None
        if wire is not None and self._wires.owns(wire):
            self._wires.give_back(wire, whole=False)
