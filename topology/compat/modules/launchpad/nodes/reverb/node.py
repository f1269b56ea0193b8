"""`launchpad.nodes.reverb.node`."""

from topology import ReverbHandle, ReverbNode

__all__ = ["REVERB_PORT_NAME", "ReverbHandle", "ReverbNode"]

REVERB_PORT_NAME = "reverb"
