"""Operators that send a learner's weights to those who play."""

from __future__ import annotations

from typing import Any, final

from topology.nodes.flow.actors import Actor, ActorGroup
from topology.nodes.flow.checks import check_whole
from topology.nodes.flow.events import Waker
from topology.nodes.flow.items import Item
from topology.nodes.flow.learner import LearnerThread
from topology.nodes.flow.metrics import (
    NUM_WEIGHT_BROADCASTS,
    NUM_WEIGHT_SYNCS,
    MetricsContext,
    get_shared_metrics,
)
from topology.nodes.flow.stages import Operator
from topology.nodes.flow.train_ops import global_vars_of
from topology.nodes.flow.worker_set import WorkerSet

__all__ = ["BroadcastUpdateLearnerWeights", "UpdateWorkerWeights"]


class _Sender:
    """Sends the learner's weights to workers that have older ones. They are serialised once for each version."""

    def __init__(self, workers: WorkerSet) -> None:
        self._workers = workers
        self._sent: dict[Actor, int] = {}
        self._weights: Any = None
        self.version = workers.local_worker().weights_version  # what the workers were sent when the plan was built

    def forget(self) -> None:
        """The plan was taken back: every worker was sent the weights of now."""
        self._sent, self._weights = {}, None
        self.version = self._workers.local_worker().weights_version

    def refresh(self) -> None:
        self._weights, self.version = self._workers.local_worker().versioned_weights()

    def send(self, actors: tuple[Actor, ...], metrics: MetricsContext) -> None:
        if self._weights is None:
            return
        behind = [actor for actor in actors if self._sent.get(actor, -1) < self.version]
        if behind:
            self._workers.raise_errors()
            self._workers.send_weights(behind, self._weights, global_vars_of(metrics), self.version)
            self._sent |= dict.fromkeys(behind, self.version)


@final
class BroadcastUpdateLearnerWeights(Operator):
    """Sends the learner's weights to every worker whose experience is in a batch.

    Takes pairs of `zip_with_source_actor`. New weights are taken from the learner when `broadcast_interval` batches
    have passed since the last time, and it has made an update. A worker that has them already is not sent them again.

    Args:
        learner_thread: whose updates count.
        workers: whose local worker has the weights.
        broadcast_interval: batches.
    """

    def __init__(self, learner_thread: LearnerThread, workers: WorkerSet, broadcast_interval: int = 1) -> None:
        self._learner = learner_thread
        self._workers = workers
        self._interval = check_whole("broadcast_interval", broadcast_interval, 1)
        self._since = 0
        self._sender = _Sender(workers)

    @property
    def receivers(self) -> list[Actor]:
        """Who may be sent weights: for the plan's graph."""
        return self._workers.aggregators or self._workers.remote_workers()

    def process(self, item: Item, waker: Waker) -> Any:  # noqa: ARG002 - never waits
        source, _ = _pair(item.value, "BroadcastUpdateLearnerWeights")
        metrics = get_shared_metrics()
        self._since += 1
        if self._since >= self._interval and self._learner.weights_version > self._sender.version:
            self._sender.refresh()
            self._since = 0
            self._workers.local_worker().set_global_vars(global_vars_of(metrics))
            metrics.counters[NUM_WEIGHT_BROADCASTS] += 1
        oldest = min((origin.weights_version for origin in item.origins), default=0)
        metrics.info["policy_lag"] = self._learner.weights_version - oldest
        self._sender.send(_members(source), metrics)
        return item.value

    def get_state(self) -> int:
        """Batches since weights were last taken from the learner."""
        return self._since

    def set_state(self, state: int) -> None:
        """Takes `get_state` back; to be called when all workers were sent the learner's weights."""
        self._since = state
        self._sender.forget()


@final
class UpdateWorkerWeights:
    """Sends a worker the learner's weights once it has played `max_weight_sync_delay` steps with those it has.

    Takes pairs of `zip_with_source_actor`.

    Args:
        learner_thread: whose updates count.
        workers: whose local worker has the weights.
        max_weight_sync_delay: environment steps of one worker.
    """

    def __init__(self, learner_thread: LearnerThread, workers: WorkerSet, max_weight_sync_delay: int = 400) -> None:
        self._learner = learner_thread
        self._workers = workers
        self._delay = check_whole("max_weight_sync_delay", max_weight_sync_delay, 0)
        self._steps: dict[Actor, int] = {}
        self._sender = _Sender(workers)

    @property
    def receivers(self) -> list[Actor]:
        """Who may be sent weights: for the plan's graph."""
        return self._workers.remote_workers()

    def __call__(self, pair: tuple[Actor | ActorGroup, Any]) -> Any:
        """Sends if it is time; gives the pair back."""
        source, batch = _pair(pair, "UpdateWorkerWeights")
        metrics = get_shared_metrics()
        for actor in _members(source):
            self._steps[actor] = self._steps.get(actor, 0) + batch.env_steps() // len(source.members)
            if self._steps[actor] < self._delay:
                continue
            if self._learner.weights_version > self._sender.version:
                self._sender.refresh()
            self._steps[actor] = 0
            self._sender.send((actor,), metrics)
            metrics.counters[NUM_WEIGHT_SYNCS] += 1
        return pair

    def get_state(self) -> None:
        """Nothing: all workers are sent weights when a plan takes up its state."""

    def set_state(self, state: None) -> None:  # noqa: ARG002 - there is none
        """To be called when all workers were sent the learner's weights."""
        self._steps.clear()
        self._sender.forget()


def _pair(value: Any, who: str) -> tuple[Actor | ActorGroup, Any]:
    if not isinstance(value, tuple) or len(value) != 2 or not isinstance(value[0], Actor | ActorGroup):
        raise ValueError(
            f"{who} takes pairs of a worker and a batch, as zip_with_source_actor() makes them, got "
            f"{type(value).__name__}"
        )
    return value


def _members(source: Actor | ActorGroup) -> tuple[Actor, ...]:
    return source.members
