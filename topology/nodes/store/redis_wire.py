"""Connections to a Redis server on which large values travel without being copied.

redis-py connects: it knows URLs, TLS and authentication. From then on the socket is ours: arguments are sent from where
they lie, and large replies are received into the memory in which the arrays will be. Replies are RESP 2.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Sequence
from typing import Any, TypeAlias, final

import numpy as np

from topology.errors import StoreDenied
from topology.nodes.store.codec import Buffer
from topology.nodes.store.redis_urls import check_redis_url, make_connection
from topology.nodes.store.tls import check_tls_files, lasting_tls_error

__all__ = ["Argument", "Refusal", "Wire", "WireBroken"]

Argument: TypeAlias = bytes | Sequence[Buffer]
"""An argument of a command, in one piece or in several."""

_LARGE_BYTES = 4096
_CONNECT_S = 5.0
_ANSWER_S = 30.0  # a server that takes longer is taken for gone
_MOST_PIECES = 512  # in one call of the system


class WireBroken(Exception):
    """The server went away, or was never there."""


@final
class Refusal(Exception):
    """An error reply."""

    @property
    def code(self) -> str:
        """Its first word."""
        return str(self.args[0]).partition(" ")[0]


@final
class Wire:
    """One connection, for one thread at a time.

    Args:
        url: of the server.

    Raises:
        WireBroken: the server is not there.
        StoreDenied: it does not let us in, or has a certificate that is not trusted.
        ValueError: the URL makes no sense.
    """

    def __init__(self, url: str) -> None:
        redis = _package()
        said = redis.exceptions
        check_redis_url(url)
        check_tls_files(url)
        pool = redis.ConnectionPool.from_url(
            url, protocol=2, socket_connect_timeout=_CONNECT_S, socket_timeout=_ANSWER_S, encoding_errors="replace"
        )
        self._connection = make_connection(pool)
        try:
            self._connection.connect()
        except (said.AuthenticationError, said.AuthorizationError) as error:
            raise StoreDenied(f"Redis does not let us in: {error}; see the user and password in the URL") from None
        except said.BusyLoadingError as error:
            raise WireBroken(str(error)) from None
        except said.ResponseError as error:
            raise StoreDenied(f"Redis refuses the connection: {error}") from None
        except (said.RedisError, OSError) as error:
            if (fault := lasting_tls_error(error)) is not None:
                raise StoreDenied(
                    f"Redis is not spoken to: {fault}; give rediss:// the certificate of its authority, as in "
                    "?ssl_ca_certs=FILE, and use redis:// where it does not speak TLS"
                ) from None
            raise WireBroken(str(error)) from None
        self._socket: socket.socket = self._connection._sock  # noqa: SLF001 - there is no public way to it
        self._buffer = bytearray(1 << 14)
        self._view = memoryview(self._buffer)
        self._begin = self._end = 0  # of what was received and not read

    def ask(self, commands: Sequence[Sequence[Argument]], timeout_s: float = 0.0) -> list[Any]:
        """Sends commands; their replies: int, bytes, memoryview (if large), None, lists of these, or `Refusal`.

        Args:
            commands: name and arguments of each.
            timeout_s: how long the commands themselves may block.

        Raises:
            WireBroken: the server went away, or did not answer.
        """
        self.send(commands, timeout_s)
        return self.receive(len(commands))

    def send(self, commands: Sequence[Sequence[Argument]], timeout_s: float = 0.0) -> None:
        """Sends commands, and waits for no reply. See `ask`."""
        try:
            self._socket.settimeout(timeout_s + _ANSWER_S)
            self._send(_pieces(commands))
        except (OSError, ValueError) as error:
            raise WireBroken(f"{type(error).__name__}: {error}") from None

    def receive(self, count: int) -> list[Any]:
        """The next replies. See `ask`."""
        try:
            return [self._reply() for _ in range(count)]
        except (OSError, ValueError) as error:  # ValueError: what came is no reply
            raise WireBroken(f"{type(error).__name__}: {error}") from None

    def interrupt(self) -> None:
        """Ends the call under way, in another thread, with `WireBroken`."""
        with contextlib.suppress(OSError):  # it is closed already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the connection."""
        self._connection.disconnect()

    def _send(self, pieces: list[Buffer]) -> None:
        if isinstance(self._socket, ssl.SSLSocket):
            for piece in pieces:
                self._socket.sendall(piece)
            return
        while pieces:
            sent = self._socket.sendmsg(pieces[:_MOST_PIECES])
            done = 0
            while done < len(pieces) and sent >= len(pieces[done]):
                sent -= len(pieces[done])
                done += 1
            pieces = pieces[done:]
            if sent:
                pieces[0] = memoryview(pieces[0])[sent:]

    # -- replies ------------------------------------------------------------------------------------------------------

    def _reply(self) -> Any:
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"$":
            return None if rest == b"-1" else self._bulk(int(rest))
        if kind == b":":
            return int(rest)
        if kind == b"*":
            return None if rest == b"-1" else [self._reply() for _ in range(int(rest))]
        if kind == b"+":
            return rest
        if kind == b"-":
            return Refusal(rest.decode(errors="replace"))
        raise ValueError(f"a reply begins with {line[:20]!r}")

    def _line(self) -> bytes:
        while (at := self._buffer.find(b"\r\n", self._begin, self._end)) < 0:
            self._receive()
        line = bytes(self._view[self._begin : at])
        self._begin = at + 2
        return line

    def _receive(self) -> None:
        left = self._end - self._begin
        if left == len(self._buffer):
            raise ValueError(f"a line of a reply has more than {left} bytes")
        if self._begin and (not left or self._end == len(self._buffer)):
            self._buffer[:left] = bytes(self._view[self._begin : self._end])
            self._begin, self._end = 0, left
        count = self._socket.recv_into(self._view[self._end :])
        if not count:
            raise ConnectionResetError("the server closed the connection")
        self._end += count

    def _bulk(self, size: int) -> bytes | memoryview:
        memory = memoryview(_room(size + 2))
        filled = min(self._end - self._begin, size + 2)
        memory[:filled] = self._view[self._begin : self._begin + filled]
        self._begin += filled
        while filled < size + 2:
            count = self._socket.recv_into(memory[filled:])
            if not count:
                raise ConnectionResetError("the server closed the connection")
            filled += count
        if bytes(memory[size:]) != b"\r\n":
            raise ValueError("a reply does not end where it should")
        return memory[:size] if size >= _LARGE_BYTES else bytes(memory[:size])


def _room(size: int) -> Any:
    """Writable memory; not zeroed where that would cost."""
    return np.empty(size, "u1") if size >= _LARGE_BYTES else bytearray(size)


def _pieces(commands: Sequence[Sequence[Argument]]) -> list[Buffer]:
    pieces: list[Buffer] = []
    small = bytearray()
    for command in commands:
        small += b"*%d\r\n" % len(command)
        for argument in command:
            parts = [argument] if isinstance(argument, bytes) else argument
            small += b"$%d\r\n" % sum(map(len, parts))
            for part in parts:
                if len(part) < _LARGE_BYTES:
                    small += part
                else:
                    pieces += (small, part)
                    small = bytearray()
            small += b"\r\n"
    pieces.append(small)
    return pieces


def _package() -> Any:
    try:
        import redis
    except ImportError as error:
        raise ImportError("Redis needs the extra: pip install 'rl-topology[redis]'") from error
    return redis
