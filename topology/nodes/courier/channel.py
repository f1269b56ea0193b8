"""Futures: many calls at a time on one connection, with a thread that always reads the replies.

A caller's thread writes its call itself while few are under way, and always if it is large, without copying it. What is
small and one of many is put into the outbox and goes out with others. The reader opens the connection, again after it
broke, empties the outbox, and completes the futures. It never blocks on anything but readiness: a client that waits to
write while the server waits for it to read would wait for ever.
"""

from __future__ import annotations

import itertools
import select
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import final

from topology import errors
from topology.clock import SYSTEM_CLOCK, Deadline
from topology.nodes.courier.calls import CallFuture
from topology.nodes.courier.connection import Connection, NotDelivered, TimedOut, broken
from topology.nodes.courier.options import ClientOptions
from topology.nodes.courier.wire import Buffer, Kind, WireError, encode, payload_bytes

__all__ = ["AFTER_STOP_S", "Channel"]

AFTER_STOP_S = 2.0
"""What a call made after the program's stop may take: enough to say goodbye, not enough to hold up the end."""

_GATHER_FROM = 4
"""With so many calls under way, further ones are gathered and go out together: when there are `_GATHER_CALLS`, or as
soon as the reader runs. Sending each at once would wake the server and then the reader for every one of them."""

_GATHER_CALLS = 24
_SMALL_BYTES = 1 << 14
_RETRY_S = 0.001

_CANCEL_ID = 0


@final
class Channel:
    """One multiplexed connection and its reader.

    Args:
        address: of the server, for messages.
        options: of the client.
        connect: opens a connection; waits for the server if that is wanted. Held weakly: the reader's thread must not
            keep a client alive that everybody else has dropped.
    """

    def __init__(
        self,
        address: str,
        options: ClientOptions,
        connect: weakref.WeakMethod[Callable[[Deadline, Callable[[], None]], Connection]],
    ) -> None:
        self._address = address
        self._options = options
        self._max_bytes = options.max_in_flight_bytes
        self._connect = connect
        self._ids = itertools.count(1)
        self._thread: threading.Thread | None = None
        self._reader_id = 0
        self._closed = False
        self._stopped = False
        self._counting = threading.Lock()  # guards the next four
        self._room = threading.Condition(self._counting)  # there is more
        self._waiting_for_room = 0
        self._pending: dict[int, CallFuture] = {}
        self._bytes = 0
        self._gate = threading.Lock()  # guards the next five; never held for long
        self._work = threading.Condition(self._gate)  # there is something to connect for
        self._outbox: deque[tuple[int, bytes]] = deque()
        self._connection: Connection | None = None
        self._reader_awake = True
        self._bell: socket.socket | None = None
        self._writing = threading.Lock()  # held by who writes to the socket, maybe for long; guards the next
        self._leftover = b""  # of what the reader began to write

    # --- calls ---------------------------------------------------------------------------------------------------

    def submit(self, name: str, body: Buffer, buffers: Sequence[Buffer], *, raw: bool = False) -> CallFuture:
        """Sends a call. Blocks while too much is under way, and until a large call is written.

        Args:
            name: of the method.
            body: the arguments.
            buffers: theirs.
            raw: have the future give a `RawReply`.
        """
        size = payload_bytes(body, buffers)
        limit_s = self._limit()
        expires = 0.0 if limit_s is None else SYSTEM_CLOCK.monotonic() + limit_s
        future = CallFuture(next(self._ids), name, size, expires, raw, self._cancelled)
        parts = encode(Kind.REQUEST, future.call_id, name.encode(), body, buffers)
        with self._counting:
            if len(self._pending) >= self._options.max_in_flight or self._bytes + size > self._max_bytes:
                self._wait_for_room(size)
            if self._closed:
                raise self._closed_error()
            self._pending[future.call_id] = future
            self._bytes += size
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"courier {self._address}", daemon=True)
                self._thread.start()
        self._send(future.call_id, parts)
        return future

    def _wait_for_room(self, size: int) -> None:
        if threading.get_ident() == self._reader_id:
            return  # a callback of a future: the thread that makes room must not wait for it
        while not self._closed and self._pending:
            if len(self._pending) < self._options.max_in_flight and self._bytes + size <= self._max_bytes:
                return
            self._waiting_for_room += 1
            self._room.wait()
            self._waiting_for_room -= 1

    def _send(self, call_id: int, parts: list[Buffer]) -> None:
        by_reader = threading.get_ident() == self._reader_id
        large = len(parts) > 1 or len(parts[0]) >= _SMALL_BYTES
        own: list[Buffer] | None = parts
        with self._gate:
            connection = self._connection
            few = len(self._pending) < _GATHER_FROM and not self._outbox
            if connection is None or by_reader or not (large or few):
                # A copy, where the parts are views: the caller may change its arrays as soon as we return.
                self._post(call_id, b"".join(parts))
                own = None
                if connection is None or by_reader or len(self._outbox) < _GATHER_CALLS:
                    return
        with self._writing:
            self._write(connection, call_id, own)

    def _post(self, call_id: int, message: bytes) -> None:
        """Leaves a message to the reader. Holding the gate."""
        self._outbox.append((call_id, message))
        if self._reader_awake:
            if self._connection is None:
                self._work.notify()
        elif len(self._outbox) == 1 and self._bell is not None:
            self._bell.send(b"\0")

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
            with self._gate:
                if self._connection is connection:
                    self._connection = None
                if own is not None:  # incomplete at best, so that the server cannot act on it
                    self._post(call_id, b"".join(own))

    def _fill(self) -> bool:
        """Takes what waits in the outbox to be written next; returns whether there is anything."""
        with self._gate:
            if not self._outbox:
                # From here on, who posts must ring. If this is not the reader, it is told once too often.
                self._reader_awake = False
                return False
            pending = self._pending
            self._leftover = b"".join([text for key, text in self._outbox if key in pending or key == _CANCEL_ID])
            self._outbox.clear()
        return True

    def _cancelled(self, future: CallFuture) -> None:
        if self._take(future.call_id) is None:
            return
        with self._gate:
            if self._connection is not None:
                (message,) = encode(Kind.CANCEL, future.call_id, b"", b"")
                self._post(_CANCEL_ID, bytes(message))

    def _take(self, call_id: int) -> CallFuture | None:
        with self._counting:
            future = self._pending.pop(call_id, None)
            if future is not None:
                self._bytes -= future.size
                if self._waiting_for_room:
                    self._room.notify()
            return future

    # --- the reader ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._reader_id = threading.get_ident()
        self._bell, heard = socket.socketpair()
        with self._bell, heard:
            while True:
                with self._gate:
                    self._work.wait_for(lambda: self._outbox or self._closed)
                if self._closed:
                    return
                try:
                    connection = self._open()
                except errors.CourierError as error:
                    self._fail_all(error)
                else:
                    self._serve(connection, heard)

    def _open(self) -> Connection:
        connect = self._connect()
        if connect is None:
            raise errors.CourierClosed(f"the client of {self._address} is gone")
        return connect(Deadline(None), self._expire)

    def _serve(self, connection: Connection, heard: socket.socket) -> None:
        """Reads from one connection until it ends."""
        poll = connection.poller(heard)
        with self._gate:
            self._connection = connection
        try:
            while True:
                self._turn(connection, heard, poll)
        except (EOFError, OSError, WireError, TimedOut) as error:
            connection.shutdown()  # frees the lock if somebody is blocked in writing
            with self._writing, self._gate:
                self._connection = None
                self._reader_awake = True
                self._leftover = b""
                self._outbox = deque(entry for entry in self._outbox if entry[0] in self._pending)
            connection.close()
            self._fail_sent(error)

    def _turn(self, connection: Connection, heard: socket.socket, poll: select.poll) -> None:
        """Writes what it can, waits for readiness, reads what there is."""
        patience_s = self._patience()
        outcome = self._push(connection)
        if outcome == "full":
            poll.modify(connection.sock, select.POLLIN | select.POLLOUT)
        elif outcome == "busy":  # whoever writes does not know of what was posted since
            patience_s = _RETRY_S if patience_s is None else min(patience_s, _RETRY_S)
        ready = dict(poll.poll(None if patience_s is None else patience_s * 1e3))
        self._reader_awake = True
        if outcome == "full":
            poll.modify(connection.sock, select.POLLIN)
        if heard.fileno() in ready:
            heard.recv(_GATHER_CALLS)
        if ready.get(connection.sock.fileno(), 0) & ~select.POLLOUT:
            for frame in connection.receive_all():
                future = self._take(frame.id)
                if future is not None:
                    future.receive(frame, self._address, self._options.max_message_bytes)
                del future  # it must not live on here until the next reply
        elif not ready:
            self._expire()

    def _push(self, connection: Connection) -> str:
        """Writes what waits, without blocking; returns "done", "full" (the socket) or "busy" (somebody else writes)."""
        if not self._writing.acquire(blocking=False):
            return "busy"
        try:
            while self._leftover or self._fill():
                try:
                    sent = connection.sock.send(self._leftover, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    return "full"
                self._leftover = self._leftover[sent:]
        finally:
            self._writing.release()
        return "done"

    def _limit(self) -> float | None:
        """Seconds that a call made now may take."""
        usual_s = self._options.call_timeout_s
        if not self._stopped:
            return usual_s
        return AFTER_STOP_S if usual_s is None else min(usual_s, AFTER_STOP_S)

    def _patience(self) -> float | None:
        """How long the reader may wait before it must look for overdue calls."""
        limit_s = self._limit()
        if limit_s is None:
            return None
        first = next(iter(self._pending.values()), None)
        # All calls have the same limit, so one that is made while we wait expires later than this wait ends.
        return limit_s if first is None else max(0.0, first.expires - SYSTEM_CLOCK.monotonic())

    def _expire(self) -> None:
        if self._limit() is None:
            return
        now = SYSTEM_CLOCK.monotonic()
        for call_id, future in list(self._pending.items()):
            if future.expires > now:
                return
            self._fail(call_id, self._end_error() or self._overdue(future))

    # --- errors --------------------------------------------------------------------------------------------------

    def _overdue(self, future: CallFuture) -> errors.DeadlineExceeded:
        return errors.DeadlineExceeded(
            f"Deadline Exceeded: {future.name!r} at {self._address} had no answer within "
            f"{self._options.call_timeout_s} s; it may still run there"
        )

    def _end_error(self) -> errors.CourierClosed | None:
        if self._closed:
            return self._closed_error()
        if self._stopped:
            return errors.ProgramStopped(f"the program stopped while a call to {self._address} waited")
        return None

    def _closed_error(self) -> errors.CourierClosed:
        return errors.CourierClosed(f"the client of {self._address} is closed")

    def _fail(self, call_id: int, error: Exception) -> None:
        future = self._take(call_id)
        if future is not None:
            future.fail(error)

    def _fail_all(self, error: Exception) -> None:
        with self._gate:
            self._outbox.clear()
        for call_id in list(self._pending):
            self._fail(call_id, error)

    def _fail_sent(self, cause: BaseException) -> None:
        """Fails the calls that the server may have begun; those that it cannot have are sent again."""
        with self._gate:
            unsent = {call_id for call_id, _ in self._outbox}
        for call_id, future in list(self._pending.items()):
            if call_id not in unsent:
                self._fail(call_id, self._end_error() or broken(self._address, repr(future.name), cause))

    # --- the end -------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """The program stops: fails the calls under way; later ones get `AFTER_STOP_S`."""
        self._stopped = True
        connection = self._connection
        if connection is not None:
            connection.shutdown()  # also wakes who is blocked in writing; a later call connects anew
        error = self._end_error()
        assert error is not None
        self._fail_all(error)

    def close(self, *, wait: bool = True) -> None:
        """Fails the calls under way and ends the reader."""
        with self._counting:
            self._closed = True
            self._room.notify_all()
        connection = self._connection
        if connection is not None:
            connection.shutdown()
        with self._gate:
            self._work.notify_all()
        self._fail_all(self._closed_error())
        thread = self._thread
        if wait and thread is not None and thread is not threading.current_thread():
            thread.join(5.0)

    def forget(self) -> None:
        """In a forked child: closes this process's copies of the sockets."""
        for sock in (self._connection, self._bell):
            if sock is not None:
                sock.close()
