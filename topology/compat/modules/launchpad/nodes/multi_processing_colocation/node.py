"""`launchpad.nodes.multi_processing_colocation.node`."""

from topology import MultiProcessingColocation

__all__ = ["MultiProcessingColocation"]
