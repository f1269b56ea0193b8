"""Operators that learn, with the local worker, in the driver's thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from topology.nodes.flow.actors import Actor
from topology.nodes.flow.batch import Batch, check_batch
from topology.nodes.flow.checks import check_whole
from topology.nodes.flow.events import Waker
from topology.nodes.flow.gradients import average_gradients
from topology.nodes.flow.items import Item
from topology.nodes.flow.metrics import (
    AGENT_STEPS_TRAINED_COUNTER,
    LAST_TARGET_UPDATE_TS,
    LEARNER_INFO,
    NUM_TARGET_UPDATES,
    STEPS_SAMPLED_COUNTER,
    STEPS_TRAINED_COUNTER,
    STEPS_TRAINED_THIS_ITER_COUNTER,
    MetricsContext,
    get_shared_metrics,
)
from topology.nodes.flow.sgd import learn
from topology.nodes.flow.stages import Operator
from topology.nodes.flow.worker_set import WorkerSet

__all__ = [
    "ApplyGradients",
    "AverageGradients",
    "ComputeGradients",
    "MultiGPUTrainOneStep",
    "TrainOneStep",
    "TrainTFMultiGPU",
    "UpdateTargetNetwork",
    "global_vars_of",
    "record_steps_trained",
]


def global_vars_of(metrics: MetricsContext) -> dict[str, Any]:
    """What workers are told of how far the run is."""
    return {"timestep": metrics.counters[STEPS_SAMPLED_COUNTER]}


def ids_of(policies: Sequence[str]) -> list[str] | None:
    """A list of ids; None for all.

    Raises:
        ValueError: one id, not a list of them.
    """
    if isinstance(policies, str):
        raise ValueError(f"policies must be a list of ids, got {policies!r}")  # noqa: TRY004 - its content is wrong
    return list(policies) or None


def _count_trained(metrics: MetricsContext, env_steps: int, agent_steps: int | None = None) -> None:
    metrics.counters[STEPS_TRAINED_THIS_ITER_COUNTER] = env_steps
    metrics.counters[STEPS_TRAINED_COUNTER] += env_steps
    metrics.counters[AGENT_STEPS_TRAINED_COUNTER] += env_steps if agent_steps is None else agent_steps


def record_steps_trained(item: Sequence[Any]) -> Any:
    """Counts what a learner's thread has learned from: `item` is a `LearnerOutput`, or begins with the step count."""
    count = int(item[0])
    _count_trained(get_shared_metrics(), count, item[2] if len(item) > 2 else None)
    return item


@final
class TrainOneStep:
    """Learns from each batch, and sends the weights to all workers. Gives `(batch, statistics by policy id)`.

    Args:
        workers: who learns, and who is sent the weights.
        policies: ids of those that learn and are sent; none for all.
        num_sgd_iter: how often the batch is gone through, in minibatches of shuffled rows.
        sgd_minibatch_size: rows of a minibatch; 0 for the whole batch in one update.
        num_devices: parts of each minibatch that are worked on at a time.
        seed: of the shuffling.

    Raises:
        ValueError: numbers that are no whole ones, or too small.
    """

    def __init__(
        self,
        workers: WorkerSet,
        policies: Sequence[str] = (),
        num_sgd_iter: int = 1,
        sgd_minibatch_size: int = 0,
        *,
        num_devices: int = 1,
        seed: int | None = 0,
    ) -> None:
        check_whole("num_sgd_iter", num_sgd_iter, 1)
        check_whole("sgd_minibatch_size", sgd_minibatch_size, 0)
        check_whole("num_devices", num_devices, 1)
        if sgd_minibatch_size and sgd_minibatch_size < num_devices:
            raise ValueError(
                f"sgd_minibatch_size={sgd_minibatch_size} is below one row for each of {num_devices} devices"
            )
        self._workers = workers
        self._policies = ids_of(policies)
        self._passes = num_sgd_iter
        self._minibatch = sgd_minibatch_size
        self._devices = num_devices
        self._random = np.random.default_rng(seed)

    @property
    def receivers(self) -> list[Actor]:
        """Who may be sent weights: for the plan's graph."""
        return self._workers.remote_workers()

    def __call__(self, batch: Batch) -> tuple[Batch, dict[str, Any]]:
        """Learns from the batch."""
        check_batch(batch, "TrainOneStep")
        metrics = get_shared_metrics()
        with metrics.timers["learn"] as timer:
            info = learn(
                self._workers.local_worker(),
                batch,
                policies=self._policies,
                num_passes=self._passes,
                minibatch_size=self._minibatch,
                num_devices=self._devices,
                random=self._random,
            )
        timer.push_units_processed(batch.env_steps())
        _count_trained(metrics, batch.env_steps(), batch.agent_steps())
        metrics.info[LEARNER_INFO] = info
        with metrics.timers["update"]:
            self._workers.sync_weights(self._policies, global_vars=global_vars_of(metrics))
        return batch, info

    def get_state(self) -> Any:
        """Where the shuffling is."""
        return self._random.bit_generator.state

    def set_state(self, state: Any) -> None:
        """Takes `get_state` back."""
        self._random.bit_generator.state = state


def MultiGPUTrainOneStep(  # noqa: N802 - its name
    *,
    workers: WorkerSet,
    sgd_minibatch_size: int,
    num_sgd_iter: int = 1,
    num_gpus: int = 1,
    policies: Sequence[str] = (),
    shuffle_sequences: bool = True,
    **_sizes: Any,
) -> TrainOneStep:
    """`TrainOneStep` whose minibatches are spread over `num_gpus` devices. The result is that of one device.

    Args:
        workers: see `TrainOneStep`.
        sgd_minibatch_size: rows of a minibatch, over all devices.
        num_sgd_iter: see `TrainOneStep`.
        num_gpus: devices; 0 counts as 1.
        policies: see `TrainOneStep`.
        shuffle_sequences: rows are always shuffled; accepted for programs that say so.
        **_sizes: such as `rollout_fragment_length`, which this form does not need.
    """
    del shuffle_sequences, _sizes
    return TrainOneStep(workers, policies, num_sgd_iter, sgd_minibatch_size, num_devices=max(1, num_gpus))


def TrainTFMultiGPU(workers: WorkerSet, **settings: Any) -> TrainOneStep:  # noqa: N802 - its name
    """The earlier name of `MultiGPUTrainOneStep`."""
    return MultiGPUTrainOneStep(workers=workers, **settings)


@final
class ComputeGradients:
    """Gradients of each batch by the local worker, whose weights stay: `(gradients, environment steps)`."""

    def __init__(self, workers: WorkerSet) -> None:
        self._workers = workers

    def __call__(self, batch: Batch) -> tuple[Any, int]:
        """Computes the gradients."""
        check_batch(batch, "ComputeGradients")
        metrics = get_shared_metrics()
        with metrics.timers["compute_grads"]:
            gradients, info = self._workers.local_worker().compute_gradients(batch)
        metrics.info[LEARNER_INFO] = info
        return gradients, batch.env_steps()


@final
class AverageGradients:
    """The mean of several gradients, each counted by its steps: a list of `(gradients, steps)` to one such pair.

    So it is the gradient of the mean loss over all steps. Gradients by policy id are averaged for each policy, over
    those that have it.
    """

    def __call__(self, gradients: Sequence[tuple[Any, int]]) -> tuple[Any, int]:
        """Averages.

        Raises:
            ValueError: no list of such pairs, gradients of different structure, or of no steps at all.
        """
        if not isinstance(gradients, Sequence) or not all(isinstance(g, tuple) and len(g) == 2 for g in gradients):
            raise ValueError(
                "AverageGradients takes lists of (gradients, steps), such as ComputeGradients and batch() make, got "
                f"{type(gradients).__name__}"
            )
        return average_gradients(gradients), sum(steps for _, steps in gradients)


@final
class ApplyGradients(Operator):
    """Applies `(gradients, steps)` on the local worker, and sends the weights.

    Args:
        workers: who learns.
        policies: ids of those that are sent; none for all.
        update_all: whether the weights go to all workers, or only to those the gradients came from.
    """

    def __init__(self, workers: WorkerSet, policies: Sequence[str] = (), update_all: bool = True) -> None:
        self._workers = workers
        self._policies = ids_of(policies)
        self._update_all = update_all

    @property
    def receivers(self) -> list[Actor]:
        """Who may be sent weights: for the plan's graph."""
        return self._workers.remote_workers()

    def process(self, item: Item, waker: Waker) -> None:  # noqa: ARG002 - never waits
        if not isinstance(item.value, tuple) or len(item.value) != 2:
            raise ValueError(f"ApplyGradients takes (gradients, steps), got {type(item.value).__name__}")
        gradients, steps = item.value
        metrics = get_shared_metrics()
        with metrics.timers["apply_grad"] as timer:
            self._workers.local_worker().apply_gradients(gradients)
        timer.push_units_processed(steps)
        _count_trained(metrics, steps)
        sources = None
        if not self._update_all:
            sources = list(dict.fromkeys(origin.actor for origin in item.origins))
            if not sources:
                raise ValueError("ApplyGradients(update_all=False): the gradients come from no worker")
        with metrics.timers["update"]:
            self._workers.sync_weights(self._policies, to=sources, global_vars=global_vars_of(metrics))


@final
class UpdateTargetNetwork:
    """Copies weights to the target networks, each time more than `target_update_freq` steps have passed.

    Args:
        workers: whose local worker has the networks.
        target_update_freq: steps between two copies.
        by_steps_trained: whether steps trained count, or steps sampled.
        policies: ids; none for all that learn.
    """

    def __init__(
        self,
        workers: WorkerSet,
        target_update_freq: int,
        by_steps_trained: bool = False,
        policies: Sequence[str] = (),
    ) -> None:
        self._workers = workers
        self._period = check_whole("target_update_freq", target_update_freq, 0)
        self._counter = STEPS_TRAINED_COUNTER if by_steps_trained else STEPS_SAMPLED_COUNTER
        self._policies = ids_of(policies)
        self._last = 0  # its own: several such operators in one plan keep their own time

    def __call__(self, item: Any) -> Any:
        """Copies if it is time; gives the item back."""
        metrics = get_shared_metrics()
        now = metrics.counters[self._counter]
        self._last = min(self._last, now)  # a plan that was restored counts from less
        if now - self._last > self._period:
            self._workers.local_worker().update_target(self._policies)
            self._last = metrics.counters[LAST_TARGET_UPDATE_TS] = now
            metrics.counters[NUM_TARGET_UPDATES] += 1
        return item

    def get_state(self) -> int:
        """The steps at the last copy."""
        return self._last

    def set_state(self, state: int) -> None:
        """Takes `get_state` back."""
        self._last = state
