"""`launchpad.nodes.base`."""

from typing import TypeVar

from topology.handle import Handle
from topology.handle import find_handles as _find_handles
from topology.node import Node

__all__ = ["ClientType", "Handle", "HandleType", "Node", "extract_handles"]

ClientType = TypeVar("ClientType")
HandleType = TypeVar("HandleType", bound=Handle)


def extract_handles(obj: object, handles: list[Handle], visited: set[int] | None = None) -> None:
    """Appends every handle nested in `obj` to `handles`."""
    del visited
    handles.extend(handle for _, handle in _find_handles(obj))
