"""Gives a node the terminal of the script, so that a debugger in the node's process can be talked to.

Nodes that run as processes have no standard input, and what they print goes through the launcher line by line. With
`LP_DEBUG=learner` in the environment of the script, the nodes of that group have the terminal themselves: a
`breakpoint()` stops there and answers, `input()` asks, and what they print is neither marked nor kept in a log.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys

__all__ = ["DEBUG", "attach_terminal", "terminal_for"]

DEBUG = "LP_DEBUG"
"""Names groups ("learner") and nodes ("actor/3"), with commas between them; "all" is every node."""

_logger = logging.getLogger(__name__)


def terminal_for(label: str, name: str) -> str | None:
    """The terminal of this process, if that is to be the node's own; None for all others.

    Args:
        label: group of the node.
        name: the node as `label/index`.
    """
    wanted = {part.strip() for part in os.environ.get(DEBUG, "").split(",")}
    if not wanted & {label, name, "all"}:
        return None
    for descriptor in (0, 1, 2):
        with contextlib.suppress(OSError):
            return os.ttyname(descriptor)
    _logger.warning("%s=%s: %s gets no terminal, as this process has none", DEBUG, os.environ[DEBUG], name)
    return None


def attach_terminal(path: str) -> None:
    """Makes a terminal the standard files of this process."""
    try:
        terminal = os.open(path, os.O_RDWR | os.O_NOCTTY)
    except OSError as error:
        _logger.warning("the terminal %s of the script cannot be opened: %s", path, error)
        return
    for descriptor in (0, 1, 2):
        os.dup2(terminal, descriptor)
    os.close(terminal)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115 - as long as the process
