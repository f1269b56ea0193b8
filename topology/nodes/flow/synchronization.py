"""How old the weights may be that made what a plan learns from: SYNC, ASYNC, and the operator under both."""

from __future__ import annotations

from typing import Any, Literal, final

from topology.nodes.flow.actors import Actor
from topology.nodes.flow.events import Waker
from topology.nodes.flow.items import Item
from topology.nodes.flow.metrics import get_shared_metrics
from topology.nodes.flow.rollout_ops import ParallelRollouts
from topology.nodes.flow.stages import Operator
from topology.nodes.flow.train_ops import global_vars_of
from topology.nodes.flow.worker_set import WorkerSet

__all__ = ["STALENESS", "STEPS_DROPPED_COUNTER", "BoundStaleness", "SynchronizedRollouts"]

STALENESS = "staleness"
"""In a result's `info`: by how many updates the weights that made the latest batch were behind when it came."""

STEPS_DROPPED_COUNTER = "num_steps_dropped"
"""Steps that were dropped because those weights were too old."""


@final
class BoundStaleness(Operator):
    """Lets batches through that were made by weights young enough. Use with `combine`.

    What is dropped is counted, and who made it is sent the newest weights, so that what comes next is young: a worker
    that missed an update cannot keep a plan from going on.

    Args:
        workers: whose local worker has the newest weights.
        max_staleness: most updates that the oldest weights of a batch may be behind; None only measures.

    Raises:
        ValueError: a bound below 0.
    """

    def __init__(self, workers: WorkerSet, max_staleness: int | None) -> None:
        if max_staleness is not None and max_staleness < 0:
            raise ValueError(f"max_staleness must be at least 0, or None for no bound, got {max_staleness}")
        self._workers = workers
        self._most = max_staleness

    @property
    def receivers(self) -> list[Actor]:
        """Who may be sent weights: for the plan's graph."""
        return self._workers.remote_workers()

    def process(self, item: Item, waker: Waker) -> Any:  # noqa: ARG002 - never waits
        metrics = get_shared_metrics()
        newest = self._workers.local_worker().weights_version
        behind = {origin.actor: newest - origin.weights_version for origin in item.origins}
        metrics.info[STALENESS] = staleness = max(behind.values(), default=0)
        if self._most is None or staleness <= self._most:
            return [item.value]
        metrics.counters[STEPS_DROPPED_COUNTER] += item.value.env_steps()
        late = [actor for actor, updates in behind.items() if updates > self._most]
        self._workers.sync_weights(to=late, global_vars=global_vars_of(metrics))
        return []


def SynchronizedRollouts(  # noqa: N802 - as ParallelRollouts
    workers: WorkerSet,
    synchronization: Literal["sync", "async"],
    *,
    max_staleness: int | None = None,
    num_async: int = 1,
) -> Any:
    """Experience of the workers, as `ParallelRollouts` gives it, with a word on the weights that made it.

    Args:
        workers: who plays.
        synchronization: "sync": rounds of all workers, each made by exactly the newest weights. "async": fragments as
            they come, whose staleness is measured, and bounded if asked.
        max_staleness: of "async"; see `BoundStaleness`.
        num_async: of "async": requests of each worker under way.

    Returns:
        A `LocalIterator` of batches.

    Raises:
        ValueError: another synchronization, or a bound in "sync", where it is 0.
    """
    if synchronization not in ("sync", "async"):
        raise ValueError(f"synchronization must be 'sync' or 'async', got {synchronization!r}")
    if synchronization == "sync":
        if max_staleness is not None:
            raise ValueError(f"max_staleness={max_staleness}: in 'sync' nothing is stale")
        return ParallelRollouts(workers, mode="bulk_sync").combine(BoundStaleness(workers, 0))
    rollouts = ParallelRollouts(workers, mode="async", num_async=num_async)
    return rollouts.combine(BoundStaleness(workers, max_staleness))
