"""A client's regions of shared memory, each lent to the server for as long as the connection lasts.

What lies in a region is never written to while somebody uses it: it is given back when the last array over it is gone,
and used no more when that cannot be known - after a call whose end is unknown, after a fork with arrays in use.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import final

import numpy as np
import numpy.typing as npt

from topology.errors import ConnectionBroken, CourierClosed, CourierError
from topology.nodes.courier.calls import CallFuture
from topology.nodes.replay.shared_memory import FIRST_BYTE, MemoryAddress, Region, is_supported

__all__ = ["PooledRegion", "RegionPool"]

_MOST_REGIONS = 64
_MOST_BYTES = 256 << 20
_SLACK_BYTES = 64 << 10


@final
class PooledRegion:
    """A region and what becomes of it when its arrays are gone."""

    def __init__(self, region: Region, free: deque[PooledRegion]) -> None:
        self._region = region
        self._free: deque[PooledRegion] | None = free
        self._base: weakref.ref[npt.NDArray[np.uint8]] | None = None
        self.size = region.size
        self.address = region.address
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
class RegionPool:
    """The regions of one client, bounded in number and bytes. Thread-safe.

    Args:
        lend: lends a region to the server, until the returned future is cancelled or fails.
        enabled: False for a pool that never has a region.
    """

    def __init__(self, lend: Callable[[MemoryAddress], Future[None]], *, enabled: bool) -> None:
        self._lend = lend
        self._enabled = enabled and is_supported()
        self._reset()
        _pools.add(self)

    def _reset(self) -> None:
        self.lock = threading.Lock()  # never held while a lease is begun or ended, whose callbacks take it
        self._free: deque[PooledRegion] = deque()
        self._regions: set[PooledRegion] = set()

    def take(self, size: int) -> PooledRegion | None:
        """A region with room for `size` bytes of content; None when there is none to be had.

        Whoever takes it gives it back: by `release`, by `retire`, or by letting go of what `hold` gave.
        """
        if not self._enabled:
            return None
        with self.lock:
            region = self._find(size)
        return self._make(size) if region is None else region

    def _find(self, size: int) -> PooledRegion | None:
        """A free region of about that size, the one used last if it can be: its memory is in the cache."""
        unfit: list[PooledRegion] = []
        found: PooledRegion | None = None
        while self._free and found is None:
            region = self._free.pop()
            if not size <= region.size - FIRST_BYTE <= 2 * size + _SLACK_BYTES:
                unfit.append(region)
            elif not region.is_dropped:
                found = region
        self._free.extendleft(unfit)
        return found

    def _make(self, size: int) -> PooledRegion | None:
        with self.lock:
            misfits = self._make_room(size)
            try:
                region = None if self._is_full(size) else Region(size)
            except OSError:
                region = None
            if region is not None:
                made = PooledRegion(region, self._free)
                self._regions.add(made)
        for each in misfits:
            each.drop()
        if region is None:
            return None
        try:
            lease = made.lease = self._lend(region.address)
        except CourierError:
            self.retire(made)
            return None
        if isinstance(lease, CallFuture):
            # Like a callback, but nobody has to read replies for its sake as long as nobody asks for one.
            lease.ignore()
            lease.afterwards(lambda _, error: self._lease_ended(made, error))
        else:
            lease.add_done_callback(lambda _: self._lease_ended(made, None if lease.cancelled() else lease.exception()))
        return made

    def _make_room(self, size: int) -> list[PooledRegion]:
        """Takes free regions out of the pool, which do not fit, until one of `size` has room."""
        out = []
        while self._free and self._is_full(size):
            out.append(self._free.popleft())
            self._regions.discard(out[-1])
        return out

    def _is_full(self, size: int) -> bool:
        held = sum(region.size for region in self._regions)
        return len(self._regions) >= _MOST_REGIONS or held + size > _MOST_BYTES

    def _lease_ended(self, region: PooledRegion, error: BaseException | None) -> None:
        harmless = ConnectionBroken | CourierClosed | CancelledError
        if error is not None and not isinstance(error, harmless):
            self._enabled = False  # this server cannot open our memory
        self.retire(region)

    def hold(self, region: PooledRegion) -> npt.NDArray[np.uint8]:
        """The memory of a region, which is free again when the array and all its views are gone."""
        with self.lock:  # not during a fork
            return region.hold()

    def retire(self, region: PooledRegion) -> None:
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

    def prepare_fork(self) -> list[PooledRegion]:
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


_pools: weakref.WeakSet[RegionPool] = weakref.WeakSet()
_forking: list[tuple[RegionPool, list[PooledRegion]]] = []


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
    for pool, regions in _forking:
        pool.forget()
        for region in regions:
            region.lease = None
            region.drop()
    _forking.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
