"""`launchpad.nodes.multi_processing_colocation.node`."""

from typing import Any

from topology import MultiProcessingColocation

__all__ = ["HandleType", "MultiProcessingColocation"]

HandleType = Any
