"""Waits for servers, and for room, that are longer than a moment: told once while they last, and when they are over."""

from __future__ import annotations

import logging
from typing import Final, final

from topology.clock import SYSTEM_CLOCK, Clock

__all__ = ["LongWait"]

_SILENT_S: Final = 1.0  # a moment is not worth a word


@final
class LongWait:
    """Begins when it is made. For one thread.

    Args:
        logger: gets the warnings.
        clock: of the wait.
    """

    def __init__(self, logger: logging.Logger, clock: Clock = SYSTEM_CLOCK) -> None:
        self._logger = logger
        self._clock = clock
        self._begin_s = clock.monotonic()
        self._is_told = False

    def goes_on(self, text: str) -> None:
        """What is waited for, and why."""
        if not self._is_told and self._clock.monotonic() - self._begin_s >= _SILENT_S:
            self._is_told = True
            self._logger.warning("%s", text)

    def is_over(self, text: str) -> None:
        """What has come."""
        if self._is_told:
            self._logger.warning("%s after %.1f s", text, self._clock.monotonic() - self._begin_s)
