"""The callee's side: exposes functions to clients.

One thread at a time, the leader, waits for all sockets and reads requests. A handler known to be fast runs right
there: handing a request to another thread would cost more than the call. Before a handler that is slow, or not known
yet, the leader passes leadership on to another thread of the pool, and runs the handler itself. When a handler thought
to be fast blocks, the watchdog passes leadership on in its stead; it is awake only while there is traffic.

    idle clients            cost a file descriptor each, no thread
    busy connections        that send call after call are read by a thread each, up to a quarter of the pool, until they
                            pause; see `stay`
    thread_pool_size        handlers that run at a time; more calls wait in a queue, and their clients are not read from
                            beyond `max_in_flight`
    asynchronous handlers   return a future: waiting for it holds no thread

Left to itself (`thread_pool_size=None`) the pool has 16 threads and grows when all of them have been blocked for half a
second while calls wait: nodes that call one another, or handlers that wait for another call, do not deadlock until 256
calls are blocked at a time. A size that is given is kept: `thread_pool_size=1` means one handler at a time.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Self

from topology import errors
from topology.nodes.courier import transport
from topology.nodes.courier.calls import RawReply
from topology.nodes.courier.engine import Engine
from topology.nodes.courier.methods import Method, public_methods
from topology.nodes.courier.options import ServerOptions
from topology.nodes.courier.wire import Buffer

__all__ = ["Server", "ServerOptions", "bind_object", "public_methods"]


class Server:
    """Serves functions under names.

    The address is taken by the constructor and clients are let in by `start`. Binding and unbinding take effect at
    once, also while it runs.

    Args:
        name: for threads and messages.
        address: "unix:/path", "host:port" (port 0 picks a free one) or "memory:name".
        port: short for `address="localhost:<port>"`. With neither, a fresh unix socket.
        thread_pool_size: handlers that may run at a time; None for 16, growing when all are blocked.
        secret: the run's secret, to be proven on TCP; needed to serve beyond this machine.
        limits: the fields of `ServerOptions`.

    Raises:
        LaunchError: the address is taken, or open to others without a secret.
    """

    def __init__(
        self,
        name: str = "",
        *,
        address: str | None = None,
        port: int | None = None,
        thread_pool_size: int | None = None,
        secret: bytes = b"",
        **limits: int,
    ) -> None:
        if address is not None and port is not None:
            raise ValueError(f"address={address!r} and port={port}: give one of them")
        if port is not None and not 0 <= port < 1 << 16:
            raise ValueError(f"port={port}: from 0, for a free one, to 65535")
        if thread_pool_size is not None and thread_pool_size < 1:
            raise ValueError(f"thread_pool_size={thread_pool_size}: must be at least 1")
        self.name = name or "courier"
        self.options = ServerOptions(**limits)
        self._secret = secret
        if address is None:
            where = transport.fresh_unix_address() if port is None else transport.Address("tcp", "localhost", port)
        else:
            where = transport.parse_address(address)
        self._fresh = address is None and port is None
        self._listener = transport.Listener(where, secret=secret)
        self._methods: dict[str, Method] = {}
        self._engine: Engine | None = None
        self._pool = thread_pool_size
        self._state = threading.Lock()
        self._finished = threading.Event()
        _servers.add(self)

    @property
    def address(self) -> str:
        """What a client is given to call this server."""
        return str(self._listener.address)

    @property
    def port(self) -> int:
        """TCP port.

        Raises:
            CourierError: the server has none.
        """
        if self._listener.address.scheme != "tcp":
            raise errors.CourierError(f"server {self.name!r} at {self.address} has no port: give it port=0 to pick one")
        return self._listener.address.port

    # --- methods -------------------------------------------------------------------------------------------------

    def bind(self, name: str, function: Callable[..., Any]) -> None:
        """Serves `function` as `name`, instead of what had that name. See `asynchronous` for waiting handlers."""
        self._methods[name] = Method(name, function)

    def bind_raw(self, name: str, function: Callable[[str, Buffer, list[Buffer]], Future[RawReply]]) -> None:
        """Serves calls without unpickling them: `function(method, body, buffers)` returns a future of the raw reply.

        The name "*" takes all calls of names that are not bound.
        """
        self._methods[name] = Method(name, function, raw=True)

    def unbind(self, name: str) -> None:
        """Takes a method away. Calls that run finish.

        Raises:
            KeyError: it is not bound.
        """
        del self._methods[name]

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Lets clients in. Returns at once; from now on the server lives until it is stopped, whoever holds it.

        Raises:
            CourierClosed: the server was stopped; a new one is needed.
        """
        with self._state:
            if self._finished.is_set():
                raise errors.CourierClosed(f"server {self.name!r} at {self.address} was stopped: make a new one")
            if self._engine is None:
                self._listener.listen()
                self._engine = Engine(self.name, self._listener, self._methods, self.options, self._pool, self._secret)
                self._engine.start()
                _running.add(self)

    def stop(self, timeout_s: float = 5.0) -> None:
        """Closes every connection, which fails the calls that wait, and ends the threads.

        Blocks until handlers that run have returned, at most `timeout_s`; those that have not are left to themselves.
        Idempotent; may be called from a handler. What is thrown at this thread meanwhile, as an interrupt or by a stop
        handler, cuts the waiting short and nothing else.
        """
        try:
            self._stop(timeout_s)
        except (KeyboardInterrupt, SystemExit):
            self._stop(0.0)
            raise

    def _stop(self, timeout_s: float) -> None:
        with self._state:
            engine = self._engine
            self._listener.close()
            self._finished.set()
            _running.discard(self)
            if self._fresh:
                transport.remove_fresh(self._listener.address)
        if engine is not None:
            engine.stop()
            for method in list(self._methods.values()):
                if method.close is not None:
                    method.close()
            engine.join(timeout_s)
            self._engine = None

    def join(self, timeout_s: float | None = None) -> bool:
        """Blocks until the server is stopped; returns whether it is."""
        return self._finished.wait(timeout_s)

    def stats(self) -> dict[str, Any]:
        """Figures for people and tests: connections, threads, calls under way and, by method, calls and mean time."""
        engine = self._engine
        figures: dict[str, Any] = engine.stats() if engine is not None else {"connections": 0, "threads": 0}
        figures["methods"] = {
            name: {"calls": m.calls, "errors": m.errors, "average_s": m.average_s or 0.0}
            for name, m in list(self._methods.items())
        }
        return figures

    def forget(self) -> None:
        """In a forked child: closes this process's copies of the sockets, whose threads are not here."""
        self._listener.forget()
        if self._engine is not None:
            self._engine.forget()
        self._engine = None
        self._finished = threading.Event()
        self._finished.set()
        self._state = threading.Lock()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and "_finished" in self.__dict__ and not self._finished.is_set():
            self.stop(0.0)

    def __repr__(self) -> str:
        return f"<courier.Server {self.name!r} at {self.address}>"

    # The original courier's spelling.
    Bind = bind
    Unbind = unbind
    Start = start
    Stop = stop
    Join = join


def bind_object(server: Server, instance: object) -> None:
    """Serves the public methods of `instance`, and its `__call__`."""
    for name, function in public_methods(instance).items():
        server.bind(name, function)


_servers: weakref.WeakSet[Server] = weakref.WeakSet()
_running: set[Server] = set()


def _forget_all() -> None:
    _running.clear()
    for server in list(_servers):
        server.forget()


os.register_at_fork(after_in_child=_forget_all)
