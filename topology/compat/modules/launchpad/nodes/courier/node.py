"""`launchpad.nodes.courier.node`."""

from topology import CacherNode, CourierClient, CourierHandle, CourierNode

__all__ = ["COURIER_PORT_NAME", "CacherNode", "CourierClient", "CourierHandle", "CourierNode"]

COURIER_PORT_NAME = "courier"
