"""Services that go away: for a moment, since they are started again, or because the program stops."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

from topology.context import StopToken
from topology.errors import ConnectionBroken, CourierError, ProgramStopped, ReplayError

__all__ = ["follow", "until_stopped"]

_GRACE_S = 5.0
_PAUSE_S = 0.2

_logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


def follow(call: Callable[[], ResultT], stop: StopToken | None, *, what: str) -> ResultT:
    """The result of a call that does no harm when it is made twice, also when its service dies meanwhile.

    A service that dies breaks the call that it was answering; the next one waits for its successor. If nobody starts
    it again, its failure stops the program. Blocks until there is a result, or until the stop.

    Args:
        call: of a courier client.
        stop: of the program; None outside of one, where nobody starts anything again.
        what: is called, for the log.

    Raises:
        ProgramStopped: the program stops.
        Exception: what the call raised; `ConnectionBroken` only where `stop` is None.
    """
    while True:
        try:
            return call()
        except ConnectionBroken as error:
            if stop is None:
                raise
            broken = error
        if stop.wait(_PAUSE_S):
            raise ProgramStopped(f"the program was stopped while {what} was away") from broken
        _logger.warning("%s went away and is asked again: %s", what, broken)


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
