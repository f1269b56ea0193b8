"""What a channel sends: at once while little is under way, else gathered.

A caller's thread writes its call itself while few are under way, and always if it is large, without copying it. What is
small and one of many is put into the outbox and goes out with others: when there are `_GATHER_CALLS`, or as soon as
whoever reads the replies runs. Sending each at once would wake the server and then the reader for every one of them.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Container
from typing import final

from topology.nodes.courier.connection import Connection, NotDelivered, TimedOut
from topology.nodes.courier.wire import Buffer, Kind, encode_small

__all__ = ["Outbox"]

_GATHER_CALLS = 24
_SMALL_BYTES = 1 << 10

_CANCEL_ID = 0


@final
class Outbox:
    """Messages that wait, and the connection that they leave by.

    Args:
        pending: ids of calls under way: what is not among them any more need not be sent.
    """

    def __init__(self, pending: Container[int]) -> None:
        self._pending = pending
        self.gate = threading.Lock()  # guards the next four; never held for long
        self.work = threading.Condition(self.gate)  # there is something to connect for
        self.waiting: deque[tuple[int, bytes]] = deque()
        self.connection: Connection | None = None
        self.awake = True  # whoever reads looks here before it waits for readiness
        self._writing = threading.Lock()  # held by who writes to the socket, maybe for long; guards the next
        self._leftover = b""  # of what was begun to be written without blocking
        self._bell: socket.socket | None = None

    def open_bell(self) -> socket.socket:
        """Makes what wakes whoever waits for readiness; returns the end to listen at."""
        self._bell, heard = socket.socketpair()
        self._bell.setblocking(False)
        return heard

    def ring(self) -> None:
        """Wakes whoever waits for readiness."""
        with contextlib.suppress(OSError):  # full: it will wake; closed: nobody waits any more
            if self._bell is not None:
                self._bell.send(b"\0")

    def close_bell(self) -> None:
        if self._bell is not None:
            self._bell.close()

    def send(self, call_id: int, parts: list[Buffer], *, few: bool, must_not_block: bool) -> None:
        """Sends a call, or leaves it to others. Blocks until a large one is written.

        Args:
            call_id: of the call.
            parts: of its frame.
            few: whether few are under way.
            must_not_block: for the thread that reads: it writes only what the socket takes.
        """
        large = len(parts) > 1 or len(parts[0]) >= _SMALL_BYTES
        own: list[Buffer] | None = parts
        with self.gate:
            connection = self.connection
            if connection is None or must_not_block or not (large or (few and not self.waiting)):
                # A copy, where the parts are views: the caller may change its arrays as soon as we return.
                self._post(call_id, b"".join(parts))
                own = None
                if connection is None or must_not_block or len(self.waiting) < _GATHER_CALLS:
                    return
        with self._writing:
            self._write(connection, call_id, own)

    def cancel(self, call_id: int) -> None:
        """Has the server told that a call is of no interest any more."""
        with self.gate:
            if self.connection is not None:
                self._post(_CANCEL_ID, encode_small(Kind.CANCEL, call_id, b"", b""))
        self.ring()  # also for a thread that reads for the sake of this call

    def _post(self, call_id: int, message: bytes) -> None:
        """Leaves a message to whoever reads. Holding the gate."""
        self.waiting.append((call_id, message))
        if self.awake:
            if self.connection is None:
                self.work.notify()
        elif len(self.waiting) == 1:
            self.ring()

    def _write(self, connection: Connection, call_id: int, own: list[Buffer] | None) -> None:
        """Writes what waits, and then `own`; blocks until that is done. Holding the lock for writing."""
        try:
            while self._leftover or self._fill():
                connection.send([self._leftover])
                self._leftover = b""
            if own is not None:
                connection.send(own)
        except (NotDelivered, TimedOut):
            connection.shutdown()  # the reader meets the same end and connects anew
            with self.gate:
                if self.connection is connection:
                    self.connection = None
                if own is not None:  # incomplete at best, so that the server cannot act on it
                    self._post(call_id, b"".join(own))

    def _fill(self, falls_asleep: bool = False) -> bool:
        """Takes what waits to be written next; returns whether there is anything."""
        with self.gate:
            if not self.waiting:
                if falls_asleep:
                    self.awake = False  # from here on, who posts must ring
                return False
            pending = self._pending
            self._leftover = b"".join([text for key, text in self.waiting if key in pending or key == _CANCEL_ID])
            self.waiting.clear()
        return True

    def push(self, *, falls_asleep: bool) -> str:
        """Writes what waits, without blocking.

        Args:
            falls_asleep: whether this thread then waits for readiness, so that it must be woken for what comes later.

        Returns:
            "done", "full" (the socket) or "busy" (somebody else writes).
        """
        connection = self.connection
        if connection is None:
            return "done"
        if not self._writing.acquire(blocking=False):
            return "busy"
        try:
            while self._leftover or self._fill(falls_asleep):
                try:
                    sent = connection.sock.send(self._leftover, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    return "full"
                self._leftover = self._leftover[sent:]
        finally:
            self._writing.release()
        return "done"

    def disconnect(self) -> None:
        """The connection has ended. What waits is kept, what was begun is not."""
        with self._writing, self.gate:
            self.connection = None
            self.awake = True
            self._leftover = b""
            self.waiting = deque(entry for entry in self.waiting if entry[0] in self._pending)

    def forget(self) -> None:
        """In a forked child: closes this process's copies of the sockets."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        self.close_bell()
