"""The workers of a plan: the local one, which learns, and remote ones, which play."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, final

from topology.nodes.courier.client import Client
from topology.nodes.flow.actors import Actor, Broadcasts, as_actors, host, results_of
from topology.nodes.flow.failures import Crew, WorkerFailures
from topology.nodes.flow.inspection import Inert, inspecting
from topology.nodes.flow.learner import learners_of
from topology.nodes.flow.shards import ParallelIteratorWorker
from topology.nodes.flow.worker import Episode, RolloutWorker

__all__ = ["SampledSteps", "Told", "WorkerSet"]

_logger = logging.getLogger(__name__)

AnyWorker = Actor | Client | ParallelIteratorWorker


class Told(NamedTuple):
    """A note, and the worker that it came from; None for the local one."""

    worker: Actor | None
    note: Any


class SampledSteps(NamedTuple):
    """Fresh steps behind a reply that holds more, or other, steps: what an aggregator notes."""

    env_steps: int
    agent_steps: int


@final
class WorkerSet:
    """The workers of a plan, and what is shared by its operators. For the thread that drives the plan.

    Args:
        local_worker: learns; also plays where there are no remote workers.
        remote_workers: actors or courier clients of `RolloutWorker`s; such objects themselves are served here.
        aggregators: of `Aggregator`s, for `gather_experiences_tree_aggregation`.
        replay_actors: of `ReplayActor`s, for plans that ask for them.
        failures: what to do when a remote worker fails.

    Raises:
        TypeError: a worker is none.

    Attributes:
        stopped: whether `stop` was called: there is no way back.
    """

    def __init__(
        self,
        local_worker: RolloutWorker,
        remote_workers: Sequence[AnyWorker] = (),
        *,
        aggregators: Sequence[AnyWorker] = (),
        replay_actors: Sequence[AnyWorker] = (),
        failures: WorkerFailures | None = None,
    ) -> None:
        if not isinstance(local_worker, RolloutWorker | Inert):
            raise TypeError(f"the local worker of a plan is a RolloutWorker, got {type(local_worker).__name__}")
        self._local = local_worker
        self.crew = Crew(
            as_actors(remote_workers), failures=failures, prepare=self.bring_up_to_date, on_notes=self.take_notes
        )
        self.aggregators = as_actors(aggregators)
        replay_crew = Crew(as_actors(replay_actors), failures=failures)
        for actor in replay_crew.actors:
            actor.crew = replay_crew
        self.replay_actors = replay_crew.actors
        self.episodes: deque[tuple[Actor | None, Episode]] = deque(maxlen=10_000)
        self.stopped = False
        self._sampled = [0, 0]
        self._broadcasts = Broadcasts()

    def local_worker(self) -> RolloutWorker:
        """The worker that learns, in the driver's process."""
        return self._local

    def remote_workers(self) -> list[Actor]:
        """The workers that play and were not left out."""
        return self.crew.alive

    @property
    def num_healthy_workers(self) -> int:
        """Remote workers that were not left out."""
        return len(self.crew.alive)

    # --- weights -----------------------------------------------------------------------------------------------------

    def sync_weights(
        self,
        policies: list[str] | None = None,
        *,
        to: Iterable[Actor] | None = None,
        global_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Sends the local worker's weights, serialised once. Returns at once: they act on the next request.

        Args:
            policies: ids of those to send; None for all.
            to: the workers; None for all remote ones.
            global_vars: how far the run is, for remote workers and the local one.

        Raises:
            Exception: what an earlier call raised in a worker.
        """
        if inspecting():
            return
        self.raise_errors()
        actors = self.remote_workers() if to is None else [a for a in to if not self.crew.is_gone(a)]
        if global_vars:
            self._local.set_global_vars(global_vars)
        if actors:
            weights, version = self._local.versioned_weights(policies)
            self.send_weights(actors, weights, global_vars, version)

    def send_weights(
        self, actors: Iterable[Actor], weights: Any, global_vars: Mapping[str, Any] | None, version: int
    ) -> None:
        """Sends these weights. Returns at once."""
        self._broadcasts.send(actors, "set_weights", weights, global_vars, version)

    def bring_up_to_date(self, actor: Actor) -> None:
        """Sends what a worker that was started again must know. Returns at once."""
        weights, version = self._local.versioned_weights()
        self.send_weights([actor], weights, self._local.get_global_vars(), version)

    def raise_errors(self) -> None:
        """Raises what a call that nobody waits for has raised."""
        self._broadcasts.raise_errors()

    # --- what workers tell -------------------------------------------------------------------------------------------

    def take_notes(self, worker: Actor | None, notes: Sequence[Any]) -> None:
        """Keeps what workers tell beside their items: episodes that ended, and steps behind aggregated batches."""
        for note in notes:
            if isinstance(note, SampledSteps):
                self._sampled[0] += note.env_steps
                self._sampled[1] += note.agent_steps
            else:
                self.episodes.append(note if isinstance(note, Told) else (worker, note))

    def take_sampled(self) -> SampledSteps:
        """The steps that aggregators have told of since the last call."""
        steps = SampledSteps(*self._sampled)
        self._sampled = [0, 0]
        return steps

    # --- all of them -------------------------------------------------------------------------------------------------

    def foreach_worker(self, method: str, *args: Any, timeout_s: float = 60.0) -> list[Any]:
        """Calls a method of the local worker and of every remote one; their results, in that order. Blocks.

        Raises:
            Exception: what a worker raised. TimeoutError: there was no answer in `timeout_s` seconds.
        """
        futures = [actor.submit(method, *args) for actor in self.remote_workers()]
        return [getattr(self._local, method)(*args), *results_of(futures, timeout_s)]

    def take_aggregators(self, count: int) -> list[Actor]:
        """`count` aggregators: nodes where there are some, else served in this process.

        Raises:
            ValueError: there are nodes, but fewer.
        """
        if self.aggregators or inspecting():
            if len(self.aggregators) < count:
                raise ValueError(f"num_aggregation_workers={count}, but the plan has {len(self.aggregators)} of them")
            return self.aggregators[:count]
        from topology.nodes.flow.aggregation import AGGREGATOR_OPTIONS, Aggregator

        _logger.info("%d aggregators are served in the driver's process: the program has no nodes for them", count)
        self.aggregators = [host(Aggregator(), f"aggregator {i}", AGGREGATOR_OPTIONS) for i in range(count)]
        return self.aggregators

    def stop(self) -> None:
        """Ends the learners of the local worker, its environments, and workers that are served here. Idempotent."""
        self.stopped = True
        for learner in learners_of(self._local):
            learner.stop()
        self._local.stop()
        for actor in (*self.crew.actors, *self.aggregators, *self.replay_actors):
            actor.end()
