"""Futures: many calls at a time on one connection, and whoever reads their replies.

There is a thread that reads whenever nobody else does: a client that waits to write while the server waits for it to
read would wait for ever. It opens the connection, again after it broke, and completes the futures. When a caller
blocks in `result`, alone, it takes the reader's seat and completes what arrives itself: every hand-over between threads
costs more than a call. The reader then stands by; it takes the seat again when no caller has read for a few
milliseconds, and at once when somebody waits in another way: with a callback, in `concurrent.futures.wait`, in a second
thread, for room. What is to run callbacks, or to wake others, is left to the reader.

Who has the seat never blocks on anything but readiness, and writes what waits in the outbox.
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
from threading import get_ident
from time import monotonic
from typing import Any, final

from topology import errors
from topology.clock import Deadline
from topology.nodes.courier.calls import CallFuture
from topology.nodes.courier.connection import LONGEST_POLL_S, Connection, TimedOut, broken
from topology.nodes.courier.options import ClientOptions
from topology.nodes.courier.outbox import Outbox
from topology.nodes.courier.pending import Pending
from topology.nodes.courier.seat import Seat
from topology.nodes.courier.wire import JOIN_BYTES, Buffer, Frame, Kind, WireError, encode, encode_small, payload_bytes

__all__ = ["AFTER_STOP_S", "Channel"]

_logger = logging.getLogger(__name__)

AFTER_STOP_S = 2.0
"""What a call made after the program's stop may take: enough to say goodbye, not enough to hold up the end."""

_FEW = 4  # calls under way, up to which each is sent at once
_RETRY_S = 0.001
_BELL_BYTES = 64

_REQUEST = int(Kind.REQUEST)  # an enum's attributes are slow to look up


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
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._reader_id = 0
        self._closed = False
        self._stopped = False
        self._why = ""  # of the stop, for messages
        self._pending = Pending(options.max_in_flight, options.max_in_flight_bytes, self.attend)
        self._out = Outbox(self._pending.calls)
        self._settled: deque[tuple[CallFuture, Any, Exception | None]] = (
            deque()
        )  # by a caller; to be told by the reader
        self._seat = Seat(self._out, self._is_needed, self._tell)  # guards the next five
        self._poll = select.poll()
        self._heard: socket.socket | None = None
        self._frames: deque[Frame] = deque()  # that were read and not yet dealt with
        self._receiving = False  # an exception now would lose a reply
        self._ended: BaseException | None = None  # why a caller could not read on

    # --- calls ---------------------------------------------------------------------------------------------------

    def submit(self, name: str, body: Buffer, buffers: Sequence[Buffer], *, raw: bool = False) -> CallFuture:
        """Sends a call. Blocks while too much is under way, and until a large call is written.

        Args:
            name: of the method.
            body: the arguments.
            buffers: theirs.
            raw: have the future give a `RawReply`.
        """
        size = payload_bytes(body, buffers) if buffers else len(body)
        limit_s = self._limit()
        expires = 0.0 if limit_s is None else monotonic() + limit_s
        call_id = next(self._ids)
        future = CallFuture(call_id, name, size, expires, raw, self)
        if buffers or size >= JOIN_BYTES:
            parts = encode(_REQUEST, call_id, name.encode(), body, buffers)
        else:
            parts = [encode_small(_REQUEST, call_id, name.encode(), bytes(body))]
        me = get_ident()
        # Who reads makes room for others, and must wait neither for that nor for the server to read.
        reads = me in {self._reader_id, self._seat.caller}
        self._pending.add(future, must_not_block=reads)
        if self._closed:
            self._fail(call_id, self._closed_error())  # it may have come too late for `close`
            raise self._closed_error()
        if self._thread is None:
            self._start()
        try:
            self._out.send(call_id, parts, few=len(self._pending.calls) < _FEW, must_not_block=reads)
        except BaseException:
            future.cancel()  # an interrupt: nobody will ask for what may be on its way already
            raise
        return future

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"courier {self._address}", daemon=True)
                self._thread.start()

    def _settle(self, future: CallFuture, value: Any, error: Exception | None) -> None:
        """Completes a future. What concerns others than a caller that reads is left to the reader."""
        if future.finish(value, error):
            return
        if get_ident() == self._seat.caller:
            self._settled.append((future, value, error))
            self.attend()
        else:
            self._complete(future, value, error)

    def _complete(self, future: CallFuture, value: Any, error: Exception | None) -> None:
        try:
            future.complete(value, error)
        except BaseException:  # SystemExit: `Future` itself logs any other that a callback raises
            if get_ident() != self._reader_id:
                raise
            _logger.exception("a callback of the call %r wanted to end the thread that reads all replies", future.name)

    # --- what futures ask for ------------------------------------------------------------------------------------

    def cancelled(self, future: CallFuture) -> None:
        if self._pending.take(future.call_id) is not None:
            self._out.cancel(future.call_id)

    def watch(self, future: CallFuture) -> None:
        self._pending.watch(future.call_id)
        self.attend()

    def attend(self) -> None:
        self._seat.attend()

    def drive(self, future: CallFuture, timeout_s: float | None) -> None:
        connection, me = self._out.connection, get_ident()
        if connection is None:
            return
        end = None if timeout_s is None else monotonic() + timeout_s
        seat = self._seat
        if me == self._reader_id:  # called from a callback, or from what unpickling a reply ran
            with seat.lock:
                self._drive(connection, future, end)
            if self._ended is not None and not future.over:  # nobody else would find that out
                self._fail(future.call_id, self._end_error() or broken(self._address, repr(future.name), self._ended))
            return
        outer = seat.caller == me  # called from what unpickling a reply ran
        try:
            if seat.claim(me, unless=self._is_needed):
                with seat.lock:
                    self._drive(connection, future, end)
        finally:
            if not outer:
                seat.leave(me)

    def _drive(self, connection: Connection, future: CallFuture, end: float | None) -> None:
        """Reads, holding the seat, until the future is done, the time is over or the connection has ended."""
        try:
            while self._out.connection is connection and self._ended is None and not future.over:
                if end is not None and monotonic() >= end:
                    return
                if self._settled and get_ident() == self._reader_id:
                    self._tell()
                else:
                    self._turn(connection, future, end)
        except (EOFError, OSError, WireError, TimedOut) as error:
            self._ended = error
        except BaseException as error:
            if self._receiving:
                self._ended = error  # a reply may be lost
            raise
        finally:
            self._out.awake = True

    # --- the reader ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._reader_id = get_ident()
        heard = self._heard = self._out.open_bell()
        out = self._out
        try:
            while True:
                with out.gate:
                    out.work.wait_for(lambda: out.waiting or self._closed)
                if self._closed:
                    return
                try:
                    connection = self._open()
                except errors.CourierError as error:
                    self._fail_all(error)
                else:
                    self._serve(connection, heard)
        finally:
            heard.close()
            out.close_bell()

    def _open(self) -> Connection:
        connect = self._connect()
        if connect is None:
            raise errors.CourierClosed(f"the client of {self._address} is gone")
        return connect(Deadline(None), self._expire)

    def _serve(self, connection: Connection, heard: socket.socket) -> None:
        """Sees to it that one connection is read until it ends."""
        with self._seat.lock, self._out.gate:
            self._poll = connection.poller(heard)
            self._frames.clear()
            self._ended = None
            self._receiving = False
            self._out.connection = connection
        try:
            while True:
                self._read(connection)
                self._seat.stand_by()
        except (EOFError, OSError, WireError, TimedOut) as error:
            connection.shutdown()  # frees the lock if somebody is blocked in writing
            with self._seat.lock:
                self._out.disconnect()
                connection.close()
            self._fail_sent(error)

    def _read(self, connection: Connection) -> None:
        """Reads, in the reader's thread, until a caller wants to."""
        seat = self._seat
        with seat.lock:
            seat.reader_seated = True
            try:
                while not seat.caller:
                    self._check_ended()
                    self._tell()
                    self._turn(connection, None, None)
            finally:
                seat.reader_seated = False

    def _check_ended(self) -> None:
        """Raises what ended the reading of a caller, or at the end of the client."""
        error = EOFError("the client is closed") if self._closed else self._ended
        if isinstance(error, (EOFError, OSError, WireError, TimedOut)):
            raise error
        if error is not None:
            raise EOFError(f"{type(error).__name__} in the thread that read replies")

    def _is_needed(self) -> bool:
        return bool(self._pending.need_reader or self._settled or self._ended or self._closed)

    def _tell(self) -> None:
        """Completes the futures that callers have left to the reader."""
        while self._settled:
            future, value, error = self._settled.popleft()
            self._complete(future, value, error)
            del future, value, error  # they must not live on here

    def _turn(self, connection: Connection, future: CallFuture | None, end: float | None) -> None:
        """Writes what it can, waits for readiness, reads what there is; no longer than for `future`. In the seat."""
        self._deal()
        patience_s = self._patience()
        if end is not None:
            left_s = max(0.0, end - monotonic())
            patience_s = left_s if patience_s is None else min(patience_s, left_s)
        outcome = self._out.push(falls_asleep=True)
        if future is not None and future.over:
            return  # looked at after falling asleep: who cancels it from now on rings
        poll = self._poll
        if outcome == "full":
            poll.modify(connection.sock, select.POLLIN | select.POLLOUT)
        elif outcome == "busy":  # whoever writes does not know of what was posted since
            patience_s = _RETRY_S if patience_s is None else min(patience_s, _RETRY_S)
        ready = dict(poll.poll(None if patience_s is None else min(patience_s, LONGEST_POLL_S) * 1e3))
        self._out.awake = True
        if outcome == "full":
            poll.modify(connection.sock, select.POLLIN)
        if self._heard is not None and self._heard.fileno() in ready:
            self._heard.recv(_BELL_BYTES)
        if ready.get(connection.sock.fileno(), 0) & ~select.POLLOUT:
            self._receiving = True
            self._frames += connection.receive_all()
            self._deal()
            self._receiving = False
        elif not ready:
            self._expire()

    def _deal(self) -> None:
        """Completes the futures of the replies that were read."""
        frames, address, max_bytes = self._frames, self._address, self._options.max_message_bytes
        while frames:
            frame = frames.popleft()
            future = self._pending.take(frame.id)
            if future is not None:
                try:
                    value, error = future.outcome(frame, address, max_bytes)
                except BaseException as interrupt:  # SystemExit: unpickling runs any code
                    self._settle(future, None, broken(address, repr(future.name), interrupt))
                    if get_ident() != self._reader_id:
                        raise
                    _logger.exception("the reply to %r wanted to end the thread that reads all replies", future.name)
                else:
                    self._settle(future, value, error)
                    del value, error
            del future  # it must not live on here until the next reply

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
        first = self._pending.first()
        # All calls have the same limit, so one that is made while we wait expires later than this wait ends.
        return limit_s if first is None else max(0.0, first.expires - monotonic())

    def _expire(self) -> None:
        if self._limit() is None:
            return
        now = monotonic()
        for call_id, future in self._pending.list():
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
            return errors.ProgramStopped(f"the program stopped{self._why} while a call to {self._address} waited")
        return None

    def _closed_error(self) -> errors.CourierClosed:
        return errors.CourierClosed(f"the client of {self._address} is closed")

    def _fail(self, call_id: int, error: Exception) -> None:
        future = self._pending.take(call_id)
        if future is not None:
            self._settle(future, None, error)

    def _fail_all(self, error: Exception) -> None:
        with self._out.gate:
            self._out.waiting.clear()
        for call_id in list(self._pending.calls):
            self._fail(call_id, error)

    def _fail_sent(self, cause: BaseException) -> None:
        """Fails the calls that the server may have begun; those that it cannot have are sent again."""
        with self._out.gate:
            unsent = {call_id for call_id, _ in self._out.waiting}
        for call_id, future in self._pending.list():
            if call_id not in unsent:
                self._fail(call_id, self._end_error() or broken(self._address, repr(future.name), cause))

    # --- the end -------------------------------------------------------------------------------------------------

    def stop(self, why: str = "") -> None:
        """The program stops: fails the calls under way; later ones get `AFTER_STOP_S`. `why` is for their error."""
        self._why = why
        self._stopped = True
        connection = self._out.connection
        if connection is not None:
            connection.shutdown()  # also wakes who is blocked in writing; a later call connects anew
        error = self._end_error()
        assert error is not None
        self._fail_all(error)

    def close(self, *, wait: bool = True) -> None:
        """Fails the calls under way and ends the reader."""
        self._closed = True
        self._pending.close()
        connection = self._out.connection
        if connection is not None:
            connection.shutdown()
        with self._out.gate:
            self._out.work.notify_all()
        self.attend()
        self._fail_all(self._closed_error())
        thread = self._thread
        if wait and thread is not None and thread is not threading.current_thread():
            thread.join(5.0)

    def forget(self) -> None:
        """In a forked child: closes this process's copies of the sockets."""
        self._seat.forget()
        self._out.forget()
        if self._heard is not None:
            self._heard.close()
