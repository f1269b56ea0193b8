"""From rollouts to train batches: in the driver, or in aggregators between the workers and the driver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, final

from topology.nodes.flow.actors import Actor, Broadcasts, results_of
from topology.nodes.flow.batch import Batch
from topology.nodes.flow.checks import check_whole, setting
from topology.nodes.flow.events import Waker
from topology.nodes.flow.failures import Crew, WorkerFailures
from topology.nodes.flow.inspection import inspecting
from topology.nodes.flow.items import Item
from topology.nodes.flow.local_iterator import LocalIterator
from topology.nodes.flow.metrics import (
    AGENT_STEPS_SAMPLED_COUNTER,
    STEPS_SAMPLED_COUNTER,
    get_shared_metrics,
)
from topology.nodes.flow.replay_ops import MixInReplay
from topology.nodes.flow.rollout_ops import ConcatBatches, ParallelRollouts
from topology.nodes.flow.shards import ParallelIteratorWorker, Reply, StreamSpec
from topology.nodes.flow.sources import from_actors
from topology.nodes.flow.stages import Operator
from topology.nodes.flow.worker_set import SampledSteps, Told, WorkerSet

__all__ = [
    "AGGREGATOR_OPTIONS",
    "Aggregation",
    "Aggregator",
    "gather_experiences_directly",
    "gather_experiences_tree_aggregation",
]

_logger = logging.getLogger(__name__)

AGGREGATOR_OPTIONS = {"thread_pool_size": 4}
"""Options of a server of an `Aggregator`: weights reach it while it waits for a batch."""

_SET_UP_S = 120.0  # that a program may take to start the aggregators


@final
@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """How fragments become train batches.

    Attributes:
        train_batch_size: steps of a batch, at least.
        num_async: requests of each worker under way.
        replay_slots: fragments kept to be mixed in.
        replay_proportion: old fragments for each new one.
    """

    train_batch_size: int
    num_async: int = 2
    replay_slots: int = 0
    replay_proportion: float = 0.0

    def __post_init__(self) -> None:
        check_whole("train_batch_size", self.train_batch_size, 1)
        check_whole("max_sample_requests_in_flight_per_worker", self.num_async, 1)
        check_whole("replay_buffer_num_slots", self.replay_slots, 0)
        if not self.replay_proportion >= 0:
            raise ValueError(f"replay_proportion must be at least 0, got {self.replay_proportion}")

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Aggregation:
        """By the settings of a plan.

        They are `train_batch_size`, `max_sample_requests_in_flight_per_worker`, `replay_buffer_num_slots` and
        `replay_proportion`.
        """
        return cls(
            train_batch_size=setting(config, "train_batch_size"),
            num_async=config.get("max_sample_requests_in_flight_per_worker", 2),
            replay_slots=config.get("replay_buffer_num_slots", 0),
            replay_proportion=config.get("replay_proportion", 0.0),
        )

    def apply(self, fragments: LocalIterator[Batch]) -> LocalIterator[Batch]:
        """Train batches of fragments."""
        if self.replay_proportion > 0:
            fragments = fragments.combine(MixInReplay(self.replay_slots, self.replay_proportion))
        return fragments.combine(ConcatBatches(self.train_batch_size))


def gather_experiences_directly(workers: WorkerSet, config: Mapping[str, Any]) -> LocalIterator[Batch]:
    """Train batches, joined in the driver from fragments as they come. See `Aggregation.of` for the settings."""
    aggregation = Aggregation.of(config)
    return aggregation.apply(ParallelRollouts(workers, mode="async", num_async=aggregation.num_async))


def gather_experiences_tree_aggregation(workers: WorkerSet, config: Mapping[str, Any]) -> LocalIterator[Batch]:
    """Train batches, joined by `num_aggregation_workers` aggregators, to which the workers are dealt in turn.

    The source of a batch is its aggregator, which passes weights on to its workers.

    Raises:
        ValueError: more aggregators than workers, or none.
    """
    count, players = setting(config, "num_aggregation_workers"), workers.remote_workers()
    if not 1 <= count <= len(players):
        raise ValueError(f"num_aggregation_workers={count}: at least 1, and at most the {len(players)} remote workers")
    if count > len(players) / 2:
        _logger.warning("%d aggregators for %d workers: each has little to join", count, len(players))
    workers.sync_weights()
    aggregators = workers.take_aggregators(count)

    def set_up(aggregator: Actor) -> Future[Any]:
        mine = players[aggregators.index(aggregator) :: count]
        return aggregator.submit("set_up", Aggregation.of(config), mine, workers.crew.failures)

    def prepare(aggregator: Actor) -> None:
        set_up(aggregator)
        workers.bring_up_to_date(aggregator)

    if not inspecting():
        results_of([set_up(aggregator) for aggregator in aggregators], _SET_UP_S)
    crew = Crew(aggregators, failures=workers.crew.failures, prepare=prepare, on_notes=workers.take_notes)
    batches = from_actors((), f"aggregators[{count}]", crew=crew).gather_async(num_async=1, prefetch=True)
    return batches.for_each(_CountAggregated(workers))


@final
class _CountAggregated:
    """Counts the steps that were played for the batches, not those replayed in them."""

    flow_name = "record_steps_sampled"

    def __init__(self, workers: WorkerSet) -> None:
        self._workers = workers

    def __call__(self, batch: Batch) -> Batch:
        steps = self._workers.take_sampled()
        counters = get_shared_metrics().counters
        counters[STEPS_SAMPLED_COUNTER] += steps.env_steps
        counters[AGENT_STEPS_SAMPLED_COUNTER] += steps.agent_steps
        return batch


class Aggregator(ParallelIteratorWorker):
    """Joins the fragments of some workers into train batches, and passes weights on to them.

    Serve it with `AGGREGATOR_OPTIONS`.
    """

    def __init__(self) -> None:
        super().__init__(self._join)
        self._turn = threading.Lock()
        self._is_set_up = threading.Event()
        self._aggregation: Aggregation | None = None
        self._crew = Crew([])
        self._newest: tuple[Any, Any, int] | None = None
        self._notes: list[Any] = []
        self._broadcasts = Broadcasts()

    def set_up(self, aggregation: Aggregation, workers: list[Actor], failures: WorkerFailures) -> None:
        """Says what to do, and for whom. Call it before items are asked for; again for another plan."""
        with self._turn:
            self._close_clients()
            self._aggregation = aggregation
            self._crew = Crew(workers, failures=failures, prepare=self._prepare, on_notes=self._keep_notes)
            self._items = None
            self._specs.clear()
            self._streams.clear()
        self._is_set_up.set()

    def set_weights(self, weights: Any, global_vars: Any = None, version: int | None = None) -> None:
        """Takes newer weights for the workers; each gets them with its next fragment."""
        self._newest = weights, global_vars, -1 if version is None else version

    def next_items(self, stream: str, spec: StreamSpec | None = None, batch_ms: float = 0) -> Reply:
        if not self._is_set_up.wait(_SET_UP_S):
            raise TimeoutError(f"the aggregator was asked for batches, but not set up within {_SET_UP_S:g} s")
        with self._turn:
            return super().next_items(stream, spec, batch_ms)

    def _keep_notes(self, worker: Actor, notes: Sequence[Any]) -> None:
        self._notes += [Told(worker, note) for note in notes]

    def drain_notes(self) -> tuple[Any, ...]:
        notes = tuple(self._notes)
        self._notes.clear()
        return notes

    def _join(self) -> Iterator[Batch]:
        assert self._aggregation is not None  # next_items has waited for it
        fragments = from_actors((), "workers", crew=self._crew).gather_async(num_async=self._aggregation.num_async)
        return _Joined(self, self._aggregation.apply(fragments.for_each(_Relay(self))))

    def _next(self, stream: str) -> tuple[Any, int] | None:
        taken = super()._next(stream)
        return None if taken is None else (taken[0], self.weights_version)  # of its fragments: not known before

    def _drop_all(self) -> None:
        super()._drop_all()
        self._close_clients()

    def _close_clients(self) -> None:
        for actor in self._crew.actors:
            actor.client.close()

    def _prepare(self, actor: Actor) -> None:
        if self._newest is not None:
            self._send([actor], self._newest)

    def relay(self, item: Item) -> None:
        """Sends the newest weights to the workers of an item that have older ones, and notes the item's steps."""
        self._notes.append(SampledSteps(item.value.env_steps(), item.value.agent_steps()))
        newest = self._newest
        if newest is not None:
            self._send([o.actor for o in item.origins if o.weights_version < newest[2]], newest)

    def _send(self, actors: list[Actor], newest: tuple[Any, Any, int]) -> None:
        self._broadcasts.raise_errors()
        self._broadcasts.send(actors, "set_weights", *newest)


@final
class _Joined(Iterator[Batch]):
    """Train batches. Not a generator, which would be over after the first worker's failure."""

    def __init__(self, aggregator: Aggregator, batches: LocalIterator[Batch]) -> None:
        self._aggregator = aggregator
        self._batches = batches

    def __next__(self) -> Batch:
        item = self._batches.next_item()
        if item is None:
            raise StopIteration
        self._aggregator.weights_version = min((origin.weights_version for origin in item.origins), default=-1)
        batch: Batch = item.value
        return batch


@final
class _Relay(Operator):
    def __init__(self, aggregator: Aggregator) -> None:
        self._aggregator = aggregator

    def process(self, item: Item, waker: Waker) -> Any:  # noqa: ARG002 - never waits
        self._aggregator.relay(item)
        return item.value
