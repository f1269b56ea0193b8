"""Addresses, and stream sockets between them.

    unix:/path     a socket file on this machine; who may open it is a matter of its directory (0700)
    host:port      TCP; both sides prove that they know the run's secret before anything else is read
    memory:name    inside this process: the in-memory twin of the others, on `socket.socketpair`

Everything above this module sees connected stream sockets only.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import queue
import socket
import threading
from collections.abc import Callable
from typing import NamedTuple, final

from topology import errors

__all__ = ["Address", "Listener", "connect", "fresh_unix_address", "parse_address", "remove_fresh"]

_BACKLOG = 4096
_FRESH_NAME = "s"
_SOCKET_BUFFER_BYTES = 1 << 20
_KEEPALIVE = {
    getattr(socket, name): value
    for name, value in {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}.items()
    if hasattr(socket, name)
}
_MAX_UNIX_PATH = 107 if os.uname().sysname == "Linux" else 103


class Address(NamedTuple):
    """A parsed address. `scheme` is "unix", "tcp" or "memory"; `host` is the path or name of the other two."""

    scheme: str
    host: str
    port: int = 0

    def __str__(self) -> str:
        if self.scheme == "tcp":
            host = f"[{self.host}]" if ":" in self.host else self.host
            return f"{host}:{self.port}"
        return f"{self.scheme}:{self.host}"


def parse_address(text: str) -> Address:
    """Reads an address.

    Raises:
        ValueError: it has none of the forms above.
    """
    for scheme in ("unix", "memory"):
        if text.startswith(f"{scheme}:") and len(text) > len(scheme) + 1:
            return Address(scheme, text[len(scheme) + 1 :])
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if colon and host and port.isdecimal() and int(port) < 1 << 16:
        return Address("tcp", host, int(port))
    raise ValueError(f"{text!r} is no address: expected 'unix:/path', 'host:port' or 'memory:name'")


def fresh_unix_address() -> Address:
    """A socket path that nobody else uses, in a new directory that only this user may enter."""
    import tempfile

    directory = tempfile.mkdtemp(prefix="topology-")
    _fresh.add(directory)
    return Address("unix", os.path.join(directory, _FRESH_NAME))


def remove_fresh(address: Address) -> None:
    """Takes away what `fresh_unix_address` made; where nobody does, the end of the interpreter does."""
    directory = os.path.dirname(address.host)
    _fresh.discard(directory)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(address.host)
    with contextlib.suppress(OSError):  # somebody has put something there
        os.rmdir(directory)


_fresh: set[str] = set()  # directories of this process
os.register_at_fork(after_in_child=_fresh.clear)


@atexit.register
def _remove_left() -> None:
    for directory in list(_fresh):
        remove_fresh(Address("unix", os.path.join(directory, _FRESH_NAME)))


def connect(address: Address, timeout_s: float | None) -> socket.socket:
    """Opens a blocking socket to `address`.

    Raises:
        OSError: nobody listens there, or not within `timeout_s`.
    """
    if address.scheme == "memory":
        return _connect_memory(address)
    if address.scheme == "tcp":
        sock = socket.create_connection((address.host, address.port), timeout_s)
        if sock.getsockname() == sock.getpeername():
            # The kernel gave us the very port we asked for: we are talking to ourselves and hold the server's port.
            sock.close()
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    else:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout_s)
            sock.connect(address.host)
        except BaseException:
            sock.close()
            raise
    sock.settimeout(None)
    tune(sock)
    return sock


def tune(sock: socket.socket) -> None:
    """No delay for small frames, room for large ones."""
    if sock.family in {socket.AF_INET, socket.AF_INET6}:
        # The kernel sizes TCP's buffers by itself; a fixed size would only stop it.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A machine that vanishes says nothing: ask after 15 s of silence, give up after another 15.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
    else:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)


@final
class Listener:
    """The server's end of an address. The constructor takes the address; peers are let in after `listen`.

    Until then, connecting fails as if nothing were there, so that clients go on waiting for the server.

    Raises:
        LaunchError: the address is taken or not allowed.
    """

    def __init__(self, address: Address, *, secret: bytes = b"") -> None:
        self._accepted: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self.closed = False
        if address.scheme == "memory":
            self.socket, self._bell = socket.socketpair()
            self.socket.setblocking(False)
            self.address = address
        elif address.scheme == "unix":
            self.socket = _bind_unix(address)
            self.address = address
        else:
            self.socket = _bind_tcp(address, secret)
            self.address = address._replace(port=self.socket.getsockname()[1], host=_dialable(address.host))

    def listen(self) -> None:
        """Lets peers connect."""
        if self.address.scheme != "memory":
            try:
                self.socket.listen(_BACKLOG)
            except OSError as error:  # two sockets may take one port as long as neither listens
                raise _bind_error(self.address, error) from error
            return
        with _memory_lock:
            if self.address.host in _memory:
                raise errors.LaunchError(
                    f"address {self.address} is in use: another server of this process listens there; "
                    "stop it first or choose another name"
                )
            _memory[self.address.host] = self._enqueue

    def accept(self) -> socket.socket | None:
        """The next peer, or None when there is none at the moment. The socket does not block.

        Raises:
            OSError: out of file descriptors, for instance.
        """
        try:
            if self.address.scheme == "memory":
                self.socket.recv(1)
                sock = self._accepted.get_nowait()
            else:
                sock, _ = self.socket.accept()
        except (BlockingIOError, ConnectionAbortedError, queue.Empty):
            return None
        sock.setblocking(False)
        tune(sock)
        return sock

    def _enqueue(self, sock: socket.socket) -> None:
        with self._lock:
            if self.closed:
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            self._accepted.put(sock)
            self._bell.send(b"\0")

    def close(self) -> None:
        """Gives the address back. Idempotent."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
        if self.address.scheme == "memory":
            with _memory_lock:
                if _memory.get(self.address.host) == self._enqueue:
                    del _memory[self.address.host]
            self._bell.close()
            while not self._accepted.empty():
                self._accepted.get().close()
        self.socket.close()
        if self.address.scheme == "unix":
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.address.host)

    def forget(self) -> None:
        """Closes this process's copy after a fork: the address still belongs to the parent."""
        self.closed = True
        self.socket.close()


_memory: dict[str, Callable[[socket.socket], None]] = {}
_memory_lock = threading.Lock()


def _connect_memory(address: Address) -> socket.socket:
    with _memory_lock:
        enqueue = _memory.get(address.host)
    if enqueue is None:
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    ours, theirs = socket.socketpair()
    try:
        enqueue(theirs)
    except BaseException:
        ours.close()
        theirs.close()
        raise
    tune(ours)
    return ours


def _bind_unix(address: Address) -> socket.socket:
    path = address.host
    if len(os.fsencode(path)) > _MAX_UNIX_PATH:
        raise errors.LaunchError(
            f"socket path {path!r} has {len(os.fsencode(path))} bytes, the system allows {_MAX_UNIX_PATH}: "
            "use a shorter directory"
        )
    os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        try:
            sock.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or _answers(path):
                raise
            os.unlink(path)  # left behind by a server that was killed
            sock.bind(path)
    except OSError as error:
        sock.close()
        raise errors.LaunchError(f"cannot serve at {address}: {error}; choose another path") from error
    return sock


def _answers(path: str) -> bool:
    """Whether a server listens at `path`, or it is no socket at all."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
        return True


def _bind_tcp(address: Address, secret: bytes) -> socket.socket:
    if not secret and not _is_loopback(address.host):
        raise errors.LaunchError(
            f"refused to serve at {address} without a secret: anyone who reaches it could run code here; "
            "give secret=... to the server and its clients, or bind to localhost"
        )
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise errors.LaunchError(
            f"cannot serve at {address}: host {address.host!r} does not resolve ({error})"
        ) from error
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
    except OSError as error:
        sock.close()
        raise _bind_error(address, error) from error
    return sock


def _bind_error(address: Address, error: OSError) -> errors.LaunchError:
    hint = (
        "another server listens there; stop it or choose another port (0 picks a free one)"
        if error.errno == errno.EADDRINUSE
        else "choose an address of this machine and a port that this user may open"
    )
    return errors.LaunchError(f"cannot serve at {address}: port {address.port}: {error.strerror}: {hint}")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _dialable(host: str) -> str:
    """What others dial to reach `host`: a wildcard is no destination."""
    return socket.gethostname() if host in {"0.0.0.0", "::"} else host
