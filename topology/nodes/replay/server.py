"""A replay server: the replay service behind a courier server."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Self, final

from topology.nodes import courier
from topology.nodes.replay.checkpointers import CheckpointerBase
from topology.nodes.replay.client import Client
from topology.nodes.replay.landing import LandingAddress
from topology.nodes.replay.links import MOST_IN_FLIGHT
from topology.nodes.replay.messages import Occupancy, SampleBatch, WriteBatch, WriteItem
from topology.nodes.replay.service import ReplayService
from topology.nodes.replay.shared_memory import MemoryAddress
from topology.nodes.replay.table import Table

__all__ = ["Server"]


@final
class _Handlers:
    """The service as the courier exposes it: calls that may wait return futures."""

    def __init__(self, service: ReplayService) -> None:
        self._service = service
        self.delete = service.delete
        self.checkpoint = service.checkpoint
        self.occupancy = service.occupancy
        self.reset = service.reset
        self.resize = service.resize
        self.server_info = service.server_info
        self.take_back = service.take_back
        self.update_priorities = service.update_priorities

    @courier.asynchronous
    def insert(self, batch: WriteBatch | WriteItem, visit: int = 0) -> Future[None]:
        return self._service.insert(batch, visit)

    @courier.asynchronous
    def visit(self, number: int) -> Future[None]:
        return self._service.visit(number)

    @courier.asynchronous
    def sample(
        self, table: str, batch_size: int, timeout_s: float | None, landing: LandingAddress | None = None
    ) -> Future[SampleBatch]:
        return self._service.sample(table, batch_size, timeout_s, landing)

    @courier.asynchronous
    def attend(self) -> Future[None]:
        return self._service.attend()

    @courier.asynchronous
    def present(self) -> Future[None]:
        return self._service.present()

    @courier.asynchronous
    def sample_distinct(
        self, table: str, batch_size: int, timeout_s: float | None, landing: LandingAddress | None = None
    ) -> Future[SampleBatch]:
        return self._service.sample_distinct(table, batch_size, timeout_s, landing)

    @courier.asynchronous
    def sample_marked(
        self, table: str, batch_size: int, timeout_s: float | None, landing: LandingAddress | None = None
    ) -> Future[SampleBatch]:
        return self._service.sample_marked(table, batch_size, timeout_s, landing)

    @courier.asynchronous
    def sample_some(
        self, table: str, at_most: int, timeout_s: float | None, landing: LandingAddress | None = None
    ) -> Future[SampleBatch]:
        return self._service.sample_some(table, at_most, timeout_s, landing)

    @courier.asynchronous
    def wait_for_inserts(
        self, table: str, known: int, timeout_s: float | None = None, steps: int = 0, also: Sequence[str] = ()
    ) -> Future[list[Occupancy]]:
        return self._service.wait_for_inserts(table, known, timeout_s, steps, also)

    @courier.asynchronous
    def lend_memory(self, address: MemoryAddress) -> Future[None]:
        return self._service.lent_memory.lend(address)


class Server:
    """Serves tables.

        with replay.Server([table]) as server:
            client = replay.Client(server.address)

    Args:
        tables: at least one, with distinct names.
        port: TCP port on this machine; 0 picks a free one.
        checkpointer: saves the tables when a client asks for it, and fills them now from the newest checkpoint.
        address: "unix:/path" or "host:port" instead. With neither, a fresh unix socket.
        secret: the run's secret, needed to serve beyond this machine.
        compression: "zlib", "lz4" or "zstd" by path of a column in the steps, e.g. {"observation/pixels": "lz4"}; the
            path "*" means every column of cells of 256 bytes or more. Costs time with every step and every sample.

    Raises:
        ValueError: no table, or two of one name.
        LaunchError: the address is taken.
        CheckpointError: the newest checkpoint is damaged, or does not fit the tables.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        port: int | None = None,
        checkpointer: CheckpointerBase | None = None,
        *,
        address: str | None = None,
        secret: bytes = b"",
        compression: Mapping[str, str] | None = None,
    ) -> None:
        self._service = ReplayService(tables, checkpointer=checkpointer, compression=compression)
        self._courier = courier.Server(
            "replay", address=address, port=port, secret=secret, max_in_flight=MOST_IN_FLIGHT
        )
        courier.bind_object(self._courier, _Handlers(self._service))
        self._stopped = threading.Event()

    def start(self) -> None:
        """Lets clients in. Returns at once."""
        self._courier.start()

    def stop(self) -> None:
        """Fails the calls that wait, at once, and closes all connections. Idempotent."""
        self._service.close()
        self._courier.stop()
        self._stopped.set()

    def checkpoint(self) -> str:
        """Saves all tables; returns where. See `Client.checkpoint`."""
        return self._service.checkpoint()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Blocks until the server is stopped; returns whether it is."""
        return self._stopped.wait(timeout_s)

    @property
    def address(self) -> str:
        """What clients are given."""
        return self._courier.address

    @property
    def port(self) -> int:
        """TCP port; `CourierError` when it has none."""
        return self._courier.port

    @property
    def tables(self) -> dict[str, Table]:
        """The tables by name."""
        return dict(self._service.tables)

    def localhost_client(self) -> Client:
        """A client for this process, without a connection; pickled, it becomes one with a connection."""
        return Client(self.address, service=self._service)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<replay.Server {self.address}: {', '.join(self._service.tables)}>"
