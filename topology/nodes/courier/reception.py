"""Letting clients in: accepts connections, has them prove themselves, keeps the list of them."""

from __future__ import annotations

import logging
from typing import final

from topology.clock import SYSTEM_CLOCK
from topology.nodes.courier.handshake import Denied, ServerHandshake
from topology.nodes.courier.options import ServerOptions
from topology.nodes.courier.peer import Peer
from topology.nodes.courier.poller import READ, Poller
from topology.nodes.courier.transport import Listener
from topology.nodes.courier.wire import Frame, Kind, encode

__all__ = ["Reception"]

_logger = logging.getLogger(__name__)

_HANDSHAKE_TIMEOUT_S = 10.0
_BREATH_S = 0.005


@final
class Reception:
    """The connections of a server. Used by its leader only, apart from `peers`, which others may look at.

    Attributes:
        peers: by file descriptor.
        unproven: when those that have not proven themselves will be dropped, by file descriptor.

    Args:
        name: of the server, for messages.
        listener: where clients come in.
        poller: that watches their sockets.
        options: limits.
        secret: to be proven on TCP.
    """

    def __init__(self, name: str, listener: Listener, poller: Poller, options: ServerOptions, secret: bytes) -> None:
        self._name = name
        self._listener = listener
        self._poller = poller
        self._options = options
        self._secret = secret
        self.unproven: dict[int, float] = {}
        self.peers: dict[int, Peer] = {}

    def open(self) -> None:
        """Begins to watch the listener."""
        self._poller.add(self._listener.socket.fileno(), READ)

    def accept(self, fd: int) -> None:
        """Takes in the next client, if `fd` is the listener."""
        if self._listener.closed or fd != self._listener.socket.fileno():
            return
        try:
            sock = self._listener.accept()
        except OSError as error:
            if not self._listener.closed:
                _logger.warning("server %r cannot accept a connection: %s", self._name, error)
                SYSTEM_CLOCK.sleep(_BREATH_S)  # out of descriptors: the listener stays ready, and this must not spin
            return
        if sock is None:
            return
        tcp = self._listener.address.scheme == "tcp"
        options = self._options
        peer = Peer(
            sock,
            self._poller,
            max_message_bytes=options.max_message_bytes,
            max_in_flight=options.max_in_flight,
            max_in_flight_bytes=options.max_in_flight_bytes,
            handshake=ServerHandshake(self._secret) if tcp else None,
        )
        if tcp:
            self.unproven[peer.fd] = SYSTEM_CLOCK.monotonic() + _HANDSHAKE_TIMEOUT_S
        self.peers[peer.fd] = peer
        self._poller.add(peer.fd, READ)

    def shake_hands(self, peer: Peer, handshake: ServerHandshake, frame: Frame) -> None:
        """Goes on with the proof of a client."""
        try:
            answer = handshake.receive(frame)
        except Denied as error:
            _logger.warning("server %r refused a connection: %s", self._name, error)
            peer.send(encode(Kind.DENIED, 0, b"", str(error).encode()), hang_up=True)
            return
        if handshake.done:
            self.unproven.pop(peer.fd, None)
            peer.trust()
        peer.send(answer)

    def patience(self) -> float | None:
        """How long the leader may wait: connections that never prove themselves are dropped in time."""
        now = SYSTEM_CLOCK.monotonic()
        for fd, expires in list(self.unproven.items()):
            if expires > now:
                return expires - now
            peer = self.peers.get(fd)
            if peer is not None:
                self.part(peer)
        return None

    def part(self, peer: Peer) -> None:
        """Ends the connection of a client."""
        self.peers.pop(peer.fd, None)
        self.unproven.pop(peer.fd, None)
        peer.close()
