"""The server's side of shared memory: regions lent by clients, batches put into them, steps taken out of them."""

from __future__ import annotations

import contextlib
import math
from concurrent.futures import Future
from typing import Any, final

import numpy as np
import numpy.typing as npt

from topology.nodes.replay.landing import LEAF_BYTES, LandingAddress, Placement
from topology.nodes.replay.messages import LentArray, SampleBatch, WriteBatch, WriteItem
from topology.nodes.replay.shared_memory import FIRST_BYTE, MemoryAddress, aligned, open_region, view

__all__ = ["LentMemory", "Placer"]


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
        if address is None:
            return None
        memory = self._find(address.memory)
        return None if memory is None else Placer(memory, address.ticket)

    def resolve(self, batch: WriteBatch | WriteItem) -> WriteBatch | WriteItem:
        """The batch with arrays where it tells of lent memory, as far as that is known here."""
        if isinstance(batch, WriteItem):
            return batch._replace(values=self._open(batch.values)) if isinstance(batch.values, LentArray) else batch
        if not any(isinstance(cells.values, LentArray) for cells in batch.cells):
            return batch
        return batch._replace(cells=tuple([cells._replace(values=self._open(cells.values)) for cells in batch.cells]))

    def _open(self, values: npt.NDArray[Any] | LentArray) -> npt.NDArray[Any] | LentArray:
        if not isinstance(values, LentArray):
            return values
        memory = self._find(values.memory)
        return values if memory is None else view(memory, values.offset, values.dtype, values.shape)

    def _find(self, address: MemoryAddress) -> npt.NDArray[np.uint8] | None:
        """The memory there, also when it comes before the loan, which another thread takes; None when it has gone."""
        memory = self._memory.get(address.token)
        if memory is None:
            with contextlib.suppress(OSError):
                memory = open_region(address)
        return memory

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
        self._placements: dict[int, Placement] = {}

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Like `np.empty`; in the region if the array is large and there is room."""
        size = dtype.itemsize * math.prod(shape)
        if dtype.hasobject or size < LEAF_BYTES or self._end + size > self._memory.size:
            return np.empty(shape, dtype)
        array = view(self._memory, self._end, dtype, shape)
        self._placements[id(array)] = Placement(self._ticket, self._end, dtype, shape)
        self._end = aligned(self._end + size)
        return array

    def replace(self, batch: SampleBatch) -> SampleBatch:
        """The batch as it is sent, with a placement instead of each leaf in the region."""
        groups = [group._replace(leaves=[self._placed(leaf) for leaf in group.leaves]) for group in batch.groups]
        return batch._replace(groups=groups)

    def _placed(self, leaf: npt.NDArray[Any]) -> Any:
        return self._placements.get(id(leaf), leaf)
