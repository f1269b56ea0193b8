"""The caller's side: remote methods as methods, blocking or as futures."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Self, TypeVar, final

from topology.address import find_secret
from topology.nodes.courier.begun import BegunCall
from topology.nodes.courier.calls import RawReply
from topology.nodes.courier.core import Core
from topology.nodes.courier.options import ClientOptions, seconds
from topology.nodes.courier.transport import parse_address
from topology.nodes.courier.wire import Buffer

__all__ = ["Client", "ClientOptions", "begin", "list_methods", "raw_caller"]

_MAX_REMEMBERED = 256  # names of methods: a program has a few, but somebody may make them up


class Client:
    """Calls the methods that a `Server` exposes.

    `client.method(...)` blocks for the result; `client(...)` calls the remote `__call__`; `client.futures.method(...)`
    returns a `concurrent.futures.Future` at once. Safe from any number of threads; after a fork the child's copy makes
    its own connections; pickles as its address and options.

    A call waits for a server that is not there yet and follows one that is restarted. A call under way when the
    connection breaks fails with `ConnectionBroken` and is never repeated behind the caller's back. When the program of
    the node that made the client stops, blocked calls raise `ProgramStopped`; later ones get two seconds and do not
    wait for a peer.

    Names the client has itself (`address`, `close`, `futures`, `list_methods`) hide remote methods of that name;
    `list_methods` still lists them. Names that begin with an underscore are not remote, except `__call__`.

    Args:
        server_address: "unix:/path", "host:port" or "memory:name".
        call_timeout: limit of every call, in seconds or as timedelta; None or 0 for none.
        wait_for_ready: False makes a call fail at once when nobody listens.
        secret: the run's secret; by default that of the current node, or of the script's run that has this address.
        limits: the remaining fields of `ClientOptions`.

    Raises:
        ValueError: `server_address` is no address, or a setting makes no sense.
    """

    def __init__(
        self,
        server_address: str,
        *,
        call_timeout: float | datetime.timedelta | None = None,
        wait_for_ready: bool = True,
        secret: bytes = b"",
        **limits: int,
    ) -> None:
        parse_address(str(server_address))
        options = ClientOptions(
            call_timeout_s=seconds(call_timeout),
            wait_for_ready=wait_for_ready,
            secret=secret or find_secret(str(server_address)),
            **limits,
        )
        self._attach(Core(str(server_address), options))

    def _attach(self, core: Core) -> None:
        self._core = core
        self._futures = _Futures(core)

    @property
    def address(self) -> str:
        """The server's address."""
        return self._core.address

    @property
    def futures(self) -> _Futures:
        """The same methods, returning futures."""
        return self._futures

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return _remember(self.__dict__, name, functools.partial(self._core.call, name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._core.call("__call__", *args, **kwargs)

    def list_methods(self) -> list[str]:
        """Names of the methods that the server exposes, sorted. Blocks like a call."""
        return self._core.list_methods()

    def close(self) -> None:
        """Closes all connections: calls under way raise `CourierClosed`, as do later ones. Idempotent."""
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._core.address, self._core.options)

    def __repr__(self) -> str:
        return f"<courier.Client {self._core.address}>"


def _rebuild(cls: type[Client], address: str, options: ClientOptions) -> Client:
    client = cls.__new__(cls)
    if not options.secret:
        options = replace(options, secret=find_secret(address))
    client._attach(Core(address, options))  # noqa: SLF001 - this is the class's own constructor
    return client


def list_methods(client: Client) -> list[str]:
    """`client.list_methods()`, reachable also when the server has a method of that name."""
    return Client.list_methods(client)


def begin(client: Client, name: str, /, *args: Any) -> BegunCall:
    """Calls by name; whoever asks for the result reads the reply, and may look up from that at times.

    Raises:
        CourierClosed: the client is closed.
    """
    return client._core.begin(name, *args)  # noqa: SLF001 - a method of that name would hide a remote one


def raw_caller(client: Client) -> Callable[[str, Buffer, Sequence[Buffer]], Future[RawReply]]:
    """Calls by name with arguments that are serialised already; the futures give replies as they came."""
    return client._core.submit_raw  # noqa: SLF001 - a method of that name would hide a remote one


_MAX_NAME_BYTES = 65_535  # of a frame
_F = TypeVar("_F", bound=Callable[..., Any])


def _remember(attributes: dict[str, Any], name: str, method: _F) -> _F:
    """Makes `method` an attribute, so that it is found at once the next time."""
    if len(name.encode()) > _MAX_NAME_BYTES:
        raise AttributeError(f"a method's name has at most {_MAX_NAME_BYTES:,} bytes, got {name[:50]!r}...")
    if len(attributes) < _MAX_REMEMBERED:
        attributes[name] = method
    return method


@final
class _Futures:
    """`client.futures`."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def __getattr__(self, name: str) -> Callable[..., Future[Any]]:
        if name.startswith("_"):
            raise AttributeError(f"client.futures has no attribute {name!r}")
        return _remember(self.__dict__, name, functools.partial(self._core.submit, name))

    def __call__(self, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._core.submit("__call__", *args, **kwargs)
