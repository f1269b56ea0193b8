"""What Linux offers for processes and Python does not. Elsewhere each does nothing, or a little less."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = [
    "adopt_orphans",
    "children",
    "die_with_parent",
    "open_process",
    "set_process_name",
    "wait_for_any_child",
]

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Has the system kill this process when its parent dies, also if the parent died just now."""
    if _libc is not None:
        parent = os.getppid()
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent or parent == 1:
            os._exit(1)


def set_process_name(name: str) -> None:
    """What `top` and `ps -o comm` show; at most 15 bytes of it."""
    if _libc is not None:
        _libc.prctl(_PR_SET_NAME, name.encode()[:15])


def adopt_orphans() -> None:
    """Grandchildren whose parent dies become children of this process."""
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children() -> list[int]:
    """Process ids of this process's children."""
    with contextlib.suppress(OSError):
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    return []


def open_process(pid: int) -> int | None:
    """A file that becomes readable when the process ends; None where there is no such thing, or no such process."""
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            return os.pidfd_open(pid)
    return None


def wait_for_any_child(before: Callable[[int], None]) -> tuple[int, int] | None:
    """Process id and wait status of a child that has ended; None when none has.

    Args:
        before: called with the process id while it cannot have been given to another process yet.
    """
    try:
        if hasattr(os, "waitid"):
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return None
            before(found.si_pid)
            return os.waitpid(found.si_pid, 0)
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    if pid == 0:
        return None
    before(pid)
    return pid, status
