"""A clean end for nodes whose services may hear of the stop before they do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from topology.context import StopToken
from topology.errors import CourierError, ProgramStopped, ReplayError

__all__ = ["until_stopped"]

_GRACE_S = 5.0


@contextlib.contextmanager
def until_stopped(stop: StopToken, *, grace_s: float = _GRACE_S) -> Iterator[None]:
    """Ends the block quietly when it fails because the program stops.

    A stop reaches the nodes one after the other, so that a call may find its service gone a moment before this node is
    told. Such an error is raised only if no stop follows within `grace_s` seconds.
    """
    try:
        yield
    except ProgramStopped:
        return
    except (CourierError, ReplayError):
        if not stop.wait(grace_s):
            raise
