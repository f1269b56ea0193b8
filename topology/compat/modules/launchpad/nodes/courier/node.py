"""`launchpad.nodes.courier.node`."""

from launchpad.nodes.python.node import WorkerType
from topology import CacherNode, CourierClient, CourierHandle, CourierNode

__all__ = ["COURIER_PORT_NAME", "CacherNode", "CourierClient", "CourierHandle", "CourierNode", "WorkerType"]

COURIER_PORT_NAME = "courier"
