"""Who reads the replies of a channel: its reader, or a caller that waits for one of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import final

from topology.nodes.courier.outbox import Outbox

__all__ = ["Seat"]

_NAP_S = 0.001
_QUIET_NAPS = 5  # without a caller that reads, before the reader takes its seat again
_SLEEP_S = 1.0  # while a caller reads, which wakes the reader when it leaves, unless it is killed at the wrong moment


@final
class Seat:
    """Held by the one thread that reads.

    The reader looks for `caller` before it waits for readiness, and goes to `stand_by` when there is one; a caller that
    comes rings the bell of the outbox.

    Attributes:
        lock: held by who reads. Reentrant, as unpickling a reply may run anything.
        caller: id of the thread, other than the reader, that reads or is about to; 0 for none.
        reader_seated: whether the reader holds the seat, or is about to.

    Args:
        out: the outbox of the channel.
        is_needed: whether the reader has to do what callers do not.
        tell: does what callers have left to the reader.
    """

    def __init__(self, out: Outbox, is_needed: Callable[[], bool], tell: Callable[[], None]) -> None:
        self.lock = threading.RLock()
        self.caller = 0
        self.reader_seated = False
        self._out = out
        self._is_needed = is_needed
        self._tell = tell
        self._drives = 0  # how often a caller has read
        self._standing_by = False
        self._asleep = False
        self._kick = threading.Event()  # for the reader when it stands by

    def attend(self) -> None:
        """Wakes the reader if it stands by, to see whether it is needed."""
        if self._standing_by:
            self._kick.set()

    # --- callers -------------------------------------------------------------------------------------------------

    def claim(self, me: int, *, unless: Callable[[], bool]) -> bool:
        """Makes this thread the caller that reads, if there is no other; it then has to acquire the lock."""
        with self._out.gate:
            if self.caller not in {0, me} or unless():
                return False
            self.caller = me
        if self.reader_seated:
            self._out.ring()
        return True

    def leave(self, me: int) -> None:
        """Ends what `claim` began. The lock has been released."""
        if self.caller != me:
            return
        self._drives += 1
        self.caller = 0
        if self._asleep or self._is_needed():
            self._kick.set()

    # --- the reader ----------------------------------------------------------------------------------------------

    def stand_by(self) -> None:
        """Waits, while callers read, until the reader is to do so again."""
        self._standing_by = True
        quiet, drives = 0, -1
        try:
            while quiet < _QUIET_NAPS:
                self._tell()
                if self.caller:
                    self._watch_caller(long=drives == self._drives)
                elif self._is_needed() or self._out.push(falls_asleep=False) != "done":
                    return
                else:
                    self._kick.wait(_NAP_S)
                self._kick.clear()
                quiet = quiet + 1 if drives == self._drives and not self.caller else 0
                drives = self._drives
        finally:
            self._standing_by = False

    def _watch_caller(self, *, long: bool) -> None:
        """Waits for the caller: briefly, as it will soon leave and maybe come again, or until it has left."""
        self._asleep = long
        if self.caller and not self._kick.wait(_SLEEP_S if long else _NAP_S) and long and self.lock.acquire(False):
            self.lock.release()
            self.caller = 0  # it was killed on its way
        self._asleep = False

    def forget(self) -> None:
        """In a forked child: there is no reader."""
        self._standing_by = False
