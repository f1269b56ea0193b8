"""`launchpad.nodes.base`."""

from topology.handle import Handle
from topology.handle import find_handles as _find_handles
from topology.node import Node

__all__ = ["Handle", "Node", "extract_handles"]


def extract_handles(obj: object, handles: list[Handle], visited: set[int] | None = None) -> None:
    """Appends every handle nested in `obj` to `handles`."""
    del visited
    handles.extend(handle for _, handle in _find_handles(obj))
