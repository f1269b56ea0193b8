"""Futures: many calls at a time on one connection, with a thread that always reads the replies.

The caller's thread writes; the reader opens the connection, again after it broke, and completes the futures. It is
always there while calls are under way: a client that only wrote while replies filled the socket would deadlock.
"""

from __future__ import annotations

import itertools
import logging
import select
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple, final

from topology import errors
from topology.clock import SYSTEM_CLOCK, Deadline
from topology.nodes.courier import codec
from topology.nodes.courier.connection import Connection, NotDelivered, TimedOut, broken
from topology.nodes.courier.wire import Buffer, Frame, Kind, WireError, encode, payload_bytes

if TYPE_CHECKING:
    from topology.nodes.courier.client import ClientOptions

__all__ = ["AFTER_STOP_S", "CallFuture", "Channel", "RawReply", "check_result"]

AFTER_STOP_S = 2.0
"""What a call made after the program's stop may take: enough to say goodbye, not enough to hold up the end."""

_CORK_FROM = 8
"""With so many calls under way, further ones are gathered and go out together: when there are `_CORK_CALLS`, or as soon
as the reader gets to run. Sending each at once would wake the server and then the reader for every one of them."""

_CORK_CALLS = 16
_SMALL_BYTES = 1 << 14

_logger = logging.getLogger(__name__)


class RawReply(NamedTuple):
    """A reply as it came: `kind` is `Kind.REPLY` or `Kind.ERROR`."""

    kind: int
    body: Buffer
    buffers: Sequence[Buffer]


def check_result(frame: Frame, name: str, address: str, max_bytes: int) -> None:
    """Raises `PayloadTooLarge` when a reply was over the limit and came without its content."""
    if frame.size > max_bytes:
        raise errors.PayloadTooLarge(
            f"the result of {name!r} at {address} takes {frame.size} bytes, over the limit of {max_bytes}: "
            "ask for less, or raise max_message_bytes of the client"
        )


class CallFuture(Future[Any]):
    """The result of a remote call to come.

    `cancel` succeeds until the reply is there; the server is told and drops the call if it has not begun. A failure
    that nobody ever looked at is logged once, when the future goes away.
    """

    def __init__(self, channel: Channel, call_id: int, name: str, size: int, raw: bool) -> None:
        super().__init__()
        self.call_id = call_id
        self.name = name
        self.size = size
        self.raw = raw
        self.expires = 0.0
        self._channel = channel
        self._looked_at = False

    def cancel(self) -> bool:
        if not super().cancel():
            return False
        self._channel.cancelled(self)
        return True

    def result(self, timeout: float | None = None) -> Any:
        self._looked_at = True
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._looked_at = True
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        self._looked_at = True
        super().add_done_callback(fn)

    def __del__(self) -> None:
        error = self._exception
        if error is not None and not self._looked_at and not isinstance(error, errors.CourierClosed):
            _logger.error("call %r failed and nobody asked for its result", self.name, exc_info=error)


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
        self._connect = connect
        self._ids = itertools.count(1)
        self._pending: dict[int, CallFuture] = {}
        self._bytes = 0
        self._changed = threading.Condition(threading.Lock())  # guards all of the above; notified when room is made
        self._sending = threading.Condition(threading.Lock())  # guards what follows; notified when the reader has work
        self._unsent: deque[tuple[int, list[Buffer]]] = deque()
        self._corked: list[tuple[int, list[Buffer]]] = []
        self._reader_awake = True
        self._bells: tuple[socket.socket, socket.socket] | None = None  # rings when calls were gathered
        self._connection: Connection | None = None
        self._closed = False
        self._stopped = False
        self._thread: threading.Thread | None = None

    def submit(self, name: str, body: Buffer, buffers: Sequence[Buffer]) -> CallFuture:
        """Sends a call. Blocks only while too much is under way."""
        return self._submit(name, body, buffers, raw=False)

    def submit_raw(self, name: str, body: Buffer, buffers: Sequence[Buffer]) -> CallFuture:
        """The same; the future gives a `RawReply`."""
        return self._submit(name, body, buffers, raw=True)

    def _submit(self, name: str, body: Buffer, buffers: Sequence[Buffer], *, raw: bool) -> CallFuture:
        size = payload_bytes(body, buffers)
        future = CallFuture(self, next(self._ids), name, size, raw)
        limit_s = self._limit()
        if limit_s is not None:
            future.expires = SYSTEM_CLOCK.monotonic() + limit_s
        parts = encode(Kind.REQUEST, future.call_id, name.encode(), body, buffers)
        with self._changed:
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
        if threading.current_thread() is self._thread:
            return  # a callback of a future: the thread that makes room must not wait for it
        options = self._options
        while not self._closed and self._pending:
            if len(self._pending) < options.max_in_flight and self._bytes + size <= options.max_in_flight_bytes:
                return
            self._changed.wait()

    def _send(self, call_id: int, parts: list[Buffer]) -> None:
        with self._sending:
            connection = self._connection
            if connection is None:
                self._unsent.append((call_id, parts))
                self._sending.notify()
                return
            if len(self._pending) >= _CORK_FROM and len(parts[0]) < _SMALL_BYTES and len(parts) == 1:
                self._corked.append((call_id, parts))
                if len(self._corked) == 1 and not self._reader_awake:
                    self._ring()
                if len(self._corked) < _CORK_CALLS:
                    return
            elif self._corked:
                self._corked.append((call_id, parts))
            else:
                self._transmit(connection, [(call_id, parts)])
                return
            self._uncork(connection)

    def _ring(self) -> None:
        if self._bells is not None:
            self._bells[0].send(b"\0")

    def _uncork(self, connection: Connection) -> None:
        """Sends what was gathered, in one go. Holding the lock."""
        calls, self._corked = self._corked, []
        self._transmit(connection, calls)

    def _transmit(self, connection: Connection, calls: list[tuple[int, list[Buffer]]]) -> None:
        """Sends calls, or keeps them for the next connection. Holding the lock."""
        if len(calls) == 1:
            parts = calls[0][1]
        else:
            small = [part for _, parts in calls for part in parts]
            parts = [b"".join(small)] if all(len(p) < _SMALL_BYTES for p in small) else small
        try:
            connection.send(parts)
        except (NotDelivered, TimedOut):
            # The reader meets the same end and connects anew. What may have come through whole must not be repeated.
            connection.shutdown()
            self._connection = None
            if len(calls) == 1:
                self._unsent += calls
                self._sending.notify()

    def cancelled(self, future: CallFuture) -> None:
        """Forgets a call and tells the server, if it is connected."""
        if self._take(future.call_id) is None:
            return
        with self._sending:
            if self._connection is not None:
                self._corked.append((0, encode(Kind.CANCEL, future.call_id, b"", b"")))
                self._uncork(self._connection)

    def _take(self, call_id: int) -> CallFuture | None:
        with self._changed:
            future = self._pending.pop(call_id, None)
            if future is not None:
                self._bytes -= future.size
                self._changed.notify()
            return future

    # --- the reader ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        bell, bell_end = self._bells = socket.socketpair()
        with bell, bell_end:
            self._keep_reading(bell_end)

    def _keep_reading(self, bell: socket.socket) -> None:
        while True:
            with self._sending:
                while not self._unsent and not self._closed:
                    self._sending.wait()
                if self._closed:
                    return
            try:
                connection = self._open()
            except errors.CourierError as error:
                self._fail_all(error)
            else:
                self._serve(connection, bell)

    def _open(self) -> Connection:
        connect = self._connect()
        if connect is None:
            raise errors.CourierClosed(f"the client of {self._address} is gone")
        return connect(Deadline(None), self._expire)

    def _serve(self, connection: Connection, bell: socket.socket) -> None:
        """Reads from one connection until it ends."""
        poll = select.poll()
        poll.register(connection.sock, select.POLLIN)
        poll.register(bell, select.POLLIN)
        try:
            self._flush(connection)
            while True:
                self._read(connection, bell, poll)
        except (EOFError, OSError, WireError, TimedOut) as error:
            with self._sending:
                self._connection = None
                self._unsent += self._corked
                self._corked = []
                connection.close()
            self._fail_sent(error)

    def _fail_sent(self, cause: BaseException) -> None:
        """Fails the calls that the server may have begun; those that it cannot have are sent again."""
        with self._sending:
            unsent = {call_id for call_id, _ in self._unsent}
        for call_id, future in list(self._pending.items()):
            if call_id in unsent:
                continue
            if self._closed:
                self._complete(call_id, self._closed_error())
            elif self._stopped:
                self._complete(call_id, self._stop_error())
            else:
                self._complete(call_id, broken(self._address, repr(future.name), cause))

    def _flush(self, connection: Connection) -> None:
        with self._sending:
            while self._unsent:
                call_id, parts = self._unsent[0]
                if call_id in self._pending:
                    connection.send(parts)
                self._unsent.popleft()
            self._connection = connection

    def _limit(self) -> float | None:
        """Seconds that a call made now may take."""
        usual_s = self._options.call_timeout_s
        if not self._stopped:
            return usual_s
        return AFTER_STOP_S if usual_s is None else min(usual_s, AFTER_STOP_S)

    def _read(self, connection: Connection, bell: socket.socket, poll: select.poll) -> None:
        with self._sending:
            if self._corked:
                self._uncork(connection)
            self._reader_awake = False
        patience_s = self._patience()
        ready = {fd for fd, _ in poll.poll(None if patience_s is None else patience_s * 1e3)}
        self._reader_awake = True
        if bell.fileno() in ready:
            bell.recv(_CORK_CALLS)
        if connection.sock.fileno() in ready:
            for frame in connection.receive_all():
                self._receive(frame)
        elif not ready:
            self._expire()

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
            if self._stopped:
                self._complete(call_id, self._stop_error())
            else:
                self._complete(
                    call_id,
                    errors.DeadlineExceeded(
                        f"Deadline Exceeded: {future.name!r} at {self._address} had no answer within "
                        f"{self._options.call_timeout_s} s; it may still run there"
                    ),
                )

    def _closed_error(self) -> errors.CourierClosed:
        return errors.CourierClosed(f"the client of {self._address} is closed")

    def _stop_error(self) -> errors.ProgramStopped:
        return errors.ProgramStopped(f"the program stopped while a call to {self._address} waited")

    def _receive(self, frame: Frame) -> None:
        future = self._take(frame.id)
        if future is None or not future.set_running_or_notify_cancel():
            return
        try:
            check_result(frame, future.name, self._address, self._options.max_message_bytes)
            if future.raw:
                value: Any = RawReply(frame.kind, frame.body, frame.buffers)
            elif frame.kind == Kind.REPLY:
                value = codec.decode(frame.body, frame.buffers)
            else:
                raise codec.decode_error(frame.body)  # noqa: TRY301 - one place completes the future
        except Exception as error:  # noqa: BLE001 - unpickling runs any code
            future.set_exception(error)
        else:
            future.set_result(value)
        finally:
            del future  # the traceback of an error refers to this frame: they would keep one another alive

    def _complete(self, call_id: int, error: Exception) -> None:
        future = self._take(call_id)
        if future is not None and future.set_running_or_notify_cancel():
            future.set_exception(error)

    # --- the end -------------------------------------------------------------------------------------------------

    def _fail_all(self, error: Exception) -> None:
        with self._sending:
            self._unsent.clear()
        for call_id in list(self._pending):
            self._complete(call_id, error)

    def stop(self) -> None:
        """The program stops: fails the calls under way; later ones get `AFTER_STOP_S`."""
        self._stopped = True
        connection = self._connection
        if connection is not None:
            connection.shutdown()  # also wakes who is blocked in sending; a later call connects anew
        for call_id in list(self._pending):
            self._complete(call_id, self._stop_error())

    def close(self, *, wait: bool = True) -> None:
        """Fails the calls under way and ends the reader."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        connection = self._connection
        if connection is not None:
            connection.shutdown()  # frees the lock if a sender is blocked
        with self._sending:
            self._sending.notify()
        for call_id in list(self._pending):
            self._complete(call_id, self._closed_error())
        thread = self._thread
        if wait and thread is not None and thread is not threading.current_thread():
            thread.join(5.0)

    def forget(self) -> None:
        """In a forked child: closes this process's copy of the socket."""
        for sock in (self._connection, *(self._bells or ())):
            if sock is not None:
                sock.close()
