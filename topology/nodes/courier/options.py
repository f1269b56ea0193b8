"""Settings of clients and servers. They validate themselves and refuse."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

__all__ = ["ClientOptions", "ServerOptions", "seconds"]


_LONGEST_S = 86_400.0 * 20  # sockets and pollers count milliseconds in 31 bits


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """Settings of a client.

    Attributes:
        call_timeout_s: seconds a call may take, connecting included; None for no limit.
        wait_for_ready: whether a call waits for a server that is not there (yet); otherwise it fails at once.
        secret: the run's secret, proven on TCP connections.
        max_message_bytes: largest message sent or accepted.
        max_in_flight: futures a client may have under way; further calls block until one is done.
        max_in_flight_bytes: bytes of arguments of futures under way; a single larger call goes alone.
    """

    call_timeout_s: float | None = None
    wait_for_ready: bool = True
    secret: bytes = b""
    max_message_bytes: int = 8 << 30
    max_in_flight: int = 1024
    max_in_flight_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        for name in ("max_message_bytes", "max_in_flight", "max_in_flight_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")


def seconds(timeout: float | datetime.timedelta | None) -> float | None:
    """A timeout as seconds; None, 0, timedelta(0) and more than 20 days mean that there is none.

    Raises:
        ValueError: it is negative.
    """
    value = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else timeout
    if value is not None and not value >= 0:
        raise ValueError(f"call_timeout={timeout!r}: must be positive seconds, or None or 0 for no limit")
    return value if value and value < _LONGEST_S else None


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Limits of a server.

    Attributes:
        max_message_bytes: largest request accepted, and largest result sent.
        max_in_flight: requests under way of one connection above which it is not read from.
        max_in_flight_bytes: the same in bytes, of requests under way and replies not yet taken by the client.
    """

    max_message_bytes: int = 8 << 30
    max_in_flight: int = 1024
    max_in_flight_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        for name in ("max_message_bytes", "max_in_flight", "max_in_flight_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
