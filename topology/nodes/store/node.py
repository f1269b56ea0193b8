"""A memory as a node: experience within a program, without a server of others."""

from __future__ import annotations

from typing import final

from topology.address import Address
from topology.context import get_context
from topology.handle import Handle
from topology.node import Node, NodeDescription
from topology.nodes import courier
from topology.nodes.store.memory import MAX_BYTES, MAX_STEPS
from topology.nodes.store.memory_remote import MemoryHandlers, RemoteMemory
from topology.nodes.store.memory_service import MemoryService

__all__ = ["MemoryHandle", "MemoryNode"]


@final
class MemoryHandle(Handle[RemoteMemory]):
    """Stands for a memory; dereferences to a `MemoryBackend`."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def __repr__(self) -> str:
        return f"<MemoryHandle of {self._address!r}>"

    @property
    def address(self) -> Address:
        return self._address

    def dereference(self) -> RemoteMemory:
        return RemoteMemory(self._address.resolve(), secret=self._address.secret())


@final
class MemoryNode(Node[MemoryHandle]):
    """Keeps a memory until the program stops: what "local:" is within a process, between those of a program.

    What it keeps ends with its process: where experience must outlive that, use Redis.

    Args:
        max_steps: most steps it keeps.
        max_bytes: most bytes of columns it keeps, packed where their writers pack them.

    Raises:
        ValueError: a bound is below 1.
    """

    def __init__(self, *, max_steps: int = MAX_STEPS, max_bytes: int = MAX_BYTES) -> None:
        super().__init__()
        for what, bound in (("max_steps", max_steps), ("max_bytes", max_bytes)):
            if not isinstance(bound, int) or bound < 1:
                raise ValueError(f"{what} must be an integer of at least 1, got {bound!r}")
        self._bounds = max_steps, max_bytes
        self._address = Address("memory", needs_port=False)
        self.allocate_address(self._address)

    def __repr__(self) -> str:
        return f"<MemoryNode of {self._bounds[0]} steps, {self._bounds[1]} bytes>"

    def create_handle(self) -> MemoryHandle:
        return MemoryHandle(self._address)

    def describe(self) -> NodeDescription:
        return NodeDescription(arguments={"max_steps": self._bounds[0], "max_bytes": self._bounds[1]})

    def run(self) -> None:
        context = get_context()
        server = courier.Server(context.name, address=self._address.resolve(), secret=context.secret)
        courier.bind_object(server, MemoryHandlers(MemoryService(*self._bounds)))
        server.start()
        try:
            context.stop.wait()
        finally:
            server.stop()
