"""What learners need of replay, whatever it is made of."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Batch", "BatchSource"]


class Batch(NamedTuple):
    """Sampled items.

    Attributes:
        keys: of the items, uint64 `[B]`.
        probabilities: with which they were drawn, `[B]`.
        table_size: items in the table then.
        data: what was written, with a leading axis `B`.
    """

    keys: NDArray[np.uint64]
    probabilities: NDArray[np.float64]
    table_size: int
    data: Any


class BatchSource(Protocol):
    """Gives batches and takes new priorities for their items."""

    def sample(self) -> Batch:
        """The next batch; blocks until there is one."""

    def update_priorities(self, keys: NDArray[np.uint64], priorities: NDArray[np.float64]) -> None:
        """Sets the priorities of items; those that have left the table are ignored."""
