"""The original's server: ours, on a port."""

from __future__ import annotations

from typing import Any, final

from topology.context import try_get_context
from topology.nodes.courier import Server as OurServer

__all__ = ["Server"]


@final
class Server(OurServer):
    """A courier server, which serves on TCP: on a free port unless one is given.

    Only this machine can reach it, unless it is given an `address` that others can reach, and a `secret`. One that a
    node makes serves the nodes and the script of its program only: by default it has the program's secret.

    Args:
        name: for messages.
        port: of localhost.
        thread_pool_size: handlers that may run at a time; None is 16, growing when all are blocked.
        options: of our server.
    """

    def __init__(
        self, name: str | None = None, port: int | None = None, thread_pool_size: int | None = None, **options: Any
    ) -> None:
        if options.get("address") is None:
            options["port"] = port or 0
        context = try_get_context()
        options.setdefault("secret", b"" if context is None else context.secret)
        super().__init__(name or "", thread_pool_size=thread_pool_size, **options)
