"""What a client does: a pool of connections with one blocking call at a time on each, and a channel for futures."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from time import monotonic
from typing import Any, final

from topology import errors
from topology.address import find_stop
from topology.clock import SYSTEM_CLOCK, Deadline
from topology.nodes.courier import codec, transport
from topology.nodes.courier.begun import BegunCall
from topology.nodes.courier.calls import RawReply, check_result
from topology.nodes.courier.channel import AFTER_STOP_S, Channel
from topology.nodes.courier.connection import Connection, NotDelivered, TimedOut, broken
from topology.nodes.courier.handshake import Denied
from topology.nodes.courier.options import ClientOptions
from topology.nodes.courier.wire import JOIN_BYTES, Buffer, Frame, Kind, WireError, encode, encode_small, payload_bytes

__all__ = ["Core"]

_logger = logging.getLogger(__name__)

_REQUEST, _REPLY = int(Kind.REQUEST), int(Kind.REPLY)  # an enum's attributes are slow to look up

_FIRST_RETRY_S = 0.001
_LAST_RETRY_S = 0.05
_SAY_SO_AFTER_S = 30.0
_VAIN_CONNECTIONS = 3  # to a server that takes connections and then nothing


@final
class Core:
    """What a client does, apart from names: a pool of connections, one call at a time on each, and a channel."""

    def __init__(self, address: str, options: ClientOptions) -> None:
        self.address = address
        self.options = options
        self._timeout_s = options.call_timeout_s
        self.max_bytes = options.max_message_bytes
        self._closed = False
        self._stopped = False
        self._why = ""  # of the stop, for messages
        self._unsubscribe: Callable[[], None] | None = None
        self._reset()
        _cores.add(self)
        self._listen_for_stop()

    def _reset(self) -> None:
        """Forgets all connections without ending them: also what a forked child does with its parent's."""
        self._idle: deque[Connection] = deque()
        self._busy: set[Connection] = set()
        self._wake = threading.Event()  # set at the stop and at close
        if self._closed or self._stopped:
            self._wake.set()
        self._channel: Channel | None = None
        self._channel_lock = threading.Lock()

    def forget(self) -> None:
        """Runs in a forked child."""
        for connection in [*self._idle, *self._busy]:
            connection.close()
        if self._channel is not None:
            self._channel.forget()
        self._reset()

    # --- calls ---------------------------------------------------------------------------------------------------

    def call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        kind, _, _, result, buffers, _ = self._exchange(name, self._request(name, args, kwargs))
        if kind == _REPLY:
            return codec.decode(result, buffers) if buffers else pickle.loads(result)
        raise codec.decode_error(result)

    def begin(self, name: str, /, *args: Any) -> BegunCall:
        """A call on a connection of its own, whose reply the caller reads when it likes."""
        if self._closed:
            raise errors.CourierClosed(f"the client of {self.address} is closed")
        return BegunCall(self, name, self._request(name, args, {}))

    def _request(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Buffer]:
        """The frame of a call that has its connection for itself."""
        body, buffers = self._encode(name, args, kwargs)
        if buffers or len(body) >= JOIN_BYTES:
            return encode(_REQUEST, 0, name.encode(), body, buffers)
        return [encode_small(_REQUEST, 0, name.encode(), body)]

    def list_methods(self) -> list[str]:
        frame = self._exchange("list_methods", encode(Kind.LIST, 0, b"", b""))
        names: list[str] = codec.decode(frame.body, frame.buffers)
        return names

    def submit(self, name: str, /, *args: Any, **kwargs: Any) -> Future[Any]:
        body, buffers = self._encode(name, args, kwargs)
        return self._get_channel().submit(name, body, buffers)

    def submit_raw(self, name: str, body: Buffer, buffers: Sequence[Buffer]) -> Future[RawReply]:
        """Like `submit` for arguments that are serialised; the future gives the reply as it came, errors included."""
        self._check_size(name, body, buffers)
        return self._get_channel().submit(name, body, buffers, raw=True)

    def _encode(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> codec.Payload:
        try:
            body, buffers = codec.encode_call(args, kwargs)
        except Exception as error:
            error.add_note(f"while pickling the arguments of {name!r} for {self.address}")
            raise
        if buffers or len(body) > self.max_bytes:
            self._check_size(name, body, buffers)
        return body, buffers

    def _check_size(self, name: str, body: Buffer, buffers: Sequence[Buffer]) -> None:
        size = payload_bytes(body, buffers) + len(name)
        if size > self.options.max_message_bytes:
            raise errors.PayloadTooLarge(
                f"the arguments of {name!r} take {size} bytes, over the limit of {self.options.max_message_bytes}: "
                "send less at a time, or raise max_message_bytes of the client and of the server"
            )

    def _exchange(self, name: str, parts: list[Buffer]) -> Frame:
        """Sends a request and blocks for its reply, in this thread, on a connection of its own."""
        timeout_s = self.limit_s()
        began = 0.0 if timeout_s is None else monotonic()
        vain = 0
        while True:
            connection, fresh = self._check_out(name, timeout_s, began)
            try:
                connection.send(parts)
                # The kernel keeps the usual time limit; only what began late or takes several reads must be counted.
                frame = None if fresh or self._stopped else connection.receive_at_once()
                if frame is None:
                    frame = connection.receive(_deadline(timeout_s, began))
            except NotDelivered as error:
                self.drop(connection)
                # A server that is about to end may still have taken the connection, and one in its place may follow.
                vain += fresh
                if not self.may_try_again(vain):
                    raise self.failure(name, error) from error
            except TimedOut:
                self.drop(connection)
                raise self.overdue(name) from None
            except (EOFError, OSError, WireError) as error:
                self.drop(connection)
                raise self.failure(name, error) from error
            except BaseException:
                self.drop(connection)  # KeyboardInterrupt: the reply may still come, and belongs to nobody
                raise
            else:
                self.give_back(connection)
                if frame.size > self.max_bytes:
                    check_result(frame, name, self.address, self.max_bytes)
                return frame

    def limit_s(self) -> float | None:
        """Seconds that a call made now may take; None for ever."""
        return min(self._timeout_s or AFTER_STOP_S, AFTER_STOP_S) if self._stopped else self._timeout_s

    def may_try_again(self, times: int) -> bool:
        """Whether to send once more what so many new connections did not deliver."""
        return times <= (_VAIN_CONNECTIONS if self.options.wait_for_ready else 0) and not (
            self._stopped or self._closed
        )

    def overdue(self, name: str) -> errors.CourierError:
        if self._stopped:
            return errors.ProgramStopped(
                f"{name!r} at {self.address} was called after the program's stop{self._why} and had no answer in "
                f"{AFTER_STOP_S} s"
            )
        return errors.DeadlineExceeded(
            f"Deadline Exceeded: {name!r} at {self.address} had no answer within {self.options.call_timeout_s} s; "
            "it may still run there"
        )

    def failure(self, name: str, error: BaseException) -> errors.CourierError:
        if self._closed:
            return errors.CourierClosed(f"{name!r} at {self.address}: the client is closed")
        if self._stopped:
            return errors.ProgramStopped(f"the program stopped{self._why} while {name!r} at {self.address} waited")
        return broken(self.address, repr(name), error)

    # --- connections ---------------------------------------------------------------------------------------------

    def _check_out(self, name: str, timeout_s: float | None, began: float) -> tuple[Connection, bool]:
        """A connection for one call that began then, and whether it is new."""
        connection = self.take_idle()
        if connection is not None:
            return connection, False
        try:
            return self.take_new(_deadline(timeout_s, began)), True
        except TimedOut as error:
            late = self.overdue(name)
            late.add_note(f"while connecting: {error}")
            raise late from None

    def take_idle(self) -> Connection | None:
        """A connection for one call, of those that are there."""
        while self._idle:
            try:
                connection = self._idle.pop()  # the one used last: its buffers are warm
            except IndexError:
                break  # another thread took it
            self._busy.add(connection)
            if not (connection.ends_silently and connection.ended()):
                return connection
            self.drop(connection)
        return None

    def take_new(self, deadline: Deadline) -> Connection:
        """A new connection for one call. Raises like `connect`."""
        connection = self.connect(deadline)
        self._busy.add(connection)
        if self._stopped or self._closed:
            # The stop may have come between connecting and `add`, and not have seen this connection.
            connection.set_timeout(AFTER_STOP_S)
        return connection

    def give_back(self, connection: Connection) -> None:
        """The call is over, and the connection good for others."""
        self._busy.discard(connection)
        self._idle.append(connection)
        if self._closed:
            self._close_idle()  # it may have missed this one

    def drop(self, connection: Connection) -> None:
        """The connection is of no more use."""
        self._busy.discard(connection)
        connection.close()

    def connect(self, deadline: Deadline, check: Callable[[], None] | None = None) -> Connection:
        """Opens a connection; waits for the server to come up if that is wanted.

        Args:
            deadline: when to give up.
            check: called between attempts; may raise to end the waiting.

        Raises:
            TimedOut, ConnectionBroken, CourierClosed, ProgramStopped
        """
        pause_s, began = _FIRST_RETRY_S, SYSTEM_CLOCK.monotonic()
        told = False
        while True:
            if self._closed:
                raise errors.CourierClosed(f"the client of {self.address} is closed")
            try:
                return Connection(
                    transport.parse_address(self.address),
                    secret=self.options.secret,
                    max_bytes=self.options.max_message_bytes,
                    deadline=deadline,
                    timeout_s=self.options.call_timeout_s,
                )
            except Denied as error:
                raise errors.ConnectionBroken(f"no connection to {self.address}: {error}") from error
            except (OSError, ValueError) as error:
                self._give_up_on(error, deadline)
                waited = SYSTEM_CLOCK.monotonic() - began
                if waited > _SAY_SO_AFTER_S and not told:
                    told = True
                    _logger.warning("still waiting for a server at %s after %.0f s: %s", self.address, waited, error)
            if check is not None:
                check()
            remaining = deadline.remaining()
            # No event tells that a server has come up; the pause ends early at the stop and at close.
            self._wake.wait(pause_s if remaining is None else min(pause_s, remaining))
            pause_s = min(2 * pause_s, _LAST_RETRY_S)

    def _give_up_on(self, error: Exception, deadline: Deadline) -> None:
        """Raises unless another attempt to connect is wanted."""
        if self._closed:
            raise errors.CourierClosed(f"the client of {self.address} is closed") from error
        if self._stopped:
            raise errors.ProgramStopped(
                f"the program stopped{self._why} while no server was at {self.address} ({error})"
            ) from error
        if not self.options.wait_for_ready:
            raise errors.ConnectionBroken(
                f"failed to connect to all addresses: {self.address}: {error}; is the server running? "
                "wait_for_ready=True makes calls wait for it"
            ) from error
        if deadline.expired:
            raise TimedOut(str(error))

    def _get_channel(self) -> Channel:
        if self._closed:
            raise errors.CourierClosed(f"the client of {self.address} is closed")
        channel = self._channel
        if channel is None:
            with self._channel_lock:
                if self._channel is None:
                    self._channel = Channel(self.address, self.options, weakref.WeakMethod(self.connect))
                    if self._stopped:
                        self._channel.stop(self._why)
                channel = self._channel
        return channel

    # --- the end -------------------------------------------------------------------------------------------------

    def _listen_for_stop(self) -> None:
        token = find_stop(self.address)
        if token is None:
            return
        reference = weakref.ref(self)

        def on_stop() -> None:
            core = reference()
            if core is not None:
                core.on_stop(token.reason)

        self._unsubscribe = token.subscribe(on_stop)

    def on_stop(self, reason: str = "") -> None:
        self._why = f" ({reason})" if reason else ""
        self._stopped = True
        self._wake.set()
        for connection in list(self._busy):
            connection.shutdown()
        channel = self._channel
        if channel is not None:
            channel.stop(self._why)

    def close(self, *, wait: bool = True) -> None:
        if self._closed:
            return
        self._closed = True
        self._wake.set()
        if self._unsubscribe is not None:
            self._unsubscribe()
        for connection in list(self._busy):
            connection.shutdown()  # closed by the thread that uses it
        self._close_idle()
        if self._channel is not None:
            self._channel.close(wait=wait)

    def _close_idle(self) -> None:
        while self._idle:
            with contextlib.suppress(IndexError):
                self._idle.pop().close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Here and not in Client: a method taken from a client works on when that is gone. Not when the interpreter
        # ends: what closing needs may have gone before, `sys` itself among it.
        if not is_finalizing():
            self.close(wait=False)


def _deadline(timeout_s: float | None, began: float) -> Deadline:
    """The end of what may take so long and has begun then, on the system's monotonic clock."""
    return Deadline(None if timeout_s is None else max(0.0, began + timeout_s - monotonic()))


_cores: weakref.WeakSet[Core] = weakref.WeakSet()


def _forget_all() -> None:
    for core in list(_cores):
        core.forget()


os.register_at_fork(after_in_child=_forget_all)
