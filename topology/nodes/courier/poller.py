"""Waiting for many sockets, changeable from any thread while one thread waits: epoll, or kqueue where that is."""

from __future__ import annotations

import select
import sys
from collections.abc import Callable

__all__ = ["READ", "WRITE", "Poller"]

READ = 1
WRITE = 4

if sys.platform == "linux":

    class Poller:
        """Level-triggered readiness. A hang-up counts as readable: the read then tells what happened."""

        def __init__(self) -> None:
            self._epoll = select.epoll()
            # Blocks for so many seconds, or for ever; gives pairs of descriptor and READ | WRITE.
            self.wait: Callable[[float | None], list[tuple[int, int]]] = self._epoll.poll

        def add(self, fd: int, interest: int) -> None:
            self._epoll.register(fd, interest)

        def change(self, fd: int, interest: int) -> None:
            self._epoll.modify(fd, interest)

        def remove(self, fd: int) -> None:
            self._epoll.unregister(fd)

        def close(self) -> None:
            self._epoll.close()

else:

    class Poller:
        """Level-triggered readiness. A hang-up counts as readable: the read then tells what happened."""

        def __init__(self) -> None:
            self._kqueue = select.kqueue()

        def add(self, fd: int, interest: int) -> None:
            self._set(fd, interest)

        def change(self, fd: int, interest: int) -> None:
            self._set(fd, interest)

        def _set(self, fd: int, interest: int) -> None:
            flags = {True: select.KQ_EV_ADD | select.KQ_EV_ENABLE, False: select.KQ_EV_ADD | select.KQ_EV_DISABLE}
            self._kqueue.control(
                [
                    select.kevent(fd, select.KQ_FILTER_READ, flags[bool(interest & READ)]),
                    select.kevent(fd, select.KQ_FILTER_WRITE, flags[bool(interest & WRITE)]),
                ],
                0,
            )

        def remove(self, fd: int) -> None:
            self._kqueue.control(
                [
                    select.kevent(fd, select.KQ_FILTER_READ, select.KQ_EV_DELETE),
                    select.kevent(fd, select.KQ_FILTER_WRITE, select.KQ_EV_DELETE),
                ],
                0,
            )

        def wait(self, timeout_s: float | None) -> list[tuple[int, int]]:
            """Blocks; pairs of descriptor and READ | WRITE."""
            events = self._kqueue.control(None, 64, timeout_s)
            return [(e.ident, READ if e.filter == select.KQ_FILTER_READ else WRITE) for e in events]

        def close(self) -> None:
            self._kqueue.close()
