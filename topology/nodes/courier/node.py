"""The courier's nodes: an object served to other nodes, and a cacher that stands in for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

from topology.address import Address
from topology.context import get_context
from topology.errors import ProgramError
from topology.handle import Handle
from topology.node import Node, NodeDescription
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
        methods = public_methods(self._constructor) if isinstance(self._constructor, type) else ()
        return NodeDescription(
            constructor=description.constructor, arguments=description.arguments, methods=tuple(methods)
        )

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
