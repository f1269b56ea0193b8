"""The way to a `MemoryService`: within its process, or over the courier from another one."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from topology.clock import Deadline
from topology.context import try_get_context
from topology.errors import ConnectionBroken, ProgramStopped, StoreClosed, StoreDeadlineExceeded, StoreFull
from topology.nodes.store.experience import Experience
from topology.nodes.store.memory import MemoryBackend, MemoryStats
from topology.nodes.store.memory_offers import Ticket
from topology.nodes.store.memory_service import MemoryService
from topology.nodes.store.parcel import Parcel
from topology.nodes.store.shelf import Wish

__all__ = ["DirectLink", "Link", "ServedMemory"]


class Link(Protocol):
    """How methods of the service are called."""

    def call(self, method: str, *args: Any) -> Any:
        """Calls a method that returns at once."""

    def submit(self, method: str, *args: Any) -> Future[Any]:
        """Calls a method that returns a future."""

    def wait(self, future: Future[Any], deadline: Deadline) -> Any:
        """The result of `submit`. Raises TimeoutError when the deadline passes first; the future is still under way."""

    def close(self) -> None:
        """Ends every wait with `StoreClosed`."""


class DirectLink:
    """To a service of this process."""

    def __init__(self, service: MemoryService) -> None:
        self._service = service
        self._waiting: set[Future[Any]] = set()
        self._lock = threading.Lock()

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self._service, method)(*args)

    def submit(self, method: str, *args: Any) -> Future[Any]:
        future: Future[Any] = getattr(self._service, method)(*args)
        return future

    def wait(self, future: Future[Any], deadline: Deadline) -> Any:
        if future.done():
            return future.result()
        with self._lock:
            self._waiting.add(future)
        context = try_get_context()
        # What the stop and `close` cancel wakes with CancelledError.
        forget = context.stop.subscribe(future.cancel) if context is not None else None  # type: ignore[arg-type]
        try:
            return future.result(deadline.remaining())
        finally:
            with self._lock:
                self._waiting.discard(future)
            if forget is not None:
                forget()

    def close(self) -> None:
        with self._lock:
            waiting = list(self._waiting)
        for future in waiting:
            future.cancel()


class ServedMemory(MemoryBackend):
    """A handle of a memory that a `MemoryService` keeps.

    Args:
        link: to it.
        reopen: a function and its arguments that make another such handle, elsewhere.
        copy: whether the arrays of writers must be copied, because nothing else does.
    """

    def __init__(self, link: Link, reopen: tuple[Callable[..., MemoryBackend], tuple[Any, ...]], *, copy: bool) -> None:
        self._link = link
        self._reopen = reopen
        self._copy = copy
        self._writer = secrets.token_hex(8)
        self._number = 0
        self._lock = threading.Lock()
        self._reader: int | None = None
        self._closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reopen

    def recover(self) -> None:
        self._check_open()
        with self._lock:
            self._reader = self._link.call("attach")

    def stats(self) -> MemoryStats:
        self._check_open()
        stats: MemoryStats = self._link.call("stats")
        return stats

    def delete(self) -> None:
        self._check_open()
        self._link.call("clear")

    def close(self) -> None:
        self._closed = True
        self._link.close()

    def _store(self, parcel: Parcel, deadline: Deadline) -> str:
        self._check_open()
        if self._copy:
            parcel = parcel._replace(columns={name: array.copy() for name, array in parcel.columns.items()})
        ticket = self._next_ticket()
        try:
            stored: str = self._wait(self._link.submit("store", ticket, parcel), deadline)
        except TimeoutError:
            taken: str | None = self._link.call("withdraw", ticket)
            if taken is not None:
                return taken
            raise StoreFull(
                f"no room for {parcel.steps} steps came in the time allowed, and they were not stored: "
                f"{self._link.call('explain')}"
            ) from None
        return stored

    def _next_ticket(self) -> Ticket:
        # Of its own for every call: threads share the handle, processes that were forked have a copy of it, and the
        # service remembers one number a writer.
        with self._lock:
            self._number += 1
            return Ticket(f"{self._writer}-{os.getpid()}-{threading.get_ident()}", self._number)

    def _fetch(self, wish: Wish, deadline: Deadline) -> list[Experience]:
        reader = self._attached()
        while True:
            future = self._link.submit("wait", reader, wish)
            try:
                self._wait(future, deadline)
            except TimeoutError:
                future.cancel()
                raise StoreDeadlineExceeded(
                    f"{wish} did not come in the time allowed: {self._link.call('explain')}"
                ) from None
            taken = self._taken("take", reader, wish)
            if taken is not None:
                return taken

    def _fetch_available(self, max_steps: int | None) -> list[Experience]:
        return self._taken("take_available", self._attached(), max_steps) or []

    def _taken(self, method: str, *args: Any) -> list[Experience] | None:
        try:
            taken: list[Experience] | None = self._link.call(method, *args)
        except ConnectionBroken:
            with self._lock:
                self._reader = None  # what was lost on the way is to be delivered again
            raise
        return taken

    def _acknowledge(self, ids: list[str]) -> None:
        self._attached()
        self._link.call("acknowledge", ids)

    def _attached(self) -> int:
        self._check_open()
        with self._lock:
            if self._reader is None:
                self._reader = self._link.call("attach")
            return self._reader

    def _wait(self, future: Future[Any], deadline: Deadline) -> Any:
        try:
            return self._link.wait(future, deadline)
        except BaseException:
            if future.cancelled():
                self._check_open()
                raise ProgramStopped("the program was asked to stop while this call waited") from None
            raise

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("this handle of the memory is closed; open another")
