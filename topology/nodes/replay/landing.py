"""Large batches to a client on the same machine: the server copies straight into memory that the client lends it.

With a request for a large batch a client on a unix socket names a free region of shared memory; the server gathers the
large leaves there, and sends where they are instead of their bytes. The reply unpickles to arrays over the region. When
the last view of them is gone, the region is free again: until then nobody writes to it.

Wherever a region is missing - all are held, the server cannot open them, there is no memory left, the batch has grown -
the bytes travel through the socket, as they always do between machines.
"""

from __future__ import annotations

import functools
import itertools
import os
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any, NamedTuple, TypeVar, final

import numpy as np
import numpy.typing as npt

from topology.errors import ReplayError
from topology.nodes.courier.begun import BegunCall
from topology.nodes.courier.calls import CallFuture
from topology.nodes.replay.messages import SampleBatch
from topology.nodes.replay.region_pool import PooledRegion, RegionPool
from topology.nodes.replay.shared_memory import MemoryAddress, aligned, view

__all__ = ["LEAF_BYTES", "Landing", "LandingAddress", "Landings", "Placement"]

LEAF_BYTES = 16 << 10
"""Smaller leaves travel with the message, and do not hold a region when they are kept."""

_FutureT = TypeVar("_FutureT", "Future[SampleBatch]", BegunCall)

_BATCH_BYTES = 64 << 10  # smaller batches are as fast through the socket
_MOST_SIZES = 256


class _Size(NamedTuple):
    """What a batch took: bytes of the leaves that may land, and of all."""

    room: int = 0
    total: int = _BATCH_BYTES  # of one that is not known


class LandingAddress(NamedTuple):
    """What a request says: the region that it may land in, and the number of the landing."""

    memory: MemoryAddress
    ticket: int


class Placement(NamedTuple):
    """Where a leaf was put. Unpickles to an array, in the client that made the request."""

    ticket: int
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, tuple(self)


@final
class Landing:
    """One request's use of a region, from the request until the last array of the reply is gone."""

    def __init__(self, pool: RegionPool, region: PooledRegion) -> None:
        self._pool = pool
        self._region = region
        self._ticket = next(_tickets)
        self._base: weakref.ref[npt.NDArray[np.uint8]] | None = None
        self.address = LandingAddress(region.address, self._ticket)
        _landings[self._ticket] = self

    def place(self, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """The array that the server put there."""
        base = None if self._base is None else self._base()
        if base is None:
            base = self._pool.hold(self._region)
            self._base = weakref.ref(base)
        return view(base, offset, dtype, shape)

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
class Landings:
    """What a client does about its batches. Thread-safe.

    Args:
        pool: of the client.
    """

    def __init__(self, pool: RegionPool) -> None:
        self._pool = pool
        self._sizes: dict[tuple[str, int], _Size] = {}  # of the latest batch, by table and batch size

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

    def submit(self, sample: Callable[..., _FutureT], table: str, batch_size: int, timeout_s: float | None) -> _FutureT:
        """Like `call`, for a function that returns a future."""
        landing = self._begin(table, batch_size)
        try:
            future = sample(table, batch_size, timeout_s, landing and landing.address)
        except BaseException as error:
            if landing is not None:
                landing.end(error)
            raise
        try:
            if isinstance(future, BegunCall) or (
                isinstance(future, CallFuture) and (landing is not None or self._is_small(table, batch_size))
            ):
                # The reply is short, for the bytes are few, or in the region already: whoever asks for the batch reads
                # it itself, as it takes longer to be handed it by another thread.
                future.afterwards(functools.partial(self._ended, landing, table, batch_size))
            else:
                future.add_done_callback(functools.partial(self._done, landing, table, batch_size))
        except BaseException:
            future.cancel()  # an interrupt: nobody will ask for it
            raise
        return future

    def _done(self, landing: Landing | None, table: str, batch_size: int, future: Future[SampleBatch]) -> None:
        error = CancelledError() if future.cancelled() else future.exception()
        self._ended(landing, table, batch_size, None if error is not None else future.result(), error)

    def _ended(
        self,
        landing: Landing | None,
        table: str,
        batch_size: int,
        batch: SampleBatch | None,
        error: BaseException | None,
    ) -> None:
        if landing is not None:
            landing.end(error)
        if batch is not None and error is None:
            self._learn(table, batch_size, batch)

    def _begin(self, table: str, batch_size: int) -> Landing | None:
        """A place for a batch; None when it is not known to be large, or there is no room."""
        room = self._sizes.get((table, batch_size), _Size()).room
        region = self._pool.take(room) if room >= _BATCH_BYTES else None
        return None if region is None else Landing(self._pool, region)

    def _is_small(self, table: str, batch_size: int) -> bool:
        """Whether such a batch is known to be small."""
        return self._sizes.get((table, batch_size), _Size()).total < _BATCH_BYTES

    def _learn(self, table: str, batch_size: int, batch: SampleBatch) -> None:
        """Remembers how much room such a batch takes."""
        sizes = [leaf.nbytes for group in batch.groups for leaf in group.leaves]
        if len(self._sizes) >= _MOST_SIZES:
            self._sizes.clear()
        room = sum(aligned(size) for size in sizes if size >= LEAF_BYTES)
        self._sizes[table, batch_size] = _Size(room, sum(sizes))


os.register_at_fork(after_in_child=_landings.clear)
