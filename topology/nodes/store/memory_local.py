"""The memory backend "local:": in this process, by name."""

from __future__ import annotations

import os
import threading
from typing import final

from topology.errors import StoreUnavailable
from topology.nodes.store.memory import MemoryBackend
from topology.nodes.store.memory_served import DirectLink, ServedMemory
from topology.nodes.store.memory_service import MemoryService

__all__ = ["LocalMemory", "open_local"]

_lock = threading.Lock()
_services: dict[tuple[int, str], MemoryService] = {}  # by process, of which a fork has a copy of the others'
_handles: dict[tuple[int, str], int] = {}


def open_local(url: str, *, name: str, max_steps: int, max_bytes: int) -> LocalMemory:
    """See `open_memory_backend`."""
    if url != "local:":
        raise ValueError(f"the memory of this process is 'local:', and nothing behind it; got {url!r}")
    return LocalMemory(name, max_steps, max_bytes)


@final
class LocalMemory(ServedMemory):
    """A handle of a memory of this process. It can be pickled for this process only.

    The memory lives while there are handles, and while there is something in it.

    Args:
        name: of the memory.
        max_steps: most steps it keeps.
        max_bytes: most bytes of columns it keeps.

    Raises:
        ValueError: it is open with other bounds.
    """

    def __init__(self, name: str, max_steps: int, max_bytes: int) -> None:
        self._key = os.getpid(), name
        with _lock:
            service = _services.get(self._key)
            if service is None:
                service = _services[self._key] = MemoryService(max_steps, max_bytes)
            elif service.bounds != (max_steps, max_bytes):
                raise ValueError(
                    f"memory {name!r} is open with max_steps={service.bounds[0]} and max_bytes={service.bounds[1]}, "
                    f"not with {max_steps} and {max_bytes}"
                )
            _handles[self._key] = _handles.get(self._key, 0) + 1
        self._service = service
        super().__init__(DirectLink(service), (_open_again, (os.getpid(), name, max_steps, max_bytes)), copy=True)

    def close(self) -> None:
        with _lock:
            if not self._closed:
                _handles[self._key] -= 1
            super().close()
            if not _handles.get(self._key) and self._service.is_empty():
                _services.pop(self._key, None)

    def _check_open(self) -> None:
        super()._check_open()
        _check_process(*self._key)

    def __repr__(self) -> str:
        return f"<LocalMemory {self._key[1]!r}>"


def _open_again(process: int, name: str, max_steps: int, max_bytes: int) -> MemoryBackend:
    _check_process(process, name)
    return LocalMemory(name, max_steps, max_bytes)


def _check_process(process: int, name: str) -> None:
    if process != os.getpid():
        raise StoreUnavailable(
            f"memory {name!r} is local to process {process}, and this is process {os.getpid()}: between processes use "
            "a MemoryNode, the replay service or Redis"
        )
