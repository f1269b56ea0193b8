"""The command line of a program that has not read it as absl's flags when it launches; Launchpad reads it then."""

from __future__ import annotations

import logging
import sys

__all__ = ["parse_flags"]

_logger = logging.getLogger(__name__)


def parse_flags() -> None:
    """Reads `sys.argv` as absl's flags where absl is loaded and nobody has done so; what absl does not know is left.

    A command line that absl cannot read, as that of a test runner may be, is nobody's fault: a warning says so, and
    the flags stay unread.
    """
    flags = sys.modules.get("absl.flags")
    if flags is None or flags.FLAGS.is_parsed():
        return
    try:
        flags.FLAGS(sys.argv, known_only=True)
    except flags.Error as error:
        _logger.warning("the command line cannot be read as flags, and the launch goes without them: %s", error)
