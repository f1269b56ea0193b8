"""One client as the server sees it: what came in, what is under way, what still has to go out. Never blocks."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import deque
from concurrent.futures import Future
from typing import Any, final

from topology.nodes.courier import codec
from topology.nodes.courier.handshake import HANDSHAKE_BYTES, ServerHandshake
from topology.nodes.courier.poller import READ, WRITE, Poller
from topology.nodes.courier.regular import Regular
from topology.nodes.courier.wire import CHUNK_BYTES, Buffer, Decoder, Frame

__all__ = ["PATIENCE_S", "Peer"]

_TURN_BYTES = 1 << 24
_MAX_GATHER = 512  # below IOV_MAX
PATIENCE_S = 0.005
"""How long `receive` waits for a client. Kept by the kernel, which costs nothing a call."""

_PATIENCE = struct.pack("ll", 0, round(PATIENCE_S * 1e6))


@final
class Peer:
    """A connection accepted by a server.

    Reading is done by one thread at a time, the leader or the one that holds the connection; sending by any. Bytes that
    the socket does not take at once wait here and are written by the leader when it has room: a client that does not
    read holds up nobody. While too much is under way, the server does not read from the connection, and so in the end
    the client blocks.

    Args:
        sock: connected. Only `receive` blocks on it.
        poller: that the socket is registered with.
        max_message_bytes: largest frame accepted.
        max_in_flight: requests under way above which reading stops.
        max_in_flight_bytes: bytes of requests under way and of replies not yet sent above which reading stops.
        handshake: to be completed first; None on transports that need none.
    """

    def __init__(
        self,
        sock: socket.socket,
        poller: Poller,
        *,
        max_message_bytes: int,
        max_in_flight: int,
        max_in_flight_bytes: int,
        handshake: ServerHandshake | None,
    ) -> None:
        sock.setblocking(True)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _PATIENCE)
        self.sock = sock
        self.fd = sock.fileno()
        self.handshake = handshake
        self.max_message_bytes = max_message_bytes
        self.waiting: dict[int, Future[Any]] = {}  # futures of asynchronous handlers, to be cancelled
        self.regular = Regular()
        self.lock = threading.Lock()  # guards everything below
        self.alive = True
        self._poller = poller
        self._max_in_flight = max_in_flight
        self._max_in_flight_bytes = max_in_flight_bytes
        self._decoder = Decoder(HANDSHAKE_BYTES if handshake else max_message_bytes, codec.allocate)
        self._outbox: deque[memoryview] = deque()
        self._outbox_bytes = 0
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._interest = READ
        self._hang_up = False
        self._held = False  # by a thread that reads nothing else; the poller does not know of the connection then

    def read(self) -> list[Frame]:
        """Takes what has come in, without blocking.

        Raises:
            EOFError, OSError, WireError: the connection is over.
        """
        try:
            return self.receive(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []

    def receive(self, flags: int = 0) -> list[Frame]:
        """Takes what has come in; unless `flags` say otherwise, waits `PATIENCE_S` for it.

        Raises:
            BlockingIOError: nothing has come.
            EOFError, OSError, WireError: the connection is over.
        """
        if self._decoder.assembling:
            return self._receive_in_place(flags)
        data = self.sock.recv(CHUNK_BYTES, flags)
        if not data:
            raise EOFError
        return self._decoder.feed(data)

    def _receive_in_place(self, flags: int) -> list[Frame]:
        decoder, taken = self._decoder, 0
        while taken < _TURN_BYTES:  # then others have their turn
            targets = decoder.targets()
            if len(targets) == 1:
                size = self.sock.recv_into(targets[0], 0, flags)
            else:
                size = self.sock.recvmsg_into(targets, 0, flags)[0]
            if not size:
                raise EOFError
            frame = decoder.filled(size)
            if frame is not None:
                return [frame]
            taken += size
        return []

    def trust(self) -> None:
        """The handshake is done: frames may be as large as they like to be."""
        self.handshake = None
        self._decoder = Decoder(self.max_message_bytes, codec.allocate)

    # --- under way -----------------------------------------------------------------------------------------------

    def admit(self, size: int) -> None:
        """Counts a request that will not be answered at once."""
        with self.lock:
            self._in_flight += 1
            self._in_flight_bytes += size
            self._update_interest()

    def settle(self, size: int) -> None:
        """Counts it out again, after its reply was given to `send`."""
        with self.lock:
            self._in_flight -= 1
            self._in_flight_bytes -= size
            self._update_interest()

    # --- a thread of its own -------------------------------------------------------------------------------------

    def hold(self) -> bool:
        """Takes the connection from the poller, for a thread that reads nothing else; returns whether that is possible.

        It is not while anything is under way: nobody but that thread may have to do with the connection then.
        """
        with self.lock:
            if not self.alive or self._in_flight or self._outbox or self.handshake is not None:
                return False
            self._held = True
            self._poller.remove(self.fd)
            return True

    @property
    def clogged(self) -> bool:
        """Whether the client has not taken all of its replies."""
        return bool(self._outbox)

    def release(self) -> None:
        """Gives the connection back to the poller."""
        with self.lock:
            self._held = False
            if not self.alive:
                self.sock.close()
                return
            self._interest = READ
            self._poller.add(self.fd, READ)
            self._update_interest()

    # --- sending -------------------------------------------------------------------------------------------------

    def send(self, parts: list[Buffer], *, hang_up: bool = False) -> None:
        """Sends a frame: at once as far as the socket takes it, the rest when it can. Never raises, never blocks.

        Args:
            parts: of the frame.
            hang_up: end the conversation afterwards.
        """
        with self.lock:
            if not self.alive:
                return
            self._hang_up = self._hang_up or hang_up
            if not self._outbox and len(parts) == 1:
                try:
                    sent = self.sock.send(parts[0], socket.MSG_DONTWAIT)
                except BlockingIOError:
                    sent = 0
                except OSError:
                    self._fail()
                    return
                if sent == len(parts[0]) and not hang_up:
                    return
                self._enqueue([memoryview(parts[0])[sent:]])
            else:
                self._enqueue([memoryview(part) for part in parts])
            self._write()

    def flush(self) -> None:
        """Writes on, now that the socket has room."""
        with self.lock:
            if self.alive:
                self._write()

    def _enqueue(self, views: list[memoryview]) -> None:
        for view in views:
            if len(view):
                self._outbox.append(view)
                self._outbox_bytes += len(view)

    def _write(self) -> None:
        outbox = self._outbox
        try:
            while outbox:
                views = [outbox[i] for i in range(min(len(outbox), _MAX_GATHER))]
                sent = self.sock.sendmsg(views, (), socket.MSG_DONTWAIT)
                self._outbox_bytes -= sent
                while outbox and sent >= len(outbox[0]):
                    sent -= len(outbox.popleft())
                if sent:
                    outbox[0] = outbox[0][sent:]
        except BlockingIOError:
            pass
        except OSError:
            self._fail()
            return
        if self._hang_up and not outbox:
            self._fail()
            return
        self._update_interest()

    def _update_interest(self) -> None:
        if not self.alive or self._held:
            return
        crowded = (
            self._in_flight >= self._max_in_flight
            or self._in_flight_bytes + self._outbox_bytes >= self._max_in_flight_bytes
        )
        # A frame that is half here is read to its end: its memory is taken already.
        read = 0 if crowded and not self._decoder.assembling else READ
        interest = read | (WRITE if self._outbox else 0)
        if interest != self._interest:
            self._interest = interest
            self._poller.change(self.fd, interest)

    # --- the end -------------------------------------------------------------------------------------------------

    def _fail(self) -> None:
        """The leader reads the end that this makes, and closes."""
        self._outbox.clear()
        self._outbox_bytes = 0
        with contextlib.suppress(OSError):  # the other side may have been faster
            self.sock.shutdown(socket.SHUT_RDWR)
        if self._interest != READ and not self._held:
            self._interest = READ
            self._poller.change(self.fd, READ)

    def close(self) -> None:
        """Closes the socket and cancels what waits for its sake."""
        with self.lock:
            if not self.alive:
                return
            self.alive = False
            self._outbox.clear()
            if self._held:
                with contextlib.suppress(OSError):  # the other side may have been faster
                    self.sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that holds it, which closes it
            else:
                self._poller.remove(self.fd)
                self.sock.close()
        for future in list(self.waiting.values()):
            future.cancel()
        self.waiting.clear()
