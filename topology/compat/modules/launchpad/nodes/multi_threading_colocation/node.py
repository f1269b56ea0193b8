"""`launchpad.nodes.multi_threading_colocation.node`."""

from typing import Any

from topology import MultiThreadingColocation

__all__ = ["HandleType", "MultiThreadingColocation"]

HandleType = Any
