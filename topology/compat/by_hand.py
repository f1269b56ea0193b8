"""Nodes that a test runs itself, without a launcher: their addresses are bound by hand."""

from __future__ import annotations

import abc
import socket
from collections.abc import Callable, Sequence
from typing import Any, final

from topology.address import register_endpoints
from topology.context import NodeContext, StopToken, bind_context
from topology.node import Node

__all__ = ["AbstractAddressBuilder", "SimpleLocalAddressBuilder", "bind_addresses"]


class AbstractAddressBuilder(abc.ABC):
    """Says where an address is: for `address.bind(builder)`."""

    @abc.abstractmethod
    def build(self) -> str:
        """The place, as "host:port"."""


@final
class SimpleLocalAddressBuilder(AbstractAddressBuilder):
    """A port of this machine that was free a moment ago."""

    def build(self) -> str:
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            return f"localhost:{probe.getsockname()[1]}"


def bind_addresses(nodes: Sequence[Node[Any]]) -> StopToken:
    """Gives the addresses of the nodes their places, so that `node.run()` works in a thread of the caller.

    Returns:
        What stops them: call its `set()`. Their clients in this process hear of it, too.
    """
    stop = StopToken()
    places = {address.id: SimpleLocalAddressBuilder().build() for node in nodes for address in node.addresses}
    stop.subscribe(register_endpoints(places, b"", stop))
    for index, node in enumerate(nodes):
        context = NodeContext(
            label=type(node).__name__, index=index, launch_type="test_mt", stop=stop, endpoints=places
        )
        node.run = _run_in(context, node.run)  # type: ignore[method-assign]  # of this object only
    return stop


def _run_in(context: NodeContext, run: Callable[[], None]) -> Callable[[], None]:
    def run_here() -> None:
        with bind_context(context):
            run()

    return run_here
