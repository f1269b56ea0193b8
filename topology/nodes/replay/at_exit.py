"""Writers at the end of the interpreter.

What they hold is sent while the threads that take replies still run. Afterwards nobody would answer: a writer that is
flushed then, as by a `__del__`, must not wait.
"""

from __future__ import annotations

import atexit
import contextlib
import weakref
from typing import Protocol

from topology.clock import SYSTEM_CLOCK, Deadline

__all__ = ["is_over", "send_at_exit"]

_MOST_S = 2.0  # for all writers together


class Flushes(Protocol):
    """What holds items back."""

    def flush_at_exit(self, deadline: Deadline) -> None:
        """Blocks until all items are in their tables, or the deadline passed."""


_left: weakref.WeakSet[Flushes] = weakref.WeakSet()
_over = False


def send_at_exit(sender: Flushes) -> None:
    """Flushes it when the interpreter ends, if it is still there."""
    _left.add(sender)


def is_over() -> bool:
    """Whether the interpreter ends, and waiting for a reply is in vain."""
    return _over


@atexit.register
def _send() -> None:
    global _over
    deadline = Deadline(_MOST_S, SYSTEM_CLOCK)
    for sender in list(_left):
        with contextlib.suppress(Exception):  # its user has gone, and may have left its server before
            sender.flush_at_exit(deadline)
    _over = True
