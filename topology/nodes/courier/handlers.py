"""Running what a server exposes: a request in, the frame of its reply out."""

from __future__ import annotations

import pickle
from concurrent.futures import Future
from typing import Any, final

from topology import errors
from topology.nodes.courier import codec
from topology.nodes.courier.methods import Method
from topology.nodes.courier.options import ServerOptions
from topology.nodes.courier.peer import Peer
from topology.nodes.courier.wire import JOIN_BYTES, Buffer, Frame, Kind, encode, encode_small, payload_bytes

__all__ = ["Handlers", "Request"]

Request = tuple[Peer, Frame, Method, bool]
"""What is to be run, for whom, and whether it is counted as under way."""

_REPLY = int(Kind.REPLY)  # an enum's attributes are slow to look up


@final
class Handlers:
    """The functions of a server.

    Args:
        name: of the server, for messages.
        methods: by name; changes while the server runs.
        options: limits.
    """

    def __init__(self, name: str, methods: dict[str, Method], options: ServerOptions) -> None:
        self._name = name
        self._methods = methods
        self._max_bytes = options.max_message_bytes
        self._small_bytes = min(self._max_bytes, JOIN_BYTES - 1)

    def find(self, peer: Peer, frame: Frame) -> Method | None:
        """The method that a request is for; None when it was refused."""
        method = self._methods.get(frame.name) or self._methods.get("*")
        if method is not None and frame.size <= self._max_bytes:
            return method
        error = self._not_found(frame.name) if method is None else self._too_large(frame.name, "arguments", frame.size)
        peer.send(encode(Kind.ERROR, frame.id, b"", *codec.encode_error(error)))
        return None

    def list_names(self, peer: Peer, frame: Frame) -> None:
        """Answers with the names of the methods."""
        peer.send(encode(_REPLY, frame.id, b"", *codec.encode(sorted(self._methods))))

    def perform(self, request: Request) -> list[Buffer] | None:
        """Runs a handler; returns its reply, or None when that will be sent once a future is done."""
        peer, frame, method, counted = request
        try:
            if method.raw:
                result = method.function(frame.name, frame.body, frame.buffers)
            else:
                args, kwargs = codec.decode(frame.body, frame.buffers) if frame.buffers else pickle.loads(frame.body)
                result = method.function(*args, **kwargs)
            if method.asynchronous:
                method.prompt = result.done()
                if not method.prompt:
                    if not counted:
                        peer.admit(frame.size)
                    self._reply_later(peer, frame, method, result)
                    return None
                if result.cancelled():
                    raise _cancelled(frame)  # noqa: TRY301 - as any other error of the call
                result = result.result()
            return self._encode_reply(frame, method, result)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises belongs to its caller
            method.errors += 1
            return encode(Kind.ERROR, frame.id, b"", *codec.encode_error(error))

    def reply(self, request: Request, parts: list[Buffer] | None) -> None:
        """Sends what `perform` returned."""
        peer, frame, _, counted = request
        if parts is None:
            return
        peer.send(parts)
        if counted:
            peer.settle(frame.size)

    def _encode_reply(self, frame: Frame, method: Method, result: Any) -> list[Buffer]:
        if method.raw:
            return encode(result.kind, frame.id, b"", result.body, result.buffers)
        body, buffers = codec.encode(result)
        if not buffers and len(body) <= self._small_bytes:
            return [encode_small(_REPLY, frame.id, b"", body)]
        if buffers or len(body) > self._max_bytes:
            size = payload_bytes(body, buffers)
            if size > self._max_bytes:
                raise self._too_large(frame.name, "results", size)
        return encode(_REPLY, frame.id, b"", body, buffers)

    def _reply_later(self, peer: Peer, frame: Frame, method: Method, future: Future[Any]) -> None:
        def answer(done: Future[Any]) -> None:
            peer.waiting.pop(frame.id, None)
            if done.cancelled():
                error: BaseException | None = _cancelled(frame)
            else:
                error = done.exception()
            try:
                if error is not None:
                    raise error  # noqa: TRY301 - gives it a traceback
                parts = self._encode_reply(frame, method, done.result())
            except BaseException as caught:  # noqa: BLE001 - as in perform
                method.errors += 1
                parts = encode(Kind.ERROR, frame.id, b"", *codec.encode_error(caught))
            peer.send(parts)
            peer.settle(frame.size)

        peer.waiting[frame.id] = future
        future.add_done_callback(answer)
        if not peer.alive:
            future.cancel()  # the connection ended before it could be cancelled on that account

    def _not_found(self, name: str) -> errors.MethodNotFound:
        known = ", ".join(sorted(self._methods)) or "nothing"
        return errors.MethodNotFound(f"method {name} not found: server {self._name!r} exposes {known}")

    def _too_large(self, name: str, what: str, size: int) -> errors.PayloadTooLarge:
        return errors.PayloadTooLarge(
            f"the {what} of {name!r} take {size} bytes, over the limit of {self._max_bytes}: "
            f"send less at a time, or raise max_message_bytes of server {self._name!r}"
        )


def _cancelled(frame: Frame) -> errors.CourierClosed:
    return errors.CourierClosed(f"{frame.name!r} was cancelled at the server")
