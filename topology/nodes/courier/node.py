"""The courier's nodes: an object served to other nodes, and a cacher that stands in for one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, final

from topology.address import Address
from topology.context import get_context
from topology.handle import Handle
from topology.node import Node, NodeDescription
from topology.nodes.courier.cacher import CacheOptions, Cacher
from topology.nodes.courier.client import Client
from topology.nodes.courier.server import Server, bind_object, public_methods
from topology.nodes.python import PyClassNode

__all__ = ["CacherNode", "CourierHandle", "CourierNode"]


@final
class CourierHandle(Handle[Client]):
    """Stands for a node that is called over the courier; dereferences to a `Client`."""

    def __init__(self, address: Address, client_kwargs: Mapping[str, Any] | None = None) -> None:
        self._address = address
        self._client_kwargs = dict(client_kwargs or {})

    def __repr__(self) -> str:
        return f"<CourierHandle of {self._address!r}>"

    @property
    def address(self) -> Address:
        return self._address

    def set_client_kwargs(self, **kwargs: Any) -> None:
        """Options of the `Client` this handle dereferences to, e.g. `call_timeout=2.0`; replaces earlier ones."""
        self._client_kwargs = kwargs

    def dereference(self) -> Client:
        return Client(self._address.resolve(), **{"secret": self._address.secret(), **self._client_kwargs})


@final
class CourierNode(PyClassNode[CourierHandle]):
    """Makes an object in the node's own place and serves its public methods (and `__call__`) to other nodes.

    The constructor is called first, with handles turned into clients; calls of others wait until it has returned.
    Then `run()` is called if the object has one, and the node ends when it returns; without one the node serves until
    the program stops. An object with `set_courier_server(server)` is given the server and starts it itself.

    Args:
        constructor: a class, or any callable that returns the object.
        courier_kwargs: options of the `Server`, e.g. `thread_pool_size`.
        courier_client_kwargs: options of every `Client` that a handle of this node becomes, e.g. `call_timeout`.
    """

    def __init__(
        self,
        constructor: Callable[..., Any],
        *args: Any,
        courier_kwargs: Mapping[str, Any] | None = None,
        courier_client_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(constructor, *args, **kwargs)
        self._address = Address(getattr(constructor, "__name__", type(constructor).__name__), needs_port=False)
        self.allocate_address(self._address)
        self._courier_kwargs = dict(courier_kwargs or {})
        self._courier_client_kwargs = dict(courier_client_kwargs or {})

    def create_handle(self) -> CourierHandle:
        return CourierHandle(self._address, self._courier_client_kwargs)

    def describe(self) -> NodeDescription:
        description = super().describe()
        constructor = description.constructor
        methods = public_methods(constructor) if isinstance(constructor, type) else ()
        return NodeDescription(constructor=constructor, arguments=description.arguments, methods=tuple(methods))

    def run(self) -> None:
        context = get_context()
        instance = self._call()
        server = Server(
            context.name, **{"address": self._address.resolve(), "secret": context.secret, **self._courier_kwargs}
        )
        bind_object(server, instance)
        try:
            if hasattr(instance, "set_courier_server"):
                instance.set_courier_server(server)
            else:
                server.start()
            if self._should_run and hasattr(instance, "run"):
                instance.run()
            else:
                context.stop.wait()
        finally:
            server.stop()


@final
class CacherNode(Node[CourierHandle]):
    """Stands in for a node that answers the same questions to many: same calls, answered from a store kept fresh.

    The first call of a key (method and arguments) goes through to the source; from then on the cacher asks the source
    once an interval, whatever the number of clients. A value older than `stale_after_ms` is not served: callers get
    `StaleError` with its age until the source is back. Put it in front of reads such as `get_variables` only: a
    repeated call is answered without being made.

    Args:
        source: handle of the node it stands in for.
        refresh_interval_ms: milliseconds between two fetches of a key.
        stale_after_ms: age in milliseconds above which a value is not served; at least `refresh_interval_ms`.
        max_keys: keys kept; above it the one not asked for longest goes.
        methods: names that may be called; None for all.
        courier_client_kwargs: options of every `Client` that a handle of this node becomes.
    """

    def __init__(
        self,
        source: Handle[Client],
        refresh_interval_ms: float,
        stale_after_ms: float,
        *,
        max_keys: int = 16,
        methods: Collection[str] | None = None,
        courier_client_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(source, Handle):
            raise TypeError(f"CacherNode() takes the handle of the node it stands in for, got {source!r}")
        self._source = source
        self._refresh_interval_ms = refresh_interval_ms
        self._stale_after_ms = stale_after_ms
        self._options = CacheOptions(
            refresh_interval_s=refresh_interval_ms / 1000, stale_after_s=stale_after_ms / 1000, max_keys=max_keys
        )
        self._methods = methods
        self._courier_client_kwargs = dict(courier_client_kwargs or {})
        self._address = Address("cacher", needs_port=False)
        self.allocate_address(self._address)

    def __repr__(self) -> str:
        return f"<CacherNode of {self._source!r}>"

    def create_handle(self) -> CourierHandle:
        return CourierHandle(self._address, self._courier_client_kwargs)

    def describe(self) -> NodeDescription:
        return NodeDescription(
            arguments={
                "source": self._source,
                "refresh_interval_ms": self._refresh_interval_ms,
                "stale_after_ms": self._stale_after_ms,
            },
            methods=tuple(sorted(self._methods or ())),
        )

    def run(self) -> None:
        context = get_context()
        cacher = Cacher(self._source.dereference(), self._options, methods=self._methods)
        server = Server(context.name, address=self._address.resolve(), secret=context.secret)
        cacher.bind(server)
        server.start()
        try:
            context.stop.wait()
        finally:
            server.stop()
