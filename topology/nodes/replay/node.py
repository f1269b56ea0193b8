"""The replay service as a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from topology.address import Address
from topology.context import get_context
from topology.handle import Handle
from topology.node import Node, NodeDescription
from topology.nodes.replay.client import Client
from topology.nodes.replay.server import Server
from topology.nodes.replay.table import Table

__all__ = ["ReverbHandle", "ReverbNode"]


@final
class ReverbHandle(Handle[Client]):
    """Stands for a replay server; dereferences to a replay `Client`."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def __repr__(self) -> str:
        return f"<ReverbHandle of {self._address!r}>"

    @property
    def address(self) -> Address:
        return self._address

    def dereference(self) -> Client:
        return Client(self._address.resolve(), secret=self._address.secret())


@final
class ReverbNode(Node[ReverbHandle]):
    """Serves replay tables until the program stops.

    Args:
        priority_tables_fn: called in the node's own place; returns the tables to serve.
    """

    def __init__(self, priority_tables_fn: Callable[[], Sequence[Table]]) -> None:
        super().__init__()
        if not callable(priority_tables_fn):
            raise TypeError(f"ReverbNode() takes a function that returns tables, got {priority_tables_fn!r}")
        self._priority_tables_fn = priority_tables_fn
        self._address = Address("replay", needs_port=False)
        self.allocate_address(self._address)

    def __repr__(self) -> str:
        return f"<ReverbNode {getattr(self._priority_tables_fn, '__qualname__', self._priority_tables_fn)}>"

    def create_handle(self) -> ReverbHandle:
        return ReverbHandle(self._address)

    def describe(self) -> NodeDescription:
        return NodeDescription(constructor=self._priority_tables_fn, arguments={})

    def run(self) -> None:
        context = get_context()
        server = Server(self._priority_tables_fn(), address=self._address.resolve(), secret=context.secret)
        server.start()
        try:
            context.stop.wait()
        finally:
            server.stop()
