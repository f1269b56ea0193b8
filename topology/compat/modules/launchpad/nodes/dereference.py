"""`launchpad.nodes.dereference`."""

from topology.handle import Deferred, Handle
from topology.handle import dereference as _dereference

__all__ = ["Deferred", "Dereferenceable", "maybe_dereference"]

Dereferenceable = Handle | Deferred


def maybe_dereference(obj: object) -> object:
    """The client of a handle, the value of a deferred call, or `obj` itself."""
    return _dereference(obj) if isinstance(obj, Dereferenceable) else obj
