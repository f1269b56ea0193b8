"""`launchpad.launch.serialization`."""

from topology.compat.serialization import (
    check_nodes_are_serializable,
    enable_lru_cache_pickling_once,
    serialize_functions,
)

__all__ = ["check_nodes_are_serializable", "enable_lru_cache_pickling_once", "serialize_functions"]
