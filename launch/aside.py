"""Calls that must not hold up whoever asks for them."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["call_aside"]


def call_aside(function: Callable[[], None], name: str) -> None:
    """Calls `function` in a thread of its own, called `name`: for stop handlers, which are code of users and may block.

    Where no thread can be started any more (Python 3.12.0 and 3.12.1, once the script has ended) it is called here.
    """
    try:
        threading.Thread(target=function, name=name, daemon=True).start()
    except RuntimeError:
        function()
