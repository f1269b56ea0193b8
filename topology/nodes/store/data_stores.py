"""Which module opens which data store: by the scheme of its url."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.metadata import entry_points

from topology.nodes.store.policies import DataStore
from topology.nodes.store.redis_urls import check_redis_url

__all__ = ["GROUP", "find_data_store", "takes_patience"]

GROUP = "topology.data_stores"

_REDIS = {"redis", "rediss", "unix"}


def find_data_store(url: str) -> Callable[..., DataStore]:
    """What opens `url`: ours first, then entry points, then fsspec.

    Raises:
        ValueError: nothing here knows its scheme, or it cannot be meant.
        ImportError: fsspec, which may know it, is not installed.
    """
    scheme, separator, _ = url.partition("://")
    if not separator or scheme == "file":
        from topology.nodes.store.data_directory import open_directory_store

        return open_directory_store
    if scheme in _REDIS:
        from topology.nodes.store.data_redis import open_redis_store

        check_redis_url(url)
        return open_redis_store
    for point in entry_points(group=GROUP, name=scheme):
        opener: Callable[..., DataStore] = point.load()
        return opener
    from topology.nodes.store.data_object import known_protocols, open_object_store

    if scheme not in known_protocols():
        raise ValueError(
            f"no data store opens {scheme}://: give a directory, redis://HOST:PORT/DB, s3://BUCKET/PREFIX, another "
            f"file system of fsspec, or install a package with an entry point {scheme!r} in the group {GROUP!r}"
        )
    return open_object_store


def takes_patience(opener: Callable[..., object]) -> bool:
    """Whether what it opens can be told how long to wait for its server."""
    return "patience_s" in inspect.signature(opener).parameters
