"""`launchpad.launch.launch`."""

from topology import launch

__all__ = ["launch"]
