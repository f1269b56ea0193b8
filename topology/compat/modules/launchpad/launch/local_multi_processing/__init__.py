"""`launchpad.launch.local_multi_processing`."""

from topology.compat.instead import attribute_of

__getattr__ = attribute_of(__name__)
