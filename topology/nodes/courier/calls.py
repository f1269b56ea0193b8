"""What a call under way is to the client: a future, and what may become of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from topology import errors
from topology.nodes.courier import codec
from topology.nodes.courier.wire import Buffer, Frame, Kind

__all__ = ["CallFuture", "RawReply", "check_result"]

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

    Args:
        call_id: of the request.
        name: of the method.
        size: bytes of the arguments.
        expires: when the call is overdue, on the system's monotonic clock; 0 for never.
        raw: whether the result is the `RawReply`.
        on_cancel: told when the call was cancelled.
    """

    def __init__(
        self, call_id: int, name: str, size: int, expires: float, raw: bool, on_cancel: Callable[[CallFuture], None]
    ) -> None:
        super().__init__()
        self.call_id = call_id
        self.name = name
        self.size = size
        self.expires = expires
        self._raw = raw
        self._on_cancel = on_cancel
        self._looked_at = False

    def receive(self, frame: Frame, address: str, max_bytes: int) -> None:
        """Completes the future with the reply."""
        if not self.set_running_or_notify_cancel():
            return
        try:
            check_result(frame, self.name, address, max_bytes)
            if self._raw:
                value: Any = RawReply(frame.kind, frame.body, frame.buffers)
            elif frame.kind == Kind.REPLY:
                value = codec.decode(frame.body, frame.buffers)
            else:
                raise codec.decode_error(frame.body)  # noqa: TRY301 - one place completes the future
        except Exception as error:  # noqa: BLE001 - unpickling runs any code
            # Without the frames of this module: they refer to the future, which refers to the error.
            self.set_exception(error.with_traceback(None))
        else:
            self.set_result(value)

    def fail(self, error: Exception) -> None:
        """Completes the future with an error of our own."""
        if self.set_running_or_notify_cancel():
            self.set_exception(error)

    def cancel(self) -> bool:
        if not super().cancel():
            return False
        self._on_cancel(self)
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
