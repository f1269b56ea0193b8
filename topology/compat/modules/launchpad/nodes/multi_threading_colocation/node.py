"""`launchpad.nodes.multi_threading_colocation.node`."""

from topology import MultiThreadingColocation

__all__ = ["MultiThreadingColocation"]
