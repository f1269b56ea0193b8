"""`launchpad.nodes.reverb.node`."""

from topology import ReverbHandle, ReverbNode

__all__ = ["ReverbHandle", "ReverbNode"]
