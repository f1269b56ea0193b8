"""The client of a replay server: writers, samples, priorities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar, Self, final

import numpy as np
import numpy.typing as npt

from topology.errors import ReplayDeadlineExceeded, TableNotFound
from topology.nodes.courier.transport import parse_address
from topology.nodes.replay.assembly import Assembler, first_item, steps_of
from topology.nodes.replay.checks import check_count, check_keys, check_timeout
from topology.nodes.replay.dataset import BatchIterator
from topology.nodes.replay.info import ReplaySample, TableInfo
from topology.nodes.replay.legacy_writer import Writer, check_arguments
from topology.nodes.replay.links import Link, LocalLink, RemoteLink, SampleCallArguments, in_time
from topology.nodes.replay.messages import Occupancy, SampleBatch, WriteBatch, WriteItem
from topology.nodes.replay.patterns import Config
from topology.nodes.replay.region_pool import RegionPool
from topology.nodes.replay.service import ReplayService
from topology.nodes.replay.specs import Signature
from topology.nodes.replay.structure import flatten, unflatten
from topology.nodes.replay.structured_writer import StructuredWriter
from topology.nodes.replay.writers import TrajectoryWriter

__all__ = ["Client"]


class Client:
    """Talks to a replay server. Thread-safe; pickles as the server's address. Connects with the first call.

    Blocking calls wait for a server that is not there yet, and raise `ProgramStopped` when the program stops.

    Args:
        server_address: as `Server.address` gives it: "unix:/path" or "host:port".
        secret: the run's secret; by default that of the current node.
        service: the server's service, in its own process: calls go to it directly.
        patience_s: how long writers wait for a server that went away to come back; None for ever. After that, calls
            of the writer raise `ConnectionBroken`; it keeps what is not confirmed, and the next call waits again.

    Raises:
        ValueError: `server_address` is no address.
    """

    trajectory_writer_kind: ClassVar[type[TrajectoryWriter]] = TrajectoryWriter
    structured_writer_kind: ClassVar[type[StructuredWriter]] = StructuredWriter

    def __init__(
        self,
        server_address: str,
        *,
        secret: bytes = b"",
        service: ReplayService | None = None,
        patience_s: float | None = 60.0,
    ) -> None:
        if service is None:
            parse_address(server_address)
        link = RemoteLink(server_address, secret) if service is None else LocalLink(service, server_address, secret)
        self._set_up(server_address, link, patience_s)

    def _set_up(self, server_address: str, link: Link, patience_s: float | None = None) -> None:
        self._address = server_address
        self._patience_s = patience_s
        self._link = link
        self._assembler = Assembler()
        self._signatures: dict[str, Signature | None] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._address,)  # the secret is that of the node where it arrives

    def __repr__(self) -> str:
        return f"<replay.Client {self._address}>"

    @property
    def server_address(self) -> str:
        """Address of the server."""
        return self._address

    @property
    def link(self) -> Link:
        """How it reaches the server; for those who build on it."""
        return self._link

    def assemble(self, batch: SampleBatch) -> ReplaySample:
        """What `sample_batch` makes of the server's reply; for those who build on it."""
        return self._assembler.batch(batch)

    def close(self) -> None:
        """Closes the connections; calls under way fail. Idempotent."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- writing ------------------------------------------------------------------------------------------------------

    def insert(self, data: Any, priorities: Mapping[str, float]) -> None:
        """Inserts one step as an item of one or more tables; each leaf gets a leading time axis of length 1.

        A table's signature may be that of such an item, or of the step.

        Blocks until the rate limiters let it pass. For more than a few items use `trajectory_writer`.

        Args:
            data: structure of arrays and numbers.
            priorities: priority by table; at least one.

        Raises:
            TableNotFound, ValueError: as for `TrajectoryWriter.create_item`; no table has got the item then.
        """
        if not priorities:
            raise ValueError("priorities must contain at least one item")
        with self.trajectory_writer(1) as writer:
            writer.signature_may_be_of_steps = True
            writer.append(data)
            leaves, shape = flatten(writer.history)
            trajectory = unflatten(shape, [column[-1:] for column in leaves])
            for table, priority in priorities.items():
                writer.check_item(table, priority, trajectory)
            for table, priority in priorities.items():
                writer.create_item(table, priority, trajectory)

    def trajectory_writer(self, num_keep_alive_refs: int, *, validate_items: bool = True) -> TrajectoryWriter:
        """A writer of steps and of items that span up to `num_keep_alive_refs` of them.

        Args:
            num_keep_alive_refs: at least 1.
            validate_items: whether items are checked against the table's signature here, before they are sent; the
                server checks them in any case.
        """
        return self.trajectory_writer_kind(
            _WriterBackend(self), num_keep_alive_refs, validate_items=validate_items, patience_s=self._patience_s
        )

    def structured_writer(self, configs: Sequence[Config]) -> StructuredWriter:
        """A writer that makes items by patterns and conditions. See `structured_writer.create_config`.

        Raises:
            ValueError: there is no config.
        """
        kind = self.structured_writer_kind
        return kind(self.trajectory_writer(kind.num_keep_alive_refs(configs)), configs)

    def writer(
        self,
        max_sequence_length: int,
        delta_encoded: bool = False,
        chunk_length: int | None = None,
        max_in_flight_items: int | None = 25,
    ) -> Writer:
        """Reverb's first writer: items are the latest n steps. Prefer `trajectory_writer`.

        Args:
            max_sequence_length: most steps of an item.
            delta_encoded: of Reverb's storage; has no effect here.
            chunk_length: of Reverb's storage; has no effect here.
            max_in_flight_items: so many items may be on their way before `create_item` blocks; None for no limit.

        Raises:
            ValueError: a number is below 1, or `chunk_length` above `max_sequence_length`.
        """
        del delta_encoded
        check_arguments(max_sequence_length, chunk_length, max_in_flight_items)
        return Writer(self.trajectory_writer(max_sequence_length), max_in_flight_items)

    # -- sampling -----------------------------------------------------------------------------------------------------

    def sample_batch(
        self, table: str, batch_size: int, *, timeout_s: float | None = None, replacement: bool = True
    ) -> ReplaySample:
        """A batch of items as contiguous arrays, in the structure their writers gave them.

        Blocks until the rate limiter has let `batch_size` samples pass. The batch may be larger than the limiter's
        error buffer: samples are drawn as they become possible.

        Args:
            table: name of the table.
            batch_size: items, B.
            timeout_s: limit in seconds; None waits for ever. A server that is not there, or does not answer, is given a
                second more.
            replacement: False for a batch in which no item is twice. Its `info.probability` is that of a single draw.

        Returns:
            `info` with arrays [B], `data` with leaves [B, T, ...], or [B, ...] for leaves without time axis.

        Raises:
            ReplayDeadlineExceeded: the limit passed; what was drawn until then goes to the next call.
            ReplayError: the items drawn differ in structure or shape, so that they do not make one batch.
            TableNotFound: there is no such table.
        """
        return self.assemble(self._link.sample(SampleCallArguments(table, batch_size, timeout_s, not replacement)))

    def batches(
        self,
        table: str,
        batch_size: int,
        *,
        prefetch: int = 1,
        timeout_s: float | None = None,
        replacement: bool = True,
    ) -> BatchIterator:
        """Batches without end, `prefetch` of them requested ahead. See `BatchIterator` and `sample_batch`."""
        request = SampleCallArguments(table, batch_size, timeout_s, not replacement)
        patience_s = request.patience_s
        return BatchIterator(
            lambda: self._link.submit_sample(request),
            self.assemble,
            prefetch=prefetch,
            result=lambda future: in_time(future, patience_s, self._address),
        )

    def sample(
        self,
        table: str,
        num_samples: int = 1,
        *,
        emit_timesteps: bool = True,
        unpack_as_table_signature: bool = False,
    ) -> Iterator[Any]:
        """Items one by one, each fetched when it is asked for. For training use `sample_batch` or `batches`.

        Args:
            table: name of the table.
            num_samples: how many items.
            emit_timesteps: True gives for each item a list with a `ReplaySample` a step; False one `ReplaySample` with
                the whole trajectory. Items whose leaves differ in length need False.
            unpack_as_table_signature: whether data has the structure of the table's signature; otherwise, or without a
                signature, it is the flat list of leaves.

        Raises:
            ValueError: `emit_timesteps` for an item that is not a sequence of steps; or `num_samples` is no count.
        """
        count = check_count(f"table {table!r}: num_samples", num_samples, least=0)
        return self._items(table, count, emit_timesteps, unpack_as_table_signature)

    def _items(self, table: str, count: int, emit_timesteps: bool, unpack_as_table_signature: bool) -> Iterator[Any]:
        signature = self.signature(table) if unpack_as_table_signature else None
        shape = None if signature is None else flatten(signature.tree)[1]
        for batch in self._one_by_one(SampleCallArguments(table, 1, None), count):
            info, leaves = first_item(batch)
            if emit_timesteps:
                steps = steps_of(table, leaves)
                yield [ReplaySample(info, step if shape is None else unflatten(shape, step)) for step in steps]
            else:
                yield ReplaySample(info, leaves if shape is None else unflatten(shape, leaves))

    def _one_by_one(self, request: SampleCallArguments, count: int) -> Iterator[SampleBatch]:
        """The replies to as many such requests."""
        for _ in range(count):
            yield self._link.sample(request)

    # -- items and tables ---------------------------------------------------------------------------------------------

    def mutate_priorities(
        self, table: str, updates: Mapping[int, float] | None = None, deletes: Iterable[int] | None = None
    ) -> int:
        """Changes priorities, then deletes items. Keys that are not in the table are ignored.

        Args:
            table: name of the table.
            updates: new priority by key.
            deletes: keys of items to remove.

        Returns:
            How many of the keys were in the table.

        Raises:
            ValueError: a priority is negative or not finite, or a key no integer of 64 bits; nothing is changed then.
        """
        found = 0
        doomed = np.atleast_1d(check_keys(table, () if deletes is None else deletes))
        if updates:
            found += self.update_priorities(table, list(updates.keys()), list(updates.values()))
        if len(doomed):
            found += self._link.call("delete", table, doomed)
        return found

    def update_priorities(self, table: str, keys: npt.ArrayLike, priorities: npt.ArrayLike) -> int:
        """Sets the priorities [n] of the items with `keys` [n], as `SampleInfo.key` gives them.

        Keys that are not in the table are ignored. Returns how many were there.

        Raises:
            ValueError: the lengths differ, a priority is negative or not finite, or a key no integer of 64 bits;
                nothing is changed then.
        """
        key_array = check_keys(table, keys)
        values = np.asarray(priorities, np.float64)
        if key_array.ndim != 1 or key_array.shape != values.shape:
            raise ValueError(f"keys and priorities must be [n] both, got {key_array.shape} and {values.shape}")
        found: int = self._link.call("update_priorities", table, key_array, values)
        return found

    def reset(self, table: str) -> None:
        """Removes all items of a table and sets its rate limiter's counts to zero."""
        self._link.call("reset", table)

    def resize(self, table: str, max_size: int) -> None:
        """Changes a table's `max_size`. A smaller one removes items, chosen by the remover."""
        self._link.call("resize", table, max_size)

    def checkpoint(self) -> str:
        """Saves all tables of the server; returns the path of the checkpoint, on the server's machine.

        Blocks until it is on the disk; the server goes on serving meanwhile.

        Raises:
            CheckpointError: it could not be written, or the server has no checkpointer.
        """
        path: str = self._link.call("checkpoint")
        return path

    def server_info(self, timeout: float | None = None) -> dict[str, TableInfo]:
        """`TableInfo` by table.

        Args:
            timeout: limit in seconds, connecting included; None waits for ever.

        Raises:
            ReplayDeadlineExceeded: no answer in that time.
        """
        if timeout is None:
            info: dict[str, TableInfo] = self._link.call("server_info")
            return info
        timeout = check_timeout("timeout", timeout)
        future = self._link.submit("server_info")
        try:
            info = future.result(timeout)
        except TimeoutError as error:
            future.cancel()
            raise ReplayDeadlineExceeded(
                f"the replay server at {self._address} did not answer server_info within {timeout} s; is it running, "
                "and is that its address?"
            ) from error
        return info

    def signature(self, table: str) -> Signature | None:
        """The table's signature, fetched once; None when it has none.

        Raises:
            TableNotFound: there is no such table.
        """
        if table not in self._signatures:
            for name, info in self.server_info().items():
                self._signatures[name] = None if info.signature is None else Signature(info.signature)
        if table not in self._signatures:
            names = ", ".join(sorted(self._signatures))
            raise TableNotFound(f"no table {table!r} at {self._address}; its tables are {names}")
        return self._signatures[table]

    def submit_ping(self) -> Future[Any]:
        """A future that is done when the server answers."""
        return self._link.submit("server_info")

    @property
    def regions(self) -> RegionPool | None:
        """Memory shared with the server; None for none."""
        return self._link.regions

    def occupancy(self, *tables: str) -> list[Occupancy]:
        """What has come into each of these tables, and what of it is there. A small part of `server_info`, and quick.

        Raises:
            TableNotFound: the server has no such table.
        """
        found: list[Occupancy] = self._link.call("occupancy", tables)
        return found

    def wait_for_inserts(
        self, table: str, known: int, timeout_s: float | None = None, *, steps: int = 0, also: Sequence[str] = ()
    ) -> list[Occupancy]:
        """What was inserted, once that is another number of items than `known`, and at least so many steps.

        Samples nothing: for those who look for what is new by other means. A reset of the table ends the wait, too.

        Args:
            table: name of the table.
            known: the number of items that there was.
            timeout_s: limit in seconds, after which it is told what is there; None waits for ever.
            steps: of all items since the table was made or reset, see `Occupancy`.
            also: tables of which it is told what is there then, too; what is waited for comes first.

        Raises:
            TableNotFound: the server has no such table.
        """
        timeout_s = check_timeout("timeout_s", timeout_s)
        found: list[Occupancy] = self._link.call("wait_for_inserts", table, known, timeout_s, steps, also)
        return found

    def take_back(self, table: str, writer: int, count: int) -> int:
        """See `TrajectoryWriter.take_back`."""
        number: int = self._link.call("take_back", table, writer, count)
        return number

    def submit_insert(self, batch: WriteBatch | WriteItem) -> Future[None]:
        """Sends a message of a writer."""
        return self._link.submit("insert", batch, self._link.visit)


@final
class _WriterBackend:
    def __init__(self, client: Client) -> None:
        self._client = client

    def insert(self, batch: WriteBatch) -> Future[None]:
        return self._client.submit_insert(batch)

    def signature(self, table: str) -> Signature | None:
        return self._client.signature(table)

    def take_back(self, table: str, writer: int, count: int) -> int:
        return self._client.take_back(table, writer, count)

    def ready(self) -> Future[object]:
        return self._client.submit_ping()

    @property
    def regions(self) -> RegionPool | None:
        return self._client.regions
