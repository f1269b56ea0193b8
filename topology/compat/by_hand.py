"""Nodes that a test runs itself, without a launcher: their addresses are bound by hand."""

from __future__ import annotations

import abc
import atexit
import socket
import threading
import weakref
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
    _stop_at_exit(stop)
    places = {address.id: SimpleLocalAddressBuilder().build() for node in nodes for address in node.addresses}
    stop.subscribe(register_endpoints(places, b"", stop))
    for index, node in enumerate(nodes):
        context = NodeContext(
            label=type(node).__name__, index=index, launch_type="test_mt", stop=stop, endpoints=places
        )
        node.run = _run_in(context, node.run)  # type: ignore[method-assign]  # of this object only
    return stop


_stops: weakref.WeakSet[StopToken] = weakref.WeakSet()


def _stop_at_exit(stop: StopToken) -> None:
    """Nodes in threads that nobody stops do not keep the process of the tests."""
    if not _stops:
        # Private, but what concurrent.futures uses: there is no public hook before the threads are joined.
        getattr(threading, "_register_atexit", atexit.register)(_stop_all)
    _stops.add(stop)


def _stop_all() -> None:
    for stop in list(_stops):
        stop.set("the tests ended")


def _run_in(context: NodeContext, run: Callable[[], None]) -> Callable[[], None]:
    def run_here() -> None:
        with bind_context(context):
            run()

    return run_here
