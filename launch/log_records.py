"""Finds what deserves attention in the log of a node: one entry for a record, however many lines it has."""

from __future__ import annotations

import re
from typing import final

__all__ = ["Finding", "LogRecords"]

_NOTABLE = re.compile(
    r"\b(WARNING|WARN|ERROR|CRITICAL|FATAL)\b|^[WEF]\d{4} "  # Python's logging, absl's
    r"|^[\w.]*(Error|Exception|Warning): "
)
_TRACEBACK = "Traceback (most recent "
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


@final
class Finding:
    """A record that deserves attention. `line` says it best: what a traceback ends with, or what was `logged`."""

    def __init__(self, line: str, *, logged: bool) -> None:
        self.line = line
        self.logged = logged


@final
class LogRecords:
    """Reads one log line by line.

    A traceback is one record with all exceptions that it chains, and with the logged line that it follows.
    """

    def __init__(self) -> None:
        self._last: Finding | None = None
        self._joins = False  # a traceback that comes now belongs to the last record
        self._bare = False  # the last record began with its traceback: nobody logged a line
        self._inside = False

    def feed(self, line: str) -> Finding | None:
        """The record that begins with this line; None when none does."""
        if self._inside:
            self._go_on(line)
        elif line.startswith(_TRACEBACK):
            self._inside = True
            if not self._joins:
                return self._begin(line, bare=True)
        elif line.startswith(_CHAINED):
            self._joins = self._last is not None
        elif _NOTABLE.search(line):
            self._joins = True
            return self._begin(line, bare=False)
        elif line:
            self._joins = False
        return None

    def _begin(self, line: str, *, bare: bool) -> Finding:
        self._bare = bare
        self._last = Finding(line, logged=not bare)
        return self._last

    def _go_on(self, line: str) -> None:
        if not line or line[0].isspace():
            return
        self._inside = self._joins = False  # this line is the exception
        if self._bare and self._last is not None:
            self._last.line = line
