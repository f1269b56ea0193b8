"""The memory backend "replay:": in tables of a replay service.

`NAME` has an item for each experience. It stays until it is acknowledged; what was delivered has priority 1, so that
the least come first. The table lets in only so many steps at a time, and thereby makes writers wait. `NAME.reader` says
who reads.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar, final

from topology.clock import Deadline
from topology.errors import ReplayDeadlineExceeded, StoreClosed, StoreDeadlineExceeded, StoreFull, StoreUnavailable
from topology.nodes import replay
from topology.nodes.store.bounds import check_fits, check_reachable
from topology.nodes.store.courier_errors import told
from topology.nodes.store.experience import Experience
from topology.nodes.store.memory import MAX_BYTES, MAX_STEPS, MemoryBackend, MemoryStats
from topology.nodes.store.memory_writer import MemoryWriter
from topology.nodes.store.packing import AUTO, Packer
from topology.nodes.store.parcel import Parcel
from topology.nodes.store.replay_reader import ReplayReader, Seen
from topology.nodes.store.replay_writer import ReplayPipeline, ReplayWriter, slice_of
from topology.nodes.store.shelf import Wish

__all__ = ["ReplayMemory", "memory_tables", "open_replay"]

_SLICE_S = 1.0  # of a wait, after which it looks by itself

ResultT = TypeVar("ResultT")


def memory_tables(name: str, *, max_steps: int = MAX_STEPS) -> list[replay.Table]:
    """The tables of the memory `name`, for a `replay.Server` or a `ReverbNode`."""
    fifo, any_size = replay.selectors.Fifo(), replay.rate_limiters.MinSize(1)
    return [
        replay.Table(name, replay.selectors.MinHeap(), fifo, max_steps, replay.rate_limiters.MaxSteps(max_steps)),
        replay.Table(f"{name}.reader", fifo, fifo, 1, any_size),
    ]


def open_replay(
    url: str,
    *,
    name: str,
    max_steps: int = MAX_STEPS,
    max_bytes: int = MAX_BYTES,
    packing: str | None = AUTO,
    patience_s: float = 30.0,
) -> ReplayMemory:
    """See `open_memory_backend` and `ReplayMemory`."""
    if max_bytes != MAX_BYTES:
        raise ValueError("a memory in a replay service is bounded by max_steps only; leave max_bytes out")
    address = url.partition(":")[2]
    return ReplayMemory(address, name=name, max_steps=max_steps, packing=packing, patience_s=patience_s)


@final
class ReplayMemory(MemoryBackend):
    """A handle of a memory in a replay service that serves `memory_tables(name, max_steps=...)`.

    Its bound counts steps, not bytes. Of blocked writers `stats` counts the experiences for which there is no room. One
    store at a time goes through a handle: threads that share it wait for one another, unless they use a `writer` each.

    Args:
        address: of the replay server.
        name: of the memory.
        max_steps: most steps it keeps: that of its tables.
        packing: how writers pack columns: "lz4", "zstd", "zlib", None for not, or "auto": lz4 where its package is
            installed, for as long as it makes them smaller. Readers find out by themselves.
        patience_s: how long a server that is not there is waited for, in seconds.

    Raises:
        ValueError: the server has no such tables, or they have another bound; or there is no such packing.
        ImportError: the package of the packing is not installed.
        StoreUnavailable: there is no server.
    """

    def __init__(
        self,
        address: str,
        *,
        name: str,
        max_steps: int = MAX_STEPS,
        packing: str | None = AUTO,
        patience_s: float = 30.0,
    ) -> None:
        self._arguments = address, name, max_steps, packing, patience_s
        self._name = name
        self._max_steps = max_steps
        self._client = replay.Client(address, patience_s=patience_s)
        self._closed = False
        self._packer = Packer(packing)
        self._writing = threading.Lock()
        self._patience_s = patience_s
        self._writer = ReplayWriter(self._client, name, self._packer, patience_s)
        self._reading = threading.RLock()
        self._reader = ReplayReader(self._client, name)
        try:
            self._check_tables(patience_s)
        except BaseException:
            self._client.close()
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_again, self._arguments

    def __repr__(self) -> str:
        return f"<ReplayMemory {self._name!r} at {self._client.server_address}>"

    # -- writers ------------------------------------------------------------------------------------------------------

    def _store(self, parcel: Parcel, deadline: Deadline) -> str:
        self._check_storable(parcel.steps)
        left_s = deadline.remaining()
        if not self._writing.acquire(timeout=-1 if left_s is None else left_s):
            raise StoreFull(f"another thread waited for room with this handle for all of the time: {self._explain()}")
        try:
            return self._told(lambda: self._store_now(parcel, deadline))
        finally:
            self._writing.release()

    def _store_now(self, parcel: Parcel, deadline: Deadline) -> str:
        self._check_open()
        frame = self._writer.pack(parcel)
        self._writer.send(frame)
        while not self._writer.confirm(0, slice_of(deadline, _SLICE_S)):
            self._check_open()
            if deadline.expired and self._writer.take_back():
                raise StoreFull(
                    f"no room for {parcel.steps} steps came in the time allowed, and they were not stored: "
                    f"{self._explain()}"
                )
        return frame.id

    def _make_writer(self, max_in_flight: int) -> MemoryWriter:
        self._check_open()
        return ReplayPipeline(
            ReplayWriter(self._client, self._name, self._packer, self._patience_s),
            self._told,
            self._check_storable,
            max_in_flight=max_in_flight,
            explain=self._explain,
            slice_s=_SLICE_S,
        )

    def _check_storable(self, steps: int) -> None:
        self._check_open()
        check_fits(steps, 0, self._max_steps, 1)

    # -- the reader ---------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        self._check_open()
        with self._reading:
            self._told(self._reader.recover)

    def _fetch(self, wish: Wish, deadline: Deadline) -> list[Experience]:
        check_reachable(wish, self._max_steps)
        reader, shelf = self._reader, self._reader.shelf
        seen: Seen | None = None
        while True:
            with self._reading:
                self._check_open()
                missing = 0 if wish.of_episodes else shelf.missing(wish)
                self._told(functools.partial(reader.read_on, lambda: shelf.has(wish), missing, seen))
                if shelf.has(wish):
                    return [item.experience for item in shelf.take(wish)]
                if deadline.expired:
                    raise StoreDeadlineExceeded(f"{wish} did not come in the time allowed: {self._explain()}")
                # Now: another thread may read on. Of episodes nobody but their writers knows how many will come.
                plan = reader.plan(0 if wish.of_episodes else shelf.missing(wish))
            seen = self._told(functools.partial(reader.sleep, plan, slice_of(deadline, _SLICE_S)))

    def _fetch_available(self, max_steps: int | None) -> list[Experience]:
        reader, shelf = self._reader, self._reader.shelf
        with self._reading:
            self._check_open()
            self._told(lambda: reader.read_on(lambda: max_steps is not None and shelf.steps >= max_steps))
            return [item.experience for item in shelf.take_at_most(max_steps)]

    def _acknowledge(self, ids: list[str]) -> None:
        with self._reading:
            if not self._reader.is_reader:
                self.recover()
            self._told(lambda: self._reader.let_go(ids))

    # -- both ---------------------------------------------------------------------------------------------------------

    def stats(self) -> MemoryStats:
        self._check_open()
        table = self._told(self._client.server_info)[self._name]
        stored = table.rate_limiter_info.insert_stats.completed
        with self._reading:
            held, held_steps = self._reader.held
            episodes = self._reader.shelf.episodes if self._reader.is_reader else None
        return MemoryStats(
            stored=stored,
            delivered=stored - table.current_size + held,
            acknowledged=stored - table.current_size,
            refused=0,
            waiting_steps=table.num_steps - held_steps,
            waiting_episodes=episodes,
            waiting_bytes=None,
            writers_blocked=table.rate_limiter_info.insert_stats.pending,
        )

    def delete(self) -> None:
        self._check_open()
        self._told(self._delete)

    def _delete(self) -> None:
        self._reader.depose()  # the reader that was knows of items that are no more
        self._client.reset(self._name)

    def close(self) -> None:
        self._closed = True
        self._client.close()

    def _explain(self) -> str:
        stats = self.stats()
        held = (stats.delivered or 0) - (stats.acknowledged or 0)
        return (
            f"{stats.waiting_steps} steps wait for the reader and {held} experiences are delivered and not "
            f"acknowledged, of max_steps={self._max_steps}; {stats.writers_blocked} experiences wait for room"
        )

    def _check_tables(self, patience_s: float) -> None:
        try:
            tables = self._client.server_info(timeout=patience_s)
        except ReplayDeadlineExceeded as error:
            raise StoreUnavailable(str(error)) from None
        missing = [table.name for table in memory_tables(self._name) if table.name not in tables]
        if missing:
            raise ValueError(
                f"the replay server at {self._client.server_address} has no tables {', '.join(missing)}: let it serve "
                f"memory_tables({self._name!r}), of topology.nodes.store.memory_replay"
            )
        if (found := tables[self._name].max_size) != self._max_steps:
            raise ValueError(f"memory {self._name!r} is there with max_steps={found}, not with {self._max_steps}")

    def _told(self, call: Callable[[], ResultT]) -> ResultT:
        return told(call, self._client.server_address)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("this handle of the memory is closed; open another")


def _open_again(address: str, name: str, max_steps: int, packing: str | None, patience_s: float) -> ReplayMemory:
    return ReplayMemory(address, name=name, max_steps=max_steps, packing=packing, patience_s=patience_s)
