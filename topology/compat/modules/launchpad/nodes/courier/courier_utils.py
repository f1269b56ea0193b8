"""`launchpad.nodes.courier.courier_utils`."""

from typing import Any

from courier import Server

from topology.compat.batching import batched_handler
from topology.nodes.courier import bind_object

__all__ = ["batched_handler", "make_courier_server"]


def make_courier_server(instance: Any, *courier_args: Any, **courier_kwargs: Any) -> Server:
    """A server, not started, of the public methods of `instance` and its `__call__`."""
    server = Server(*courier_args, **courier_kwargs)
    bind_object(server, instance)
    return server
