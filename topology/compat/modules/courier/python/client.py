"""`courier.python.client`."""

from topology.compat.members import add_members
from topology.compat.status import StatusNotOk
from topology.nodes.courier import Client, list_methods

__all__ = ["Client", "StatusNotOk", "StatusThrown", "list_methods"]

StatusThrown = StatusNotOk

add_members()
