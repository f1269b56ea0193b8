"""Telling the end of the program from the failure of a server.

When a program stops, its replay server may hear of it, and fail the calls that wait, moments before the nodes that
called do. What such a node sees must not look like a fault of its own.
"""

from __future__ import annotations

import threading

from topology.context import try_get_context
from topology.errors import ConnectionBroken, ProgramStopped
from topology.nodes.replay.messages import ServerStopped

__all__ = ["GRACE_S", "reason_of"]

GRACE_S = 1.0
"""How long, in seconds, the news of the stop may take from one node to another."""


def reason_of(error: BaseException) -> BaseException:
    """What to raise for `error`: `ProgramStopped` when the server went away because the program stops.

    Blocks, at most `GRACE_S`, when the server went away and the current node has not been told to stop.
    """
    context = try_get_context()
    if context is None or not isinstance(error, ServerStopped | ConnectionBroken):
        return error
    stopped = threading.Event()
    forget = context.stop.subscribe(stopped.set)
    if not stopped.wait(GRACE_S):
        forget()
        return error
    reason = ProgramStopped("the program stopped, and its replay server before this node")
    reason.__cause__ = error
    return reason
