"""Finds what a piece of code left behind: threads, child processes, sockets, mapped shared memory."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import select
import socket
import stat
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

from topology.clock import Deadline

__all__ = ["no_leaks", "stack_of"]

# Servants of the multiprocessing module, which live as long as the interpreter.
_SERVANTS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
_EXEC_S = 0.1  # a process that was just started has no command line yet


@contextlib.contextmanager
def no_leaks(grace_s: float = 5.0, *, allow_threads: Iterable[str] = ()) -> Iterator[None]:
    """Fails when the block left something behind, and says where it is. Does nothing when the block itself raised.

    What the block has already told to end may take its time, at most `grace_s` seconds. A process that has ended but
    that nobody waited for does not count. Child processes are found on Linux;
    elsewhere only those of `multiprocessing`.

    Args:
        grace_s: in seconds.
        allow_threads: beginnings of names of threads that may stay, e.g. those of a library's global pool.

    Raises:
        AssertionError: with the stack of every thread and the command line of every process left.
    """
    before = _Possessions.now()
    yield
    problems = list(_leaks(before, Deadline(grace_s), tuple(allow_threads)))
    if problems:
        raise AssertionError(f"left behind, {grace_s:g} s after the end:\n" + "\n".join(problems))


def stack_of(thread: threading.Thread) -> str:
    """Where a thread is now, as text; "" when it has ended."""
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - documented, in spite of its name
    return "".join(traceback.format_stack(frame)) if frame is not None else ""


@final
@dataclass(frozen=True)
class _Possessions:
    threads: frozenset[threading.Thread]
    children: frozenset[int]
    sockets: frozenset[tuple[int, int]]  # file descriptor and inode
    shared_memory: frozenset[str]

    @classmethod
    def now(cls) -> _Possessions:
        return cls(frozenset(threading.enumerate()), _children(), _sockets(), _shared_memory())


def _leaks(before: _Possessions, deadline: Deadline, allowed: tuple[str, ...]) -> Iterator[str]:
    if _Possessions.now() != before:
        gc.collect()  # what is garbage already ends its threads and sockets when it is collected
    for thread in threading.enumerate():
        if isinstance(thread, threading._DummyThread):  # noqa: SLF001 - of a library, not of Python: nothing to wait for
            continue
        if thread not in before.threads and not (allowed and thread.name.startswith(allowed)):
            thread.join(deadline.remaining())
            if thread.is_alive():
                yield f"thread {thread.name!r}{' (daemon)' if thread.daemon else ''}, now at:\n{stack_of(thread)}"
    for pid in sorted(_children() - before.children):
        _await_end(pid, Deadline(_EXEC_S))
        if not _is_servant(pid):
            _await_end(pid, deadline)
        if _is_running(pid) and not _is_servant(pid):
            yield f"process {pid}: {_command(pid)}"
    if sockets := sorted(_sockets() - before.sockets):
        # Looked for only now: in a large program, walking all objects takes longer than most tests.
        objects = {sock.fileno(): sock for sock in gc.get_objects() if isinstance(sock, socket.socket)}
        yield from (f"socket, file descriptor {fd}: {objects.get(fd)!r}" for fd, _ in sockets)
    yield from (f"shared memory {path}" for path in sorted(_shared_memory() - before.shared_memory))


def _children() -> frozenset[int]:
    tasks = Path(f"/proc/{os.getpid()}/task")
    if not tasks.is_dir():
        return frozenset(child.pid for child in multiprocessing.active_children() if child.pid)
    pids: set[int] = set()
    for task in tasks.iterdir():
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            pids |= set(map(int, (task / "children").read_text().split()))
    return frozenset(pid for pid in pids if not _is_servant(pid))


def _is_servant(pid: int) -> bool:
    command = _command(pid)
    return any(servant in command for servant in _SERVANTS)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "(no command line)"


def _await_end(pid: int, deadline: Deadline) -> None:
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                poll = select.poll()
                poll.register(descriptor, select.POLLIN)
                poll.poll((deadline.remaining() or 0.0) * 1000)
            finally:
                os.close(descriptor)


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return any(child.pid == pid for child in multiprocessing.active_children())
    except ProcessLookupError:
        return False
    return state not in "ZX"


def _sockets() -> frozenset[tuple[int, int]]:
    found = set()
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself is closed by now
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found.add((int(name), status.st_ino))
    return frozenset(found)


def _shared_memory() -> frozenset[str]:
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(line.split(maxsplit=5)[5] for line in lines if "/dev/shm/" in line)
