"""A memory that another process keeps, reached over the courier."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, final

from topology.clock import Deadline
from topology.nodes import courier
from topology.nodes.store.courier_errors import told
from topology.nodes.store.experience import Experience
from topology.nodes.store.memory import MemoryStats
from topology.nodes.store.memory_served import ServedMemory
from topology.nodes.store.memory_service import MemoryService, Ticket
from topology.nodes.store.parcel import Parcel
from topology.nodes.store.shelf import Wish

__all__ = ["MemoryHandlers", "RemoteMemory"]


@final
class MemoryHandlers:
    """A service as the courier exposes it: calls that may wait return futures, and end when their caller goes away."""

    def __init__(self, service: MemoryService) -> None:
        self._service = service

    @courier.asynchronous
    def store(self, ticket: Ticket, parcel: Parcel) -> Future[str]:
        return self._service.store(ticket, parcel)

    @courier.asynchronous
    def wait(self, reader: int, wish: Wish) -> Future[None]:
        return self._service.wait(reader, wish)

    def withdraw(self, ticket: Ticket) -> str | None:
        return self._service.withdraw(ticket)

    def attach(self) -> int:
        return self._service.attach()

    def take(self, reader: int, wish: Wish) -> list[Experience] | None:
        return self._service.take(reader, wish)

    def take_available(self, reader: int, max_steps: int | None) -> list[Experience]:
        return self._service.take_available(reader, max_steps)

    def acknowledge(self, ids: list[str]) -> None:
        self._service.acknowledge(ids)

    def clear(self) -> None:
        self._service.clear()

    def stats(self) -> MemoryStats:
        return self._service.stats()

    def explain(self) -> str:
        return self._service.explain()


@final
class RemoteMemory(ServedMemory):
    """A handle of a memory served at an address. Pickles as that.

    Args:
        address: of the courier server.
        secret: the run's; by default that of the current node.
    """

    def __init__(self, address: str, *, secret: bytes = b"") -> None:
        self._address = address
        super().__init__(_CourierLink(address, secret), (RemoteMemory, (address,)), copy=False)

    def __repr__(self) -> str:
        return f"<RemoteMemory {self._address}>"


@final
class _CourierLink:
    def __init__(self, address: str, secret: bytes) -> None:
        self._client = courier.Client(address, secret=secret)

    def call(self, method: str, *args: Any) -> Any:
        return told(lambda: getattr(self._client, method)(*args), self._client.address)

    def submit(self, method: str, *args: Any) -> Future[Any]:
        future: Future[Any] = told(lambda: getattr(self._client.futures, method)(*args), self._client.address)
        return future

    def wait(self, future: Future[Any], deadline: Deadline) -> Any:
        return told(lambda: future.result(deadline.remaining()), self._client.address)

    def close(self) -> None:
        self._client.close()
