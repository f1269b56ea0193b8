"""Large batches to a client on the same machine: the server copies straight into memory that the client lends it.

A client with a unix socket owns a bounded pool of regions of shared memory and lends each to the server for as long as
its connection lasts. With a request for a large batch it names a free region; the server gathers the large leaves
there, and sends where they are instead of their bytes. The reply unpickles to arrays over the region. When the last
view of them is gone, the region is free again: until then nobody writes to it.

Wherever a region is missing - all are held, the server cannot open them, there is no memory left, the batch has grown -
the bytes travel through the socket, as they always do between machines.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from topology.errors import ConnectionBroken, CourierClosed, CourierError, ReplayError
from topology.nodes.replay.messages import SampleBatch
from topology.nodes.replay.shared_memory import FIRST_BYTE, MemoryAddress, Region, is_supported, open_region

__all__ = ["Landing", "LandingAddress", "LandingPool", "LentMemory", "Placer"]

_ALIGNMENT = 64
_LEAF_BYTES = 16 << 10  # smaller leaves travel with the message, and do not hold a region when they are kept
_BATCH_BYTES = 64 << 10  # smaller batches are as fast through the socket
_MOST_REGIONS = 16
_MOST_BYTES = 256 << 20
_MOST_SIZES = 256


class LandingAddress(NamedTuple):
    """What a request says: the region that it may land in, and the number of the landing."""

    token: bytes
    ticket: int


class _Placement(NamedTuple):
    """Where a leaf was put. Unpickles to an array, in the client that made the request."""

    ticket: int
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, tuple(self)


# --- the server's side ----------------------------------------------------------------------------------------------


@final
class LentMemory:
    """Regions that clients lend to a server. Thread-safe."""

    def __init__(self) -> None:
        self._memory: dict[bytes, npt.NDArray[np.uint8]] = {}

    def lend(self, address: MemoryAddress) -> Future[None]:
        """Takes a region, until the returned future is cancelled, as it is when its client goes away.

        Errors: `OSError`, when it cannot be opened.
        """
        memory = open_region(address)
        lease: Future[None] = Future()
        self._memory[address.token] = memory
        lease.add_done_callback(lambda _: self._memory.pop(address.token, None))
        return lease

    def placer(self, address: LandingAddress | None) -> Placer | None:
        """What puts a batch where `address` says; None when there is no such place."""
        memory = None if address is None else self._memory.get(address.token)
        return None if address is None or memory is None else Placer(memory, address.ticket)

    def close(self) -> None:
        """Lets go of all regions."""
        self._memory.clear()


@final
class Placer:
    """Gives out the memory of one region for the leaves of one batch."""

    def __init__(self, memory: npt.NDArray[np.uint8], ticket: int) -> None:
        self._memory = memory
        self._ticket = ticket
        self._end = FIRST_BYTE
        self._placements: dict[int, _Placement] = {}

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Like `np.empty`; in the region if the array is large and there is room."""
        size = dtype.itemsize * math.prod(shape)
        if dtype.hasobject or size < _LEAF_BYTES or self._end + size > self._memory.size:
            return np.empty(shape, dtype)
        array = _view(self._memory, self._end, dtype, shape)
        self._placements[id(array)] = _Placement(self._ticket, self._end, dtype, shape)
        self._end = _aligned(self._end + size)
        return array

    def replace(self, batch: SampleBatch) -> SampleBatch:
        """The batch as it is sent, with a placement instead of each leaf in the region."""
        groups = [
            group._replace(leaves=[self._placed(leaf) for leaf in group.leaves])
            for group in batch.groups
        ]
        return batch._replace(groups=groups)

    def _placed(self, leaf: npt.NDArray[Any]) -> Any:
        return self._placements.get(id(leaf), leaf)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _view(memory: npt.NDArray[np.uint8], offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    size = dtype.itemsize * math.prod(shape)
    return memory[offset : offset + size].view(dtype).reshape(shape)


# --- the client's side ----------------------------------------------------------------------------------------------


@final
class Landing:
    """One request's use of a region, from the request until the last array of the reply is gone."""

    def __init__(self, pool: LandingPool, region: _PooledRegion) -> None:
        self._pool = pool
        self._region = region
        self._ticket = next(_tickets)
        self._base: weakref.ref[npt.NDArray[np.uint8]] | None = None
        self.address = LandingAddress(region.token, self._ticket)
        _landings[self._ticket] = self

    def place(self, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """The array that the server put there."""
        base = None if self._base is None else self._base()
        if base is None:
            base = self._pool.hold(self._region)
            self._base = weakref.ref(base)
        return _view(base, offset, dtype, shape)

    def end(self, error: BaseException | None) -> None:
        """The reply has come and was unpickled, or none will come."""
        _landings.pop(self._ticket, None)
        if self._base is not None:
            return  # arrays hold the region, or have given it back
        if error is None or isinstance(error, ReplayError):
            self._region.release()
        else:
            self._pool.retire(self._region)  # the server may still write to it


def _unpack(ticket: int, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    landing = _landings.get(ticket)
    if landing is None:
        raise ReplayError("a batch in shared memory can be unpickled only by the client that asked for it, once")
    return landing.place(offset, dtype, shape)


_tickets = itertools.count(1)
_landings: dict[int, Landing] = {}  # requests under way, by ticket


@final
class _PooledRegion:
    """A region and what becomes of it when its arrays are gone."""

    def __init__(self, region: Region, free: deque[_PooledRegion]) -> None:
        self._region = region
        self._free: deque[_PooledRegion] | None = free
        self._base: weakref.ref[npt.NDArray[np.uint8]] | None = None
        self.size = region.size
        self.token = region.address.token
        self.lease: Future[None] | None = None

    def hold(self) -> npt.NDArray[np.uint8]:
        """The memory. The region is free again when this array and all its views are gone."""
        base = self._region.array()
        self._base = weakref.ref(base, self._on_end)
        return base

    def _on_end(self, _: object) -> None:
        """The garbage collector may call it anywhere, also while the pool's lock is held: so it takes none."""
        self.release()

    def release(self) -> None:
        """Nothing uses the memory any more."""
        free = self._free
        if free is not None:
            free.append(self)

    @property
    def is_held(self) -> bool:
        """Whether arrays use it."""
        return self._base is not None and self._base() is not None

    @property
    def is_dropped(self) -> bool:
        """Whether it may not be used for another batch."""
        return self._free is None

    def drop(self) -> None:
        """It will not be used for another batch. Arrays that use it stay valid. Idempotent."""
        self._free = None
        self._region.close()
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.cancel()


@final
class LandingPool:
    """The regions of one client. Thread-safe.

    Args:
        lend: lends a region to the server, until the returned future is cancelled or fails.
        enabled: False makes all batches travel through the socket.
    """

    def __init__(self, lend: Callable[[MemoryAddress], Future[None]], *, enabled: bool) -> None:
        self._lend = lend
        self._sizes: dict[tuple[str, int], int] = {}  # bytes that a batch took, by table and batch size
        self._enabled = enabled and is_supported()
        self._reset()
        _pools.add(self)

    def _reset(self) -> None:
        self.lock = threading.Lock()  # never held while a lease is begun or ended, whose callbacks take it
        self._free: deque[_PooledRegion] = deque()
        self._regions: set[_PooledRegion] = set()

    def call(
        self, sample: Callable[..., SampleBatch], table: str, batch_size: int, timeout_s: float | None
    ) -> SampleBatch:
        """Calls `sample(table, batch_size, timeout_s, address)` with the address of a landing, or None."""
        landing = self._begin(table, batch_size)
        try:
            batch = sample(table, batch_size, timeout_s, landing and landing.address)
        except BaseException as error:
            if landing is not None:
                landing.end(error)
            raise
        if landing is not None:
            landing.end(None)
        self._learn(table, batch_size, batch)
        return batch

    def submit(
        self, sample: Callable[..., Future[SampleBatch]], table: str, batch_size: int, timeout_s: float | None
    ) -> Future[SampleBatch]:
        """Like `call`, for a function that returns a future."""
        landing = self._begin(table, batch_size)
        try:
            future = sample(table, batch_size, timeout_s, landing and landing.address)
        except BaseException as error:
            if landing is not None:
                landing.end(error)
            raise
        future.add_done_callback(functools.partial(self._ended, landing, table, batch_size))
        return future

    def _ended(self, landing: Landing | None, table: str, batch_size: int, future: Future[SampleBatch]) -> None:
        error = CancelledError() if future.cancelled() else future.exception()
        if landing is not None:
            landing.end(error)
        if error is None:
            self._learn(table, batch_size, future.result())

    def _begin(self, table: str, batch_size: int) -> Landing | None:
        """A place for a batch; None when it is not known to be large, or there is no room."""
        size = self._sizes.get((table, batch_size), 0)
        if size < _BATCH_BYTES or not self._enabled:
            return None
        with self.lock:
            region = self._take(size)
        if region is None:
            region = self._make(size)
        return None if region is None else Landing(self, region)

    def _learn(self, table: str, batch_size: int, batch: SampleBatch) -> None:
        """Remembers how much room such a batch takes."""
        leaves = [leaf.nbytes for group in batch.groups for leaf in group.leaves if leaf.nbytes >= _LEAF_BYTES]
        if len(self._sizes) >= _MOST_SIZES:
            self._sizes.clear()
        self._sizes[table, batch_size] = sum(map(_aligned, leaves))

    def _take(self, size: int) -> _PooledRegion | None:
        """A free region that is large enough, the one used last if it can be: its memory is in the cache."""
        unfit: list[_PooledRegion] = []
        found: _PooledRegion | None = None
        while self._free and found is None:
            region = self._free.pop()
            if size + FIRST_BYTE > region.size:
                unfit.append(region)
            elif not region.is_dropped:
                found = region
        self._free.extendleft(unfit)
        return found

    def _make(self, size: int) -> _PooledRegion | None:
        with self.lock:
            smaller = self._make_room(size)
            try:
                region = None if self._is_full(size) else Region(size)
            except OSError:
                region = None
            if region is not None:
                made = _PooledRegion(region, self._free)
                self._regions.add(made)
        for each in smaller:
            each.drop()
        if region is None:
            return None
        try:
            lease = made.lease = self._lend(region.address)
        except CourierError:
            self.retire(made)
            return None
        lease.add_done_callback(functools.partial(self._lease_ended, made))
        return made

    def _make_room(self, size: int) -> list[_PooledRegion]:
        """Takes free regions out of the pool, which are too small, until one of `size` has room."""
        out = []
        while self._free and self._is_full(size):
            out.append(self._free.popleft())
            self._regions.discard(out[-1])
        return out

    def _is_full(self, size: int) -> bool:
        held = sum(region.size for region in self._regions)
        return len(self._regions) >= _MOST_REGIONS or held + size > _MOST_BYTES

    def _lease_ended(self, region: _PooledRegion, lease: Future[None]) -> None:
        error = None if lease.cancelled() else lease.exception()
        if error is not None and not isinstance(error, ConnectionBroken | CourierClosed):
            self._enabled = False  # this server cannot open our memory
        self.retire(region)

    def hold(self, region: _PooledRegion) -> npt.NDArray[np.uint8]:
        """The memory of a region, which is free again when the array and all its views are gone."""
        with self.lock:  # not during a fork
            return region.hold()

    def retire(self, region: _PooledRegion) -> None:
        """Uses a region for no other batch. Arrays over it stay valid."""
        with self.lock:
            self._regions.discard(region)
        region.drop()

    def close(self) -> None:
        """Lets go of all regions."""
        self._enabled = False
        with self.lock:
            regions, self._regions = self._regions, set()
            self._free.clear()
        for region in regions:
            region.drop()

    def prepare_fork(self) -> list[_PooledRegion]:
        """Takes the regions that arrays use out of the pool, for good: the child may keep these arrays for ever."""
        held = [region for region in self._regions if region.is_held]
        self._regions.difference_update(held)
        return held

    def forget(self) -> None:
        """In a forked child: the regions are the parent's."""
        regions = self._regions
        self._reset()
        for region in regions:
            region.lease = None
            region.drop()


_pools: weakref.WeakSet[LandingPool] = weakref.WeakSet()
_forking: list[tuple[LandingPool, list[_PooledRegion]]] = []


def _before_fork() -> None:
    for pool in list(_pools):
        pool.lock.acquire()  # released in the parent; the child makes itself new ones
        _forking.append((pool, pool.prepare_fork()))


def _after_fork_in_parent() -> None:
    pools = list(_forking)
    _forking.clear()
    for pool, _ in pools:
        pool.lock.release()
    for _, regions in pools:
        for region in regions:
            region.drop()


def _after_fork_in_child() -> None:
    _landings.clear()
    for pool, regions in _forking:
        pool.forget()
        for region in regions:
            region.lease = None
            region.drop()
    _forking.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
