"""Redis servers that are caches: no place for what must not be lost."""

from __future__ import annotations

from topology.errors import StoreDenied

__all__ = ["refuse_eviction"]


def refuse_eviction(policy: str, most_bytes: int) -> None:
    """Refuses a server that makes room by throwing away keys that have no end.

    Args:
        policy: its `maxmemory-policy`.
        most_bytes: its `maxmemory`; 0 for no bound.

    Raises:
        StoreDenied: it does; for as long as it is set so.
    """
    if policy.startswith("allkeys") and most_bytes:
        raise StoreDenied(
            f"this Redis server throws away what it keeps when its memory is full (maxmemory-policy {policy}): set "
            "maxmemory-policy to noeviction, and writers will wait"
        )
