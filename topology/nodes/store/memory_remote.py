"""A memory that another process keeps, reached over the courier."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, final

import numpy as np

from topology.clock import Deadline
from topology.errors import StoreFull
from topology.nodes import courier
from topology.nodes.store.bounds import check_fits
from topology.nodes.store.codec import MAX_BYTES, decode, encode_bytes
from topology.nodes.store.courier_errors import told
from topology.nodes.store.experience import Experience
from topology.nodes.store.memory import MemoryStats
from topology.nodes.store.memory_offers import Ticket
from topology.nodes.store.memory_pipeline import MemoryPipeline
from topology.nodes.store.memory_served import ServedMemory
from topology.nodes.store.memory_service import MemoryService
from topology.nodes.store.memory_writer import MemoryWriter
from topology.nodes.store.packing import AUTO, Packer
from topology.nodes.store.parcel import Parcel
from topology.nodes.store.shelf import Wish

__all__ = ["MemoryHandlers", "RemoteMemory"]

_FRAME = ""  # stands for all columns where they are packed: no column of a user has that name


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

    def bounds(self) -> tuple[int, int]:
        return self._service.bounds

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
        packing: how writers pack columns: "lz4", "zstd", "zlib", None for not, or "auto": lz4 where its package is
            installed, for as long as it makes them smaller. Readers find out by themselves.

    Raises:
        ValueError: there is no such packing.
        ImportError: the package of the packing is not installed.
    """

    def __init__(self, address: str, *, secret: bytes = b"", packing: str | None = AUTO) -> None:
        self._address = address
        self._packer = Packer(packing)
        self._bounds: tuple[int, int] | None = None
        self._courier = _CourierLink(address, secret)
        super().__init__(self._courier, (_open_again, (address, packing)), copy=False)

    def __repr__(self) -> str:
        return f"<RemoteMemory {self._address}>"

    def _make_writer(self, max_in_flight: int) -> MemoryWriter:
        self._check_open()
        return MemoryPipeline(self._submit_store, self._wait_for_stored, self._prepare, max_in_flight)

    def _submit_store(self, ticket: Ticket, parcel: Parcel) -> Future[str]:
        self._check_open()
        return self._courier.submit("store", ticket, parcel)

    def _wait_for_stored(self, stored: Future[str], deadline: Deadline, steps: int) -> None:
        try:
            self._wait(stored, deadline)
        except TimeoutError:
            raise StoreFull(
                f"no room for {steps} steps that were stored before came in the time allowed; they wait for it still, "
                f"and nothing more was taken: {self._courier.call('explain')}"
            ) from None

    def _prepare(self, parcel: Parcel) -> Parcel:
        """What is sent. Refused here, where its sender hears of it, rather than behind others in the service."""
        if self._bounds is None:
            self._bounds = self._courier.call("bounds")
        packed = self._packed(parcel)
        check_fits(packed.steps, sum(column.nbytes for column in packed.columns.values()), *self._bounds)
        return packed

    def _store(self, parcel: Parcel, deadline: Deadline) -> str:
        return super()._store(self._packed(parcel), deadline)

    def _packed(self, parcel: Parcel) -> Parcel:
        nbytes = sum(column.nbytes for column in parcel.columns.values())
        packing = self._packer.choose() if nbytes <= MAX_BYTES else None  # a reader unpacks no more
        if packing is None:
            return parcel
        frame = encode_bytes(parcel.columns, packing=packing)
        self._packer.note(nbytes, len(frame))
        return parcel._replace(columns={_FRAME: np.frombuffer(frame, "u1")})

    def _fetch(self, wish: Wish, deadline: Deadline) -> list[Experience]:
        return list(map(_unpacked, super()._fetch(wish, deadline)))

    def _fetch_available(self, max_steps: int | None) -> list[Experience]:
        return list(map(_unpacked, super()._fetch_available(max_steps)))


def _unpacked(experience: Experience) -> Experience:
    frame = experience.columns.get(_FRAME)
    return experience if frame is None else experience._replace(columns=decode(frame.data).arrays)


def _open_again(address: str, packing: str | None) -> RemoteMemory:
    return RemoteMemory(address, packing=packing)


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
