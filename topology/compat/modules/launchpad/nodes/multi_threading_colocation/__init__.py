"""`launchpad.nodes.multi_threading_colocation`."""

from topology.compat.instead import attribute_of

__getattr__ = attribute_of(__name__)
