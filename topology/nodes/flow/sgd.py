"""Learning from one batch: at once, or in passes over minibatches, on one device or several."""

from __future__ import annotations

import itertools
from typing import Any, Protocol, runtime_checkable

import numpy as np

from topology.nodes.flow.batch import Batch, SampleBatch
from topology.nodes.flow.gradients import average_gradients
from topology.nodes.flow.worker import Policy, RolloutWorker

__all__ = ["LearnsInPasses", "learn"]


@runtime_checkable
class LearnsInPasses(Protocol):
    """A policy that goes through minibatches itself, say in one compiled function."""

    def learn_in_passes(
        self, batch: SampleBatch, *, num_passes: int, minibatch_size: int, num_devices: int, seed: int
    ) -> dict[str, Any]:
        """Several passes over shuffled minibatches; what there is to tell of the last one."""


def learn(
    worker: RolloutWorker,
    batch: Batch,
    *,
    policies: list[str] | None,
    num_passes: int,
    minibatch_size: int,
    num_devices: int,
    random: np.random.Generator,
) -> dict[str, Any]:
    """Learns from a batch; statistics by policy id.

    Args:
        worker: whose policies learn.
        batch: of one policy or several.
        policies: ids of those that learn; None for all.
        num_passes: over the batch.
        minibatch_size: rows of an update; 0 for all.
        num_devices: parts of a minibatch that are worked on at a time.
        random: shuffles.
    """
    with worker.lock:
        info = {}
        for name, part in worker.parts_to_train(batch, policies).items():
            policy = worker.get_policy(name)
            if num_passes == 1 and not minibatch_size and num_devices == 1:
                info[name] = policy.learn_on_batch(part)
            else:
                size = minibatch_size or part.count
                info[name] = _learn_in_passes(policy, part, num_passes, size, num_devices, random)
        worker.weights_version += 1
        return info


def _learn_in_passes(
    policy: Policy, batch: SampleBatch, num_passes: int, size: int, num_devices: int, random: np.random.Generator
) -> dict[str, Any]:
    if isinstance(policy, LearnsInPasses):
        seed = int(random.integers(2**31))
        return policy.learn_in_passes(
            batch, num_passes=num_passes, minibatch_size=size, num_devices=num_devices, seed=seed
        )
    info: dict[str, Any] = {}
    for _ in range(num_passes):
        for minibatch in batch.minibatches(size, random):
            info = (
                policy.learn_on_batch(minibatch)
                if num_devices == 1
                else _learn_in_parts(policy, minibatch, num_devices)
            )
    return info


def _learn_in_parts(policy: Policy, batch: SampleBatch, num_devices: int) -> dict[str, Any]:
    """An update with the mean of the gradients of `num_devices` parts: that of the whole batch."""
    bounds = np.linspace(0, batch.count, num_devices + 1).astype(int)
    parts = [batch.slice(first, last) for first, last in itertools.pairwise(bounds)]
    parts = [part for part in parts if part.count]
    computed = [policy.compute_gradients(part) for part in parts]
    counts = [part.count for part in parts]
    policy.apply_gradients(
        average_gradients([(gradients, count) for (gradients, _), count in zip(computed, counts, strict=True)])
    )
    return computed[-1][1]
