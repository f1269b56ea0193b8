"""`launchpad.nodes.python`."""

from topology.compat.instead import attribute_of

__getattr__ = attribute_of(__name__)
