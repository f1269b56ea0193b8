"""`launchpad.nodes.python.node`."""

from topology import PyClassNode, PyNode

__all__ = ["PyClassNode", "PyNode"]
