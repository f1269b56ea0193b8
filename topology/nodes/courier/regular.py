"""Which connections send call after call."""

from __future__ import annotations

from time import monotonic
from typing import final

__all__ = ["Regular"]

_PAUSE_S = 0.001
_FIRST_STREAK = 16
_LAST_STREAK = 1024


@final
class Regular:
    """Tells whether a connection deserves a thread: it has sent again and again without a pause.

    Each stay that was not worth its start doubles what the next one takes.
    """

    __slots__ = ("_last_s", "_needed", "_streak")

    def __init__(self) -> None:
        self._last_s = 0.0
        self._needed = _FIRST_STREAK
        self._streak = 0

    def sent(self) -> None:
        """Something came in just now."""
        now = monotonic()
        self._streak = self._streak + 1 if now - self._last_s < _PAUSE_S else 0
        self._last_s = now

    @property
    def proven(self) -> bool:
        return self._streak >= self._needed

    def stayed(self, reads: int) -> None:
        """A stay has ended after so many reads."""
        self._streak = 0
        self._needed = _FIRST_STREAK if reads >= self._needed else min(2 * self._needed, _LAST_STREAK)
