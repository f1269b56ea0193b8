"""`courier.python.client`."""

from topology.compat.status import StatusNotOk
from topology.nodes.courier import Client, list_methods

__all__ = ["Client", "StatusNotOk", "list_methods"]
