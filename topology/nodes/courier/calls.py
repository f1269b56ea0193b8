"""What a call under way is to the client: a future, and what may become of it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from time import monotonic
from typing import Any, NamedTuple, Protocol

from topology import errors
from topology.nodes.courier import codec
from topology.nodes.courier.wire import Buffer, Frame, Kind

__all__ = ["CallFuture", "RawReply", "check_result"]

_logger = logging.getLogger(__name__)

_PENDING, _FINISHED = "PENDING", "FINISHED"  # states of concurrent.futures
_DONE = frozenset({_FINISHED, "CANCELLED", "CANCELLED_AND_NOTIFIED"})


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


class _Owner(Protocol):
    """What a future asks of the channel that its call went through."""

    def drive(self, future: CallFuture, timeout_s: float | None) -> None:
        """Reads replies in this thread until the future is done, if nobody else has to."""

    def watch(self, future: CallFuture) -> None:
        """Somebody waits for the future without reading."""

    def attend(self) -> None:
        """Somebody looks whether a future is done."""

    def cancelled(self, future: CallFuture) -> None:
        """The future was cancelled."""


_making = threading.Lock()  # held while any future is finished without a condition, or gets one; never for long


class CallFuture(Future[Any]):
    """The result of a remote call to come.

    `cancel` succeeds until the reply is there; the server is told and drops the call if it has not begun. A failure
    that nobody ever looked at is logged once, when the future goes away.

    Most futures are only ever asked for their result, by a thread that reads the replies itself. What it takes to wait
    for others, a condition above all, costs more than the rest of the call; it is made when it is first asked for.
    The constructor therefore leaves out that of `Future`, and provides its attributes here.

    Args:
        call_id: of the request.
        name: of the method.
        size: bytes of the arguments.
        expires: when the call is overdue, on the system's monotonic clock; 0 for never.
        raw: whether the result is the `RawReply`.
        owner: the channel that the call goes through.
    """

    _state: str = _PENDING
    _result: Any = None
    _exception: BaseException | None = None
    _made: threading.Condition | None = None
    _looked_at = False
    _unseen: _Unseen | None = None
    _afterwards: Callable[[Any, BaseException | None], object] | None = None

    def __init__(self, call_id: int, name: str, size: int, expires: float, raw: bool, owner: _Owner) -> None:
        self.call_id = call_id
        self.name = name
        self.size = size
        self.expires = expires
        self._raw = raw
        self._owner = owner

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        if self._made is None:
            with _making:
                if self._made is None:
                    self._waiters: list[Any] = []
                    self._done_callbacks: list[Any] = []
                    self._made = threading.Condition()
            if self._state == _PENDING:
                self._owner.watch(self)
        return self._made

    # --- completing ----------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether the future is done; unlike `done` without consequence for who reads."""
        return self._state in _DONE

    def outcome(self, frame: Frame, address: str, max_bytes: int) -> tuple[Any, Exception | None]:
        """What the reply holds: the result, or an error."""
        try:
            if frame.size > max_bytes:
                check_result(frame, self.name, address, max_bytes)
            if self._raw:
                return RawReply(frame.kind, frame.body, frame.buffers), None
            if frame.kind == Kind.REPLY:
                return codec.decode(frame.body, frame.buffers), None
            return None, codec.decode_error(frame.body)
        except Exception as error:  # noqa: BLE001 - unpickling runs any code
            # Without the frames of this module: they refer to the future, which refers to the error.
            return None, error.with_traceback(None)

    def finish(self, value: Any, error: Exception | None) -> bool:
        """Completes the future if nobody has to be told; returns whether that was so."""
        with _making:
            if self._made is not None:
                return False
            if error is not None:
                self._fail(error)
            self._result = value
            self._state = _FINISHED
        if self._afterwards is not None:
            self._run_afterwards(value, error)
        return True

    def complete(self, value: Any, error: Exception | None) -> None:
        """Completes the future, tells who waits and runs callbacks, in this thread. After `finish` returned False."""
        if not self.set_running_or_notify_cancel():
            return
        self._run_afterwards(value, error)
        if error is None:
            self.set_result(value)
            return
        self._fail(error)
        self.set_exception(error)

    def _fail(self, error: Exception) -> None:
        self._exception = error
        if not self._looked_at and not isinstance(error, errors.CourierClosed):
            self._unseen = _Unseen(self.name, error)

    # --- for callers ---------------------------------------------------------------------------------------------

    def cancel(self) -> bool:
        if not super().cancel():
            return False
        self._owner.cancelled(self)
        self._run_afterwards(None, CancelledError())
        return True

    def afterwards(self, fn: Callable[[Any, BaseException | None], object]) -> None:
        """Runs `fn(result, error)` once one of them is known, in the thread that finds it out.

        Unlike a callback it does not have the reply read before somebody asks for it. At most one; it must be quick,
        and neither raise, nor block, nor ask the future.
        """
        self._afterwards = fn
        if self._state in {"CANCELLED", "CANCELLED_AND_NOTIFIED"}:
            self._run_afterwards(None, CancelledError())
        elif self._state == _FINISHED:
            self._run_afterwards(self._result, self._exception)

    def _run_afterwards(self, value: Any, error: BaseException | None) -> None:
        with _making:
            fn, self._afterwards = self._afterwards, None
        if fn is not None:
            fn(value, error)

    def done(self) -> bool:
        if self._state not in _DONE:
            self._owner.attend()
        return self._state in _DONE

    def result(self, timeout: float | None = None) -> Any:
        if self._state != _FINISHED:
            timeout = self._wait(timeout)
            if self._state != _FINISHED:
                return super().result(timeout)
        if self._exception is None:
            return self._result
        self._see()
        try:
            raise self._exception
        finally:
            del self  # the error's traceback refers to this frame

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if self._state != _FINISHED:
            timeout = self._wait(timeout)
            if self._state != _FINISHED:
                return super().exception(timeout)
        self._see()
        return self._exception

    def _wait(self, timeout_s: float | None) -> float | None:
        """Reads until the future is done, as far as that is for this thread to do; returns what is left of the time."""
        self._see()
        if timeout_s is None:
            self._owner.drive(self, None)
            return None
        end = monotonic() + timeout_s
        self._owner.drive(self, timeout_s)
        return max(0.0, end - monotonic())

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        self._see()
        super().add_done_callback(fn)

    def ignore(self) -> None:
        """Nobody will ask for the result: a failure is not logged."""
        self._see()

    def _see(self) -> None:
        self._looked_at = True
        if self._unseen is not None:
            self._unseen.error = None


class _Unseen:
    """Lives and dies with a failed future; logs the failure if nobody has looked at it."""

    def __init__(self, name: str, error: Exception) -> None:
        self.name = name
        self.error: Exception | None = error

    def __del__(self, logger: logging.Logger = _logger) -> None:  # bound: at the interpreter's end the name may be gone
        if self.error is not None:
            logger.error("call %r failed and nobody asked for its result", self.name, exc_info=self.error)


def _renew_lock() -> None:
    global _making
    _making = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_renew_lock)
