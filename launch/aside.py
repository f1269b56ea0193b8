"""Threads of the launcher's own: for calls that must not hold up whoever asks for them, and for what runs beside."""

from __future__ import annotations

import threading
from collections.abc import Callable

from topology.errors import LaunchError

__all__ = ["call_aside", "start_thread"]


def call_aside(function: Callable[[], None], name: str) -> None:
    """Calls `function` in a thread of its own, called `name`: for stop handlers, which are code of users and may block.

    Where no thread can be started any more (Python 3.12.0 and 3.12.1, once the script has ended) it is called here.
    """
    try:
        threading.Thread(target=function, name=name, daemon=True).start()
    except RuntimeError:
        function()


def start_thread(thread: threading.Thread) -> None:
    """Starts a thread that a launch cannot do without. Raises LaunchError when the system refuses it."""
    try:
        thread.start()
    except RuntimeError as error:
        raise LaunchError(f"The system refused the thread {thread.name!r}: {error}. Nothing was started.") from error
