"""URLs of Redis servers that cannot be meant, told before anybody waits for such a server."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

__all__ = ["check_redis_url", "make_connection"]


def make_connection(pool: Any) -> Any:
    """One of redis-py's, not yet connected.

    Args:
        pool: made of a URL.

    Raises:
        ValueError: the URL has an option that there is not.
    """
    try:
        return pool.make_connection()
    except TypeError as error:
        raise ValueError(
            f"after the ? in the URL of the Redis server is something that it does not take: {error}"
        ) from None


def check_redis_url(url: str) -> None:
    """Whether port and database are numbers. Says nothing of `url` itself, which may hold a password.

    Raises:
        ValueError: they are not.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss"):
        return
    form = f"as in {parts.scheme}://:PASSWORD@HOST:6379/0"
    try:
        _ = parts.port
    except ValueError:
        raise ValueError(
            f"the port in the URL is no number from 0 to 65535: give one, {form}; in a password, write /, @, :, # and "
            "? as %2F, %40, %3A, %23 and %3F"
        ) from None
    database = parts.path.strip("/")
    if database and not (database.isascii() and database.isdigit()):
        raise ValueError(f"what follows the host in the URL is the number of a database, not {database!r}: {form}")
