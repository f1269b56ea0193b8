"""What learners need of replay."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, final

import numpy as np
from numpy.typing import NDArray

from topology.agents.core.config import ReplayConfig
from topology.agents.core.stopping import follow
from topology.context import try_get_context
from topology.errors import ConnectionBroken, ProgramStopped
from topology.nodes.replay import Client, ReplaySample, rate_limiters
from topology.nodes.replay.dataset import BatchIterator

__all__ = ["Batch", "BatchSource", "ReplayBatches", "make_rate_limiter"]


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
        """The next batch; blocks until there is one. Raises `ProgramStopped` when there will be none."""

    def update_priorities(self, keys: NDArray[np.uint64], priorities: NDArray[np.float64]) -> None:
        """Sets the priorities of items; those that have left the table are ignored."""

    def close(self) -> None:
        """Gives back what was requested ahead."""


@final
class ReplayBatches:
    """Batches of one table of a replay server. One that dies and is started again is asked again.

    Args:
        client: of the server; closed with this.
        table: name of the table.
        batch_size: items of a batch.
    """

    def __init__(self, client: Client, *, table: str, batch_size: int) -> None:
        self._client = client
        self._table = table
        self._batch_size = batch_size
        context = try_get_context()
        self._stop = None if context is None else context.stop
        self._batches = self._request()

    def _request(self) -> BatchIterator:
        # None is drawn ahead: a learner asks for a batch while it still learns from the one before.
        return self._client.batches(self._table, self._batch_size, prefetch=0)

    def sample(self) -> Batch:
        try:
            sample = follow(self._next, self._stop, what="the replay service")
        except StopIteration:
            raise ProgramStopped(f"the batches of the table {self._table!r} were closed") from None
        info = sample.info
        return Batch(info.key, info.probability, int(info.table_size[-1]), sample.data)

    def _next(self) -> ReplaySample:
        try:
            return next(self._batches)
        except ConnectionBroken:
            self._batches = self._request()  # an iterator that has failed gives nothing more
            raise

    def update_priorities(self, keys: NDArray[np.uint64], priorities: NDArray[np.float64]) -> None:
        def update() -> None:
            self._client.update_priorities(self._table, keys, priorities)

        follow(update, self._stop, what="the replay service")

    def close(self) -> None:
        self._batches.close()
        self._client.close()


def make_rate_limiter(config: ReplayConfig, *, lockstep: bool) -> rate_limiters.RateLimiter:
    """Keeps actors and learner at the ratio of `config`.

    Args:
        config: settings.
        lockstep: one thread inserts and samples in turn and keeps the ratio itself, so that nobody must ever wait.
    """
    if config.samples_per_insert is None or lockstep:
        return rate_limiters.MinSize(config.min_replay_size)
    return rate_limiters.SampleToInsertRatio(config.samples_per_insert, config.min_replay_size, config.error_buffer)
