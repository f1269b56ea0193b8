"""`courier.python.client`."""

from topology.compat.members import add_members
from topology.compat.status import StatusNotOk
from topology.nodes.courier import Client, list_methods

__all__ = ["Client", "StatusNotOk", "list_methods"]

add_members()
