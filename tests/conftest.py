"""A guard around every test: whoever leaves a child process or a non-daemon thread behind fails."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

GRACE_S = 5.0


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    threads, children = set(threading.enumerate()), child_processes()
    yield
    left = [f"thread {thread.name!r}" for thread in surviving_threads(threads)]
    left += [f"process {pid}: {command(pid)}" for pid in sorted(child_processes() - children) if not ends(pid)]
    assert not left, f"left behind, {GRACE_S:g} s after the test:\n" + "\n".join(left)


def surviving_threads(before: set[threading.Thread]) -> Iterator[threading.Thread]:
    for thread in threading.enumerate():
        if thread not in before and not thread.daemon:
            thread.join(GRACE_S)
            if thread.is_alive():
                yield thread


def child_processes() -> set[int]:
    """Linux only; elsewhere there are none to see."""
    found: set[int] = set()
    tasks = Path(f"/proc/{os.getpid()}/task")
    for task in tasks.iterdir() if tasks.is_dir() else ():
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            found |= set(map(int, (task / "children").read_text().split()))
    return {pid for pid in found if "multiprocessing.resource_tracker" not in command(pid)}


def command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def ends(pid: int) -> bool:
    """Whether the process ends within the grace; one that nobody waited for has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], GRACE_S)[0])
    finally:
        os.close(descriptor)
