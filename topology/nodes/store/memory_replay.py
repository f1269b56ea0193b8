"""The memory backend "replay:": in tables of a replay service.

`NAME` has an item for each experience. It stays until it is acknowledged; what was delivered has priority 1, so that
the least come first. `NAME.room` is a queue with one item for each step that is kept: it is what makes writers wait,
since a queue lets in only so many. `NAME.bell` has an item while something may be new, and `NAME.reader` says who
reads.

Room is taken before the experience is inserted, and given back after it was deleted: who is killed in between leaves
room taken for nothing. A reader, or a writer, that waits in vain looks for that, and gives it back.
"""

from __future__ import annotations

import functools
import secrets
import threading
from typing import Any, final

import numpy as np

from topology.clock import Deadline
from topology.errors import ReplayDeadlineExceeded, StoreClosed, StoreDeadlineExceeded, StoreFull, StoreUnavailable
from topology.nodes import replay
from topology.nodes.replay.info import TableInfo
from topology.nodes.replay.links import SampleCallArguments
from topology.nodes.store.bounds import check_fits, check_reachable
from topology.nodes.store.courier_errors import told
from topology.nodes.store.experience import Experience
from topology.nodes.store.memory import MAX_BYTES, MAX_STEPS, MemoryBackend, MemoryStats
from topology.nodes.store.parcel import Parcel
from topology.nodes.store.replay_items import Item, items_of
from topology.nodes.store.replay_room import ReplayRoom
from topology.nodes.store.replay_writer import ReplayWriter
from topology.nodes.store.shelf import Shelf, Wish

__all__ = ["ReplayMemory", "memory_tables", "open_replay"]

_SLICE_S = 1.0  # of a wait, after which it looks for room that is taken for nothing
_MOST_ITEMS = 256  # in one batch
_NOBODY = bytes(16)  # who reads a memory that was deleted


def memory_tables(name: str, *, max_steps: int = MAX_STEPS) -> list[replay.Table]:
    """The tables of the memory `name`, for a `replay.Server` or a `ReverbNode`."""
    fifo, any_size = replay.selectors.Fifo(), replay.rate_limiters.MinSize(1)
    return [
        replay.Table(name, replay.selectors.MinHeap(), fifo, max_steps, any_size),
        replay.Table.queue(f"{name}.room", max_steps),
        replay.Table(f"{name}.bell", fifo, fifo, 1, any_size, max_times_sampled=1),
        replay.Table(f"{name}.reader", fifo, fifo, 1, any_size),
    ]


def open_replay(
    url: str, *, name: str, max_steps: int = MAX_STEPS, max_bytes: int = MAX_BYTES, patience_s: float = 30.0
) -> ReplayMemory:
    """See `open_memory_backend` and `ReplayMemory`."""
    if max_bytes != MAX_BYTES:
        raise ValueError("a memory in a replay service is bounded by max_steps only; leave max_bytes out")
    return ReplayMemory(url.partition(":")[2], name=name, max_steps=max_steps, patience_s=patience_s)


@final
class ReplayMemory(MemoryBackend):
    """A handle of a memory in a replay service that serves `memory_tables(name, max_steps=...)`.

    Its bound counts steps, not bytes. Of blocked writers `stats` counts the steps for which they have no room. One
    store at a time goes through a handle: threads that share it wait for one another.

    Args:
        address: of the replay server.
        name: of the memory.
        max_steps: most steps it keeps: that of its tables.
        patience_s: how long a server that is not there is waited for, in seconds.

    Raises:
        ValueError: the server has no such tables, or they have another bound.
        StoreUnavailable: there is no server.
    """

    def __init__(self, address: str, *, name: str, max_steps: int = MAX_STEPS, patience_s: float = 30.0) -> None:
        self._arguments = f"replay:{address}", name, max_steps, patience_s
        self._name = name
        self._max_steps = max_steps
        self._client = replay.Client(address, patience_s=patience_s)
        self._closed = False
        self._writing = threading.Lock()
        self._writer = ReplayWriter(self._client, name)
        self._reading = threading.RLock()
        self._reader: bytes | None = None
        self._shelf: Shelf[Item] = Shelf()
        self._known: dict[str, tuple[int, int]] = {}  # key and steps of what is in the table and was read
        self._room = ReplayRoom(self._client, name, _SLICE_S / 2)
        self._room_for_writers = ReplayRoom(self._client, name, _SLICE_S / 2)  # who may look at the same time
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
        self._check_open()
        check_fits(parcel.steps, 0, self._max_steps, 1)
        left_s = deadline.remaining()
        if not self._writing.acquire(timeout=-1 if left_s is None else left_s):
            raise StoreFull(f"another thread waited for room with this handle for all of the time: {self._explain()}")
        try:
            return told(lambda: self._store_now(parcel, deadline), self._client.server_address)
        finally:
            self._writing.release()

    def _store_now(self, parcel: Parcel, deadline: Deadline) -> str:
        self._check_open()
        while not self._writer.reserve(parcel.steps, _slice_s(deadline)):
            self._check_open()
            if deadline.expired:
                raise StoreFull(
                    f"no room for {parcel.steps} steps came in the time allowed, and they were not stored: "
                    f"{self._explain()}"
                )
            self._room_for_writers.look_for_the_dead(None)
        return self._writer.write(parcel)

    # -- the reader ---------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        self._check_open()
        with self._reading:
            told(self._recover, self._client.server_address)

    def _recover(self) -> None:
        self._reader = secrets.token_bytes(16)
        self._name_reader(self._reader)
        self._shelf.clear()
        self._known.clear()
        self._read(self._info(self._name).current_size)

    def _name_reader(self, reader: bytes) -> None:
        self._client.insert(np.frombuffer(reader, "u1"), {f"{self._name}.reader": 1.0})

    def _fetch(self, wish: Wish, deadline: Deadline) -> list[Experience]:
        check_reachable(wish, self._max_steps)
        while True:
            with self._reading:
                told(self._read_on, self._client.server_address)
                if self._shelf.has(wish):
                    return [item.experience for item in self._shelf.take(wish)]
            if deadline.expired:
                raise StoreDeadlineExceeded(f"{wish} did not come in the time allowed: {self._explain()}")
            told(functools.partial(self._sleep_until_rung, _slice_s(deadline)), self._client.server_address)

    def _fetch_available(self, max_steps: int | None) -> list[Experience]:
        with self._reading:
            told(self._read_on, self._client.server_address)
            return [item.experience for item in self._shelf.take_at_most(max_steps)]

    def _read_on(self) -> None:
        """Puts on the shelf what is new."""
        self._check_open()
        newest = _NOBODY if self._reader is None else self._newest_reader()
        if newest == _NOBODY:
            self._recover()
        elif newest != self._reader:
            raise StoreClosed(
                f"another handle has become the reader of memory {self._name!r}, and gets what was not acknowledged; a "
                "memory has one reader at a time. recover() takes it back"
            )
        size = self._info(self._name).current_size
        self._read(size - len(self._known))
        if len(self._known) != size and len(self._known) != self._info(self._name).current_size:
            # Somebody else has deleted items, the server has begun anew, or what was read was lost on the way.
            self._recover()

    def _newest_reader(self) -> bytes:
        try:
            data: bytes = self._client.sample_batch(f"{self._name}.reader", 1, timeout_s=_SLICE_S).data.tobytes()
        except ReplayDeadlineExceeded:
            return _NOBODY  # the server has begun anew
        return data

    def _read(self, count: int) -> None:
        """Reads `count` items: those of least priority."""
        items: list[Item] = []
        while count > len(items):
            wanted = min(count - len(items), _MOST_ITEMS)
            batch = self._client.link.sample(SampleCallArguments(self._name, wanted, _SLICE_S, distinct=True))
            got = items_of(self._client, batch)
            self._client.update_priorities(self._name, batch.keys, np.ones(batch.keys.size))
            items += got
        items.sort(key=lambda item: not item.delivered)  # keeps the order of both
        for item in items:
            if item.experience.id not in self._known:
                self._known[item.experience.id] = item.key, item.steps
                self._shelf.add(item)

    def _sleep_until_rung(self, slice_s: float) -> None:
        try:
            self._client.sample_batch(f"{self._name}.bell", 1, timeout_s=slice_s)
        except ReplayDeadlineExceeded:
            self._room.look_for_the_dead([steps for _, steps in self._known.values()])

    def _acknowledge(self, ids: list[str]) -> None:
        with self._reading:
            if self._reader is None:
                self.recover()
            gone = [known for known in (self._known.pop(id_, None) for id_ in ids) if known is not None]
            if gone:
                told(lambda: self._let_go(gone), self._client.server_address)

    def _let_go(self, gone: list[tuple[int, int]]) -> None:
        self._client.mutate_priorities(self._name, deletes=[key for key, _ in gone])
        self._room.give_back(sum(steps for _, steps in gone))

    # -- both ---------------------------------------------------------------------------------------------------------

    def stats(self) -> MemoryStats:
        self._check_open()
        tables = told(self._client.server_info, self._client.server_address)
        table, room = tables[self._name], tables[f"{self._name}.room"]
        stored = table.rate_limiter_info.insert_stats.completed
        with self._reading:
            held = len(self._known) - len(self._shelf)
            held_steps = sum(steps for _, steps in self._known.values()) - self._shelf.steps
            episodes = self._shelf.episodes if self._reader is not None else None
        return MemoryStats(
            stored=stored,
            delivered=stored - table.current_size + held,
            acknowledged=stored - table.current_size,
            refused=0,
            waiting_steps=room.current_size - held_steps,
            waiting_episodes=episodes,
            waiting_bytes=None,
            writers_blocked=room.rate_limiter_info.insert_stats.pending,
        )

    def delete(self) -> None:
        self._check_open()
        told(self._delete, self._client.server_address)

    def _delete(self) -> None:
        self._name_reader(_NOBODY)  # the reader that was knows of items that are no more
        for table in (self._name, f"{self._name}.bell", f"{self._name}.room"):
            self._client.reset(table)

    def close(self) -> None:
        self._closed = True
        self._client.close()

    def _explain(self) -> str:
        stats = self.stats()
        held = (stats.delivered or 0) - (stats.acknowledged or 0)
        return (
            f"{stats.waiting_steps} steps wait for the reader and {held} experiences are delivered and not "
            f"acknowledged, of max_steps={self._max_steps}; writers wait for room for {stats.writers_blocked} steps"
        )

    def _info(self, table: str) -> TableInfo:
        return self._client.server_info()[table]

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

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("this handle of the memory is closed; open another")


def _slice_s(deadline: Deadline) -> float:
    left_s = deadline.remaining()
    return _SLICE_S if left_s is None else min(_SLICE_S, left_s)


def _open_again(url: str, name: str, max_steps: int, patience_s: float) -> ReplayMemory:
    return open_replay(url, name=name, max_steps=max_steps, patience_s=patience_s)
