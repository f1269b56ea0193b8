"""One connection of a client: opening it, sending whole messages, receiving frames. Blocking."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import sys
from typing import final

from topology import errors
from topology.clock import Deadline
from topology.nodes.courier import codec, transport
from topology.nodes.courier.handshake import ClientHandshake, Denied
from topology.nodes.courier.wire import CHUNK_BYTES, Buffer, Decoder, Frame, WireError

__all__ = ["LONGEST_POLL_S", "Connection", "NotDelivered", "TimedOut", "broken"]

LONGEST_POLL_S = 1e6
"""A poller counts milliseconds in 31 bits."""

_MAX_GATHER = 512  # below IOV_MAX
_HANDSHAKE_TIMEOUT_S = 10.0


class NotDelivered(OSError):
    """The connection ended before the peer had the whole message: it cannot have acted on it."""


class TimedOut(Exception):
    """The deadline passed."""


@final
class Connection:
    """A connected socket and the decoder of what comes out of it.

    Args:
        address: where to connect.
        secret: proven to the peer, and by it, on TCP.
        max_bytes: largest frame accepted.
        deadline: for the connection to be usable.
        timeout_s: usual time limit of an operation on it; kept by the kernel, which costs nothing a call.

    Raises:
        OSError: nobody listens there.
        Denied: somebody does, with another secret.
    """

    __slots__ = ("_decoder", "_frames", "_readable", "ends_silently", "resets_tell", "sock")

    def __init__(
        self,
        address: transport.Address,
        *,
        secret: bytes,
        max_bytes: int,
        deadline: Deadline,
        timeout_s: float | None = None,
    ) -> None:
        self.sock = transport.connect(address, deadline.remaining())
        _open.add(self.sock)
        self._decoder = Decoder(max_bytes, codec.allocate)
        self._frames: list[Frame] = []
        # On this machine, sending to who has gone fails at once; over a network it succeeds, and the call is lost.
        self.ends_silently = address.scheme == "tcp"
        # On Linux a unix socket is reset only when its other end had something unread, or was never accepted; who ends
        # after having read all closes it.
        self.resets_tell = address.scheme == "unix" and sys.platform == "linux"
        self._readable = select.poll()
        self._readable.register(self.sock, select.POLLIN)
        try:
            if address.scheme == "tcp":
                self._shake_hands(secret, deadline)
            self.set_timeout(timeout_s)
        except BaseException:
            self.close()
            raise

    def set_timeout(self, timeout_s: float | None) -> None:
        """Limits every operation on the connection from now on."""
        seconds = 0.0 if timeout_s is None else max(timeout_s, 1e-6)
        value = struct.pack("ll", int(seconds), round(seconds % 1 * 1e6))
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)

    def _shake_hands(self, secret: bytes, deadline: Deadline) -> None:
        remaining = deadline.remaining()
        # A server that has bound its port but is stuck must not hold up a client that may try again elsewhere.
        self.set_timeout(_HANDSHAKE_TIMEOUT_S if remaining is None else min(remaining, _HANDSHAKE_TIMEOUT_S))
        handshake = ClientHandshake(secret)
        parts = handshake.hello()
        while not handshake.done:
            try:
                if parts:
                    self.send(parts)
                parts = handshake.receive(self.receive())
            except TimedOut as error:
                raise TimeoutError("the server did not answer the handshake") from error
            except EOFError as error:
                raise ConnectionResetError("the server went away during the handshake") from error
            except WireError as error:
                raise Denied(str(error)) from error

    def ended(self) -> bool:
        """Whether an idle connection is of no more use: nothing is owed to us, so what there is to read is its end."""
        return bool(self._readable.poll(0))

    def poller(self, bell: socket.socket) -> select.poll:
        """Waits for something to read here or a ring of `bell`; registered once, for the reader of a channel."""
        self._readable.register(bell, select.POLLIN)
        return self._readable

    def receive_at_once(self) -> Frame | None:
        """The next frame if one read, within the usual time limit, completes it. Raises like `receive`."""
        if not self._frames:
            self._receive_more(None)
        return self._frames.pop(0) if self._frames else None

    def send(self, parts: list[Buffer]) -> None:
        """Sends a whole frame.

        Raises:
            NotDelivered: the connection ended before.
            TimedOut: the peer did not take it in time; the connection must be dropped.
        """
        try:
            if len(parts) == 1:
                size = self.sock.send(parts[0])
                if size < len(parts[0]):
                    self._send_rest([memoryview(parts[0])[size:]])
            else:
                self._send_rest([memoryview(part) for part in parts])
        except BlockingIOError as error:
            raise TimedOut from error
        except OSError as error:
            raise NotDelivered(str(error)) from error

    def _send_rest(self, views: list[memoryview]) -> None:
        index = 0
        while index < len(views):
            sent = self.sock.sendmsg(views[index : index + _MAX_GATHER])
            while index < len(views) and sent >= len(views[index]):
                sent -= len(views[index])
                index += 1
            if sent:
                views[index] = views[index][sent:]

    def receive(self, deadline: Deadline | None = None) -> Frame:
        """The next frame.

        Raises:
            TimedOut: not before the deadline (or the usual timeout); the connection must be dropped.
            EOFError: the peer closed the connection.
            OSError: it broke; `NotDelivered` when the peer cannot have read what was sent last.
            WireError: the peer speaks another protocol.
        """
        while not self._frames:
            self._receive_more(deadline)
        return self._frames.pop(0)

    def receive_all(self, deadline: Deadline | None = None) -> list[Frame]:
        """Blocks for the next frames: all that one read completed, maybe none. Raises like `receive`."""
        self._receive_more(deadline)
        frames, self._frames = self._frames, []
        return frames

    def _receive_more(self, deadline: Deadline | None) -> None:
        decoder = self._decoder
        if deadline is not None:
            self.wait_readable(deadline)
        try:
            if decoder.assembling:
                targets = decoder.targets()
                # All of it in one go, where the time limit allows: every return to Python costs a switch.
                if len(targets) == 1:
                    size = self.sock.recv_into(targets[0], 0, socket.MSG_WAITALL)
                else:
                    size = self.sock.recvmsg_into(targets, 0, socket.MSG_WAITALL)[0]
                frame = decoder.filled(size)
                if frame is not None:
                    self._frames.append(frame)
            else:
                data = self.sock.recv(CHUNK_BYTES)
                size = len(data)
                self._frames += decoder.feed(data)
        except BlockingIOError as error:
            raise TimedOut from error
        except ConnectionResetError as error:
            if self.resets_tell:
                raise NotDelivered(str(error)) from error
            raise
        if not size:
            raise EOFError("the peer closed the connection")

    def wait_readable(self, deadline: Deadline) -> None:
        """Blocks until there is something to read. Raises `TimedOut` at the deadline."""
        remaining = deadline.remaining()
        if not self._readable.poll(None if remaining is None else min(remaining, LONGEST_POLL_S) * 1e3):
            raise TimedOut

    def shutdown(self) -> None:
        """Ends the conversation from any thread: whoever blocks on the connection wakes with an error."""
        with contextlib.suppress(OSError):  # it may have ended already
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        _open.discard(self.sock)
        self.sock.close()


_open: set[socket.socket] = set()
"""Sockets in use. When a client is part of garbage that refers to itself, Python finalizes that in any order: a socket
held by the client alone might go, with a warning, before the client that would close it."""


def broken(address: str, what: str, error: BaseException) -> errors.ConnectionBroken:
    """Tells that the peer went away while `what` was under way."""
    reason = str(error) or type(error).__name__
    return errors.ConnectionBroken(
        f"{what} at {address} was interrupted: {reason}; it may or may not have run there, so it was not repeated"
    )
