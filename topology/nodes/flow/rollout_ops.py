"""Operators that bring experience."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal, final

import numpy as np

from topology.clock import SYSTEM_CLOCK, Clock
from topology.nodes.flow.batch import Batch, MultiAgentBatch, SampleBatch, check_batch, concat_samples
from topology.nodes.flow.checks import check_seconds, check_whole
from topology.nodes.flow.events import Signal, Waker
from topology.nodes.flow.items import Item
from topology.nodes.flow.local_iterator import LocalIterator
from topology.nodes.flow.metrics import (
    AGENT_STEPS_SAMPLED_COUNTER,
    LEARNER_INFO,
    STEPS_SAMPLED_COUNTER,
    WindowTimer,
    get_shared_metrics,
)
from topology.nodes.flow.parallel_iterator import ParallelIterator
from topology.nodes.flow.shards import get_global_worker
from topology.nodes.flow.sources import from_actors
from topology.nodes.flow.stages import Operator, Outcome, Stage
from topology.nodes.flow.worker_set import WorkerSet

__all__ = [
    "AsyncGradients",
    "ConcatBatches",
    "ParallelRollouts",
    "SelectExperiences",
    "StandardizeFields",
    "rollouts_of",
]


_logger = logging.getLogger(__name__)


def rollouts_of(workers: WorkerSet) -> ParallelIterator[Batch]:
    """Fragments of the remote workers, not gathered yet."""
    return from_actors((), f"ParallelRollouts[{len(workers.crew.alive)}]", crew=workers.crew)


@final
class _LocalRollouts(Stage):
    name = "ParallelRollouts(local)"

    def __init__(self, workers: WorkerSet) -> None:
        self._workers = workers

    def poll(self, waker: Waker) -> Outcome:
        waker.check()
        worker = self._workers.local_worker()
        batch = worker.sample()
        self._workers.take_notes(None, worker.drain_notes())
        return Item(batch)


def _count_sampled(batch: Batch) -> Batch:
    check_batch(batch, "ParallelRollouts")
    counters = get_shared_metrics().counters
    counters[STEPS_SAMPLED_COUNTER] += batch.count
    counters[AGENT_STEPS_SAMPLED_COUNTER] += batch.agent_steps()
    return batch


def ParallelRollouts(  # noqa: N802 - its name
    workers: WorkerSet,
    *,
    mode: Literal["bulk_sync", "async", "raw"] = "bulk_sync",
    num_async: int = 1,
    straggler_s: float | None = None,
) -> Any:
    """Experience of the workers, who are sent the local weights now.

    Without remote workers it is what the local worker plays, in the driver's thread.

    Args:
        workers: who plays.
        mode: "bulk_sync": batches with one fragment of each worker. A round is asked for when its batch is: what was
            sent to the workers before, such as weights, acts on it. "async": fragments as they come. "raw": a
            `ParallelIterator` of fragments, not counted.
        num_async: requests of each worker under way, in mode "async".
        straggler_s: seconds after the first fragment of a round at which the round goes on without those that are late,
            in mode "bulk_sync"; they are part of the next one.

    Returns:
        A `LocalIterator` of batches; of mode "raw" a `ParallelIterator`.

    Raises:
        ValueError: another mode, `num_async` below 1, or `straggler_s` below 0.
    """
    check_whole("num_async", num_async, 1)
    check_seconds("straggler_s", straggler_s)
    if mode not in ("bulk_sync", "async", "raw"):
        raise ValueError(f"mode must be 'bulk_sync', 'async' or 'raw', got {mode!r}")
    workers.sync_weights()
    if not workers.remote_workers():
        return LocalIterator[Any](_LocalRollouts(workers)).for_each(_count_sampled)
    rollouts = rollouts_of(workers)
    if mode == "bulk_sync":
        return rollouts.batch_across_shards(straggler_s).for_each(concat_samples).for_each(_count_sampled)
    if mode == "async":
        return rollouts.gather_async(num_async=num_async).for_each(_count_sampled)
    return rollouts


@final
class ConcatBatches:
    """Joins batches until there are enough steps. Use with `combine`. Batches are not split.

    Args:
        min_batch_size: steps of a joined batch, at least.
        count_steps_by: "env_steps", or "agent_steps" for those of all policies.

    Raises:
        ValueError: another way to count, or a size below 1.
    """

    def __init__(
        self,
        min_batch_size: int,
        count_steps_by: Literal["env_steps", "agent_steps"] = "env_steps",
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if count_steps_by not in ("env_steps", "agent_steps"):
            raise ValueError(f"count_steps_by must be 'env_steps' or 'agent_steps', got {count_steps_by!r}")
        self.min_batch_size = check_whole("min_batch_size", min_batch_size, 1)
        self._by_agents = count_steps_by == "agent_steps"
        self._clock = clock
        self._buffer: list[Batch] = []
        self._count = 0
        self._began: float | None = None
        self._said_so = False

    def _on_fetch_start(self) -> None:
        if self._began is None:
            self._began = self._clock.monotonic()

    def __call__(self, batch: Batch) -> list[Batch]:
        """The joined batch in a list, or an empty list."""
        if check_batch(batch, "ConcatBatches").agent_steps() == 0:
            return []
        self._buffer.append(batch)
        self._count += self._steps(batch)
        if self._count < self.min_batch_size:
            return []
        timer: WindowTimer = get_shared_metrics().timers["sample"]
        timer.push(self._clock.monotonic() - (self._began or self._clock.monotonic()))
        timer.push_units_processed(self._count)
        if self._count > 2 * self.min_batch_size and not self._said_so:
            self._said_so = True
            _logger.info("batches of %d steps, where at least %d are wanted", self._count, self.min_batch_size)
        # Emptied first: batches that cannot be joined are given up, or no later ones could be joined either.
        parts, self._buffer, self._count, self._began = self._buffer, [], 0, None
        return [concat_samples(parts)]

    def _steps(self, batch: Batch) -> int:
        return batch.agent_steps() if self._by_agents else batch.env_steps()

    def get_state(self) -> list[Batch]:
        """The batches that wait for more."""
        return list(self._buffer)

    def set_state(self, state: Sequence[Batch]) -> None:
        """Takes `get_state` back."""
        self._buffer, self._began = list(state), None
        self._count = sum(map(self._steps, state))


@final
class SelectExperiences:
    """Keeps the experience of some policies. A `SampleBatch` passes as it is.

    Args:
        policy_ids: a list of ids.

    Raises:
        ValueError: no list.
    """

    def __init__(self, policy_ids: list[str]) -> None:
        if not isinstance(policy_ids, list):
            raise ValueError(f"SelectExperiences takes a list of policy ids, got {policy_ids!r}")  # noqa: TRY004
        self._policy_ids = policy_ids

    def __call__(self, batch: Batch) -> Batch:
        """The batch with those policies only."""
        check_batch(batch, "SelectExperiences")
        return batch.select(self._policy_ids) if isinstance(batch, MultiAgentBatch) else batch


@final
class StandardizeFields:
    """Gives columns mean 0 and variance 1, in each policy's batch. The batch that came is not changed.

    Args:
        fields: names of the columns.

    Raises:
        ValueError: one name, not a list of them.
    """

    def __init__(self, fields: Sequence[str]) -> None:
        if isinstance(fields, str):
            raise ValueError(f"StandardizeFields takes a list of columns, got {fields!r}")  # noqa: TRY004 - its content
        self._fields = list(fields)

    def __call__(self, batch: Batch) -> Batch:
        """The batch with those columns standardized."""
        check_batch(batch, "StandardizeFields")
        if isinstance(batch, SampleBatch):
            return self._standardize(batch)
        parts = {name: self._standardize(part) for name, part in batch.policy_batches.items()}
        return MultiAgentBatch(parts, batch.count)

    def _standardize(self, batch: SampleBatch) -> SampleBatch:
        if not batch.count:
            return batch  # it has no columns either, perhaps
        missing = [name for name in self._fields if name not in batch]
        if missing:
            raise KeyError(f"StandardizeFields: the batch has no columns {missing}; it has {sorted(batch)}")
        changed = {}
        for name in self._fields:
            column = np.asarray(batch[name], np.float32)
            changed[name] = (column - column.mean()) / max(1e-4, float(column.std()))
        return SampleBatch(batch, **changed)


def _sample_and_compute(batch: Batch) -> tuple[Any, int, int]:
    return get_global_worker().compute_gradients(batch), batch.env_steps(), batch.agent_steps()


@final
class _CountGradients(Operator):
    """Unpacks what workers computed, and counts it."""

    flow_name = "record_metrics"

    def __init__(self) -> None:
        self._began: float | None = None

    def _on_fetch_start(self) -> None:
        self._began = SYSTEM_CLOCK.monotonic()

    def process(self, item: Item, waker: Waker) -> Any | Signal:  # noqa: ARG002 - never waits
        (gradients, info), env_steps, agent_steps = item.value
        metrics = get_shared_metrics()
        metrics.counters[STEPS_SAMPLED_COUNTER] += env_steps
        metrics.counters[AGENT_STEPS_SAMPLED_COUNTER] += agent_steps
        metrics.info[LEARNER_INFO] = info
        if self._began is not None:
            metrics.timers["grad_wait"].push(SYSTEM_CLOCK.monotonic() - self._began)
        return gradients, env_steps


def AsyncGradients(workers: WorkerSet) -> LocalIterator[tuple[Any, int]]:  # noqa: N802 - its name
    """Gradients that the workers compute of what they play, as they come, with the number of steps behind each.

    The next request to a worker goes out when the next gradients are asked for: weights sent to it before act on it.

    Raises:
        ValueError: there are no remote workers.
    """
    if not workers.remote_workers():
        raise ValueError("AsyncGradients needs remote workers, which compute the gradients")
    workers.sync_weights()
    gradients = rollouts_of(workers).for_each(_sample_and_compute)
    return gradients.gather_async(num_async=1, prefetch=False).for_each(_CountGradients())
