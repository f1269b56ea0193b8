"""`launchpad.nodes.courier.node`."""

from topology import CacherNode, CourierClient, CourierHandle, CourierNode

__all__ = ["CacherNode", "CourierClient", "CourierHandle", "CourierNode"]
