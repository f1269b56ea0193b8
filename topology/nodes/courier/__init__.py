"""Remote calls: any public method of a node's object, called from another node as if it were here.

May live here: frames, serialisation, sockets, the client and the server, what stands in front of handlers (batching,
caching). `node.py` alone knows the graph; everything else is a library that works without one.
May not: other services, launch types, agents. Importing it imports neither numpy nor jax.

    with Server("counter") as server:
        server.bind("add", lambda a, b: a + b)
        Client(server.address).add(1, 2)
"""

from topology.nodes.courier.batching import batched_handler
from topology.nodes.courier.cacher import CacheOptions, Cacher
from topology.nodes.courier.client import Client, list_methods
from topology.nodes.courier.methods import asynchronous
from topology.nodes.courier.server import Server, bind_object

__all__ = [
    "CacheOptions",
    "Cacher",
    "Client",
    "Server",
    "asynchronous",
    "batched_handler",
    "bind_object",
    "list_methods",
]
