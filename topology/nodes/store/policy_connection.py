"""A connection that several threads use, that is made when it is needed, and closed when the last of them is done."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar, final

from topology.errors import StoreClosed

__all__ = ["Connection"]

_C = TypeVar("_C")


@final
class Connection(Generic[_C]):
    """Thread-safe. After a fork the child makes its own.

    Args:
        connect: makes it; may raise.
        disconnect: closes it.
        where: for the error's text.
    """

    def __init__(self, connect: Callable[[], _C], disconnect: Callable[[_C], None], where: str) -> None:
        self._connect = connect
        self._disconnect = disconnect
        self._where = where
        self._lock = threading.Lock()
        self._made: tuple[int, _C] | None = None
        self._users = 0
        self._closed = False

    @contextlib.contextmanager
    def use(self) -> Iterator[_C]:
        """The connection, which stays open within the block.

        Raises:
            StoreClosed: `close` was called.
        """
        with self._lock:
            if self._closed:
                raise StoreClosed(f"the data store {self._where} is closed")
            if self._made is None or self._made[0] != os.getpid():
                self._made, self._users = (os.getpid(), self._connect()), 0
            connection = self._made[1]
            self._users += 1
        try:
            yield connection
        finally:
            with self._lock:
                self._users -= 1
                doomed = self._take_unused()
            self._end(doomed)

    def close(self) -> None:
        """No new use; those under way end as they would have. Never blocks. Idempotent."""
        with self._lock:
            self._closed = True
            doomed = self._take_unused()
        self._end(doomed)

    def _take_unused(self) -> tuple[int, _C] | None:
        if not self._closed or self._users:
            return None
        made, self._made = self._made, None
        return made

    def _end(self, made: tuple[int, _C] | None) -> None:
        if made is not None and made[0] == os.getpid():
            self._disconnect(made[1])
