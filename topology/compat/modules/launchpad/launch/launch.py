"""`launchpad.launch.launch`."""

from topology.compat.serialization import launch

__all__ = ["launch"]
