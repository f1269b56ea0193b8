"""Ends a thread from outside, when its code has no other way to hear of a stop."""

from __future__ import annotations

import ctypes
import threading

__all__ = ["interrupt_thread"]


def interrupt_thread(thread: threading.Thread, error: type[BaseException] = SystemExit) -> bool:
    """Raises `error` in `thread` at its next bytecode; returns whether the thread was there.

    Python only: a thread inside a C call (a sleep, a blocking read) gets it when that call returns.
    """
    ident = thread.ident
    if ident is None or not thread.is_alive():
        return False
    count: int = ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(error))
    return count > 0
