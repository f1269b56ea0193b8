"""Mutual proof of a shared secret, before either side reads anything else. No I/O here.

    client                                    server
      HELLO      version, client nonce   ->
                                         <-   CHALLENGE  server nonce, HMAC("server", both nonces)
      PROOF      HMAC("client", nonces)  ->
                                         <-   WELCOME, or DENIED with the reason

Each proof covers both nonces and the role of its sender, so that it can be neither replayed nor reflected. An empty
secret is a secret like any other: both sides must have it. It authenticates; it does not encrypt.
"""

from __future__ import annotations

import secrets
from typing import final

from topology.nodes.courier.wire import VERSION, Buffer, Frame, Kind, encode

__all__ = ["HANDSHAKE_BYTES", "ClientHandshake", "Denied", "ServerHandshake"]

HANDSHAKE_BYTES = 1024
"""Largest frame accepted from a peer that has not proven anything yet."""

_NONCE_BYTES = 32


class Denied(Exception):
    """The other side did not prove the secret, or did not accept our proof."""


def _proof(secret: bytes, role: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    import hmac

    return hmac.digest(secret, b"topology-courier/" + role + client_nonce + server_nonce, "sha256")


def _equal(left: bytes, right: bytes) -> bool:
    import hmac

    return hmac.compare_digest(left, right)


@final
class ClientHandshake:
    """The client's half: send `hello()`, give each frame to `receive`, send what it returns, until `done`."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._proven = False
        self.done = False

    def hello(self) -> list[Buffer]:
        return encode(Kind.HELLO, VERSION, b"", self._nonce)

    def receive(self, frame: Frame) -> list[Buffer]:
        """Answers a frame of the server.

        Raises:
            Denied: with the reason.
        """
        body = bytes(frame.body)
        if frame.kind == Kind.CHALLENGE and not self._proven:
            server_nonce, proof = body[:_NONCE_BYTES], body[_NONCE_BYTES:]
            if not _equal(proof, _proof(self._secret, b"server", self._nonce, server_nonce)):
                raise Denied("the server does not know this client's secret")
            self._proven = True
            return encode(Kind.PROOF, 0, b"", _proof(self._secret, b"client", self._nonce, server_nonce))
        if frame.kind == Kind.WELCOME and self._proven:
            self.done = True
            return []
        if frame.kind == Kind.DENIED:
            raise Denied(body.decode(errors="replace"))
        raise Denied("the server broke the handshake")


@final
class ServerHandshake:
    """The server's half: give each frame to `receive` and send what it returns; `done` once the client is proven."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._client_nonce = b""
        self._server_nonce = secrets.token_bytes(_NONCE_BYTES)
        self.done = False

    def receive(self, frame: Frame) -> list[Buffer]:
        """Answers a frame of the client.

        Raises:
            Denied: with the reason, to be told to the client before closing.
        """
        body = bytes(frame.body)
        if frame.kind == Kind.HELLO and not self._client_nonce:
            if frame.id != VERSION:
                raise Denied(f"the client speaks version {frame.id} of the protocol, this server {VERSION}")
            if len(body) != _NONCE_BYTES:
                raise Denied("malformed hello")
            self._client_nonce = body
            proof = _proof(self._secret, b"server", body, self._server_nonce)
            return encode(Kind.CHALLENGE, 0, b"", self._server_nonce + proof)
        if frame.kind == Kind.PROOF and self._client_nonce:
            if not _equal(body, _proof(self._secret, b"client", self._client_nonce, self._server_nonce)):
                raise Denied("the client does not know this server's secret")
            self.done = True
            return encode(Kind.WELCOME, 0, b"", b"")
        raise Denied("the first frame must be a hello of the courier protocol")
