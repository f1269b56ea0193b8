"""A call whose reply its caller reads, and may look up from at times: for one who has nothing else under way.

A blocking call cannot be left before its end. A future can, but behind it is a thread that reads for all of them, and
on a busy machine it takes longer to have that scheduled than to make the call.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from time import monotonic
from typing import Any, Protocol, final

from topology import errors
from topology.clock import Deadline
from topology.nodes.courier import codec
from topology.nodes.courier.calls import check_result
from topology.nodes.courier.connection import Connection, NotDelivered, TimedOut
from topology.nodes.courier.wire import Buffer, Frame, Kind, WireError

__all__ = ["BegunCall", "Lender"]


class Lender(Protocol):
    """Whose connections a call uses, each for one call at a time.

    Attributes:
        address: of the server.
        max_bytes: of a reply.
    """

    address: str
    max_bytes: int

    def take_idle(self) -> Connection | None:
        """A connection that is there; None when there is none."""

    def take_new(self, deadline: Deadline) -> Connection:
        """Opens one. Raises `TimedOut`, or what says why there is none."""

    def give_back(self, connection: Connection) -> None:
        """It may be used for other calls."""

    def drop(self, connection: Connection) -> None:
        """It is of no more use."""

    def limit_s(self) -> float | None:
        """Seconds that a call may take; None for ever."""

    def may_try_again(self, times: int) -> bool:
        """Whether to send once more what new connections did not deliver so many times."""

    def failure(self, name: str, error: BaseException) -> errors.CourierError:
        """What a call ends with whose connection has ended."""

    def overdue(self, name: str) -> errors.CourierError:
        """What a call ends with whose time is over."""


@final
class BegunCall:
    """The result to come of a call. `result` blocks one thread at a time; `cancel` may be called by any.

    The request is sent at once where a connection is there, otherwise by the first `result`. When it is cancelled, the
    server drops the call if it has not ended.

    Args:
        lender: of connections.
        name: of the method.
        parts: of the frame of the request.
    """

    def __init__(self, lender: Lender, name: str, parts: list[Buffer]) -> None:
        self._lender = lender
        self._name = name
        self._parts = parts
        self._began = monotonic()
        self._reading = threading.Lock()  # held by who reads, and who lets go of the connection
        self._connection: Connection | None = None
        self._frame: Frame | None = None  # the reply, until it is unpickled
        self._vain = 0
        self._is_done = False
        self._is_cancelled = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._afterwards: Callable[[Any, BaseException | None], object] | None = None
        idle = lender.take_idle()
        if idle is not None:
            self._send(idle, is_new=False)

    def done(self) -> bool:
        """Whether the result is known here. A reply that nobody has read is not."""
        return self._is_done or self._is_cancelled

    def result(self, timeout: float | None = None) -> Any:
        """What the method returned. Blocks for it.

        Args:
            timeout: seconds, after which it can be asked again; None for ever.

        Raises:
            TimeoutError: it is not there yet.
            CancelledError: the call was cancelled.
            Exception: the call failed.
        """
        with self._reading:
            self._read(timeout)
            if self._frame is not None:
                self._take()
            if self._is_cancelled:
                self._let_go()
                self._tell(None, CancelledError())
        if self._is_done:
            if self._error is not None:
                raise self._error
            return self._value
        if self._is_cancelled:
            raise CancelledError
        raise TimeoutError

    def wait(self) -> None:
        """Blocks until the reply is there, or the call has failed. The reply is unpickled by `result`."""
        with self._reading:
            self._read(None)

    def cancel(self) -> bool:
        """Drops the call, also for a thread that is blocked in `result`; False when it is done."""
        if self._is_done:
            return False
        self._is_cancelled = True
        connection = self._connection
        if self._reading.acquire(blocking=False):
            self._let_go()
            self._tell(None, CancelledError())
            self._reading.release()
        elif connection is not None:
            connection.shutdown()  # who reads sees it, and lets go of it
        return True

    def afterwards(self, fn: Callable[[Any, BaseException | None], object]) -> None:
        """Runs `fn(result, error)` once one of them is known, in the thread that finds it out. At most one."""
        self._afterwards = fn
        if self.done():
            self._tell(self._value, CancelledError() if self._is_cancelled else self._error)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not self.done() and not is_finalizing():
            self.cancel()

    # --- reading -----------------------------------------------------------------------------------------------------

    def _read(self, timeout_s: float | None) -> None:
        """Goes on until the reply is there, for so long, or until the call is overdue."""
        if self.done() or self._frame is not None:
            return
        limit_s = self._lender.limit_s()
        left_s = None if limit_s is None else max(0.0, self._began + limit_s - monotonic())
        is_last = left_s is not None and (timeout_s is None or left_s <= timeout_s)
        try:
            frame = self._receive(Deadline(left_s if is_last else timeout_s))
        except TimedOut:
            if is_last:
                self._fail(self._lender.overdue(self._name))
        except errors.CourierError as error:
            self._fail(error)
        except (EOFError, OSError, WireError) as error:
            self._fail(self._lender.failure(self._name, error))
        except BaseException:
            self._is_cancelled = True  # an interrupt: part of the reply may be lost
            self._let_go()
            self._tell(None, CancelledError())
            raise
        else:
            connection, self._connection = self._connection, None
            if connection is not None:
                self._lender.give_back(connection)
            self._frame = frame

    def _receive(self, deadline: Deadline) -> Frame:
        while True:
            if self._connection is None:
                idle = self._lender.take_idle()
                self._send(self._lender.take_new(deadline) if idle is None else idle, is_new=idle is None)
            try:
                if self._connection is not None:
                    return self._connection.receive(deadline)
            except NotDelivered as error:
                self._not_delivered(error)

    def _send(self, connection: Connection, *, is_new: bool) -> None:
        self._connection = connection
        self._vain += is_new
        try:
            connection.send(self._parts)
        except NotDelivered as error:
            self._not_delivered(error)
        except TimedOut:
            self._let_go()  # incomplete at best, so that the server cannot act on it
            raise

    def _not_delivered(self, error: NotDelivered) -> None:
        self._let_go()
        if self._is_cancelled or not self._lender.may_try_again(self._vain):
            raise self._lender.failure(self._name, error) from error

    def _take(self) -> None:
        """Unpickles the reply."""
        frame, self._frame = self._frame, None
        assert frame is not None
        if self._is_cancelled:
            return
        try:
            if frame.size > self._lender.max_bytes:
                check_result(frame, self._name, self._lender.address, self._lender.max_bytes)
            error = None if frame.kind == Kind.REPLY else codec.decode_error(frame.body)
            value = None if error is not None else codec.decode(frame.body, frame.buffers)
        except Exception as wrong:  # noqa: BLE001 - unpickling runs any code
            error, value = wrong.with_traceback(None), None
        self._finish(value, error)

    def _fail(self, error: Exception) -> None:
        self._let_go()
        if not self._is_cancelled:  # that ended the connection
            self._finish(None, error)

    def _finish(self, value: Any, error: Exception | None) -> None:
        self._value, self._error, self._is_done = value, error, True
        self._tell(value, error)

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._lender.drop(connection)

    def _tell(self, value: Any, error: BaseException | None) -> None:
        fn, self._afterwards = self._afterwards, None
        if fn is not None:
            fn(value, error)
