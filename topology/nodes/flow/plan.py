"""A plan as a value: how to build it, with which settings; and one that was built and runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, final

from topology.nodes.flow.checks import check_callable
from topology.nodes.flow.events import PlanClosed
from topology.nodes.flow.inspection import Inert, inspection
from topology.nodes.flow.local_iterator import LocalIterator
from topology.nodes.flow.metric_ops import BodyFound, bodies_only
from topology.nodes.flow.metrics import MetricsContext
from topology.nodes.flow.naming import name_of_function
from topology.nodes.flow.states import get_state, set_state
from topology.nodes.flow.worker_set import WorkerSet

if TYPE_CHECKING:
    from topology.graph import ProgramGraph
    from topology.program import Program

__all__ = ["ExecutionPlan", "Plan", "RunningPlan"]

ExecutionPlan = Callable[..., LocalIterator[Any]]
"""From a `WorkerSet` and a config to the plan's results."""


@final
@dataclass(frozen=True)
class Plan:
    """An execution plan that is not built yet.

    Attributes:
        execution_plan: function of a `WorkerSet` and the config; builds the plan and starts nothing but learners.
        config: its settings.
    """

    execution_plan: ExecutionPlan
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_callable("Plan()", self.execution_plan)

    def build(self, workers: WorkerSet) -> RunningPlan:
        """Builds it with these workers.

        Raises:
            PlanClosed: they were ended with an earlier plan.
            TypeError: the plan's function gives something else than a `LocalIterator`.
        """
        if workers.stopped:
            raise PlanClosed("these workers were ended when an earlier plan was closed: make a new WorkerSet")
        return RunningPlan(workers, self._call(workers))

    def _call(self, workers: WorkerSet) -> LocalIterator[Any]:
        results = self.execution_plan(workers, self.config)
        if not isinstance(results, LocalIterator):
            raise TypeError(
                f"{name_of_function(self.execution_plan)} returned {type(results).__name__}, not a LocalIterator: it "
                "is to return the plan's results, as StandardMetricsReporting gives them; gather what is a "
                "ParallelIterator"
            )
        return results

    def body(self, workers: WorkerSet) -> LocalIterator[Any]:
        """The plan without its reports, to be a part of another one: what it gives `StandardMetricsReporting`.

        Raises:
            ValueError: it has no such reports, and can be used as it is.
        """
        with bodies_only():
            try:
                self.execution_plan(workers, self.config)
            except BodyFound as found:
                return found.body
        raise ValueError("this plan has no StandardMetricsReporting: call its function, and use what that returns")

    def graph(
        self,
        program: Program | None = None,
        *,
        num_workers: int = 2,
        num_aggregators: int | None = None,
        num_replay_actors: int = 0,
    ) -> ProgramGraph:
        """The operators, where each runs, and who asks whom for items. Starts nothing.

        Args:
            program: one that has a node of this plan: the operators are drawn into its graph. None for the plan alone,
                with so many workers as the other arguments say.
            num_workers: rollout workers.
            num_aggregators: as the config says by default.
            num_replay_actors: nodes with replay buffers.

        Raises:
            LookupError: the program has no node of this plan, or several.
        """
        from topology.nodes.flow.graph import draw, find_plan

        if program is not None:
            return draw(self, *find_plan(program.graph()))
        aggregators = self.config.get("num_aggregation_workers", 0) if num_aggregators is None else num_aggregators
        counts = {"worker": num_workers, "aggregator": aggregators, "replay": num_replay_actors}
        return draw(self, None, {kind: [f"{kind}/{i}" for i in range(count)] for kind, count in counts.items()})

    def sketch(self, names: Mapping[str, list[str]]) -> LocalIterator[Any]:
        """The plan, built to be looked at, with workers of these names by kind."""
        from topology.nodes.courier.client import Client
        from topology.nodes.flow.actors import Actor

        def actors(kind: str) -> list[Actor]:
            return [Actor(Client(f"memory:sketch of {name}"), name) for name in names.get(kind, ())]

        local: Any = Inert()
        with inspection():
            workers = WorkerSet(
                local, actors("worker"), aggregators=actors("aggregator"), replay_actors=actors("replay")
            )
            return self._call(workers)


@final
class RunningPlan:
    """A plan that was built. `next()` gives its results; so does iterating over it.

    Between two calls the driver rests: learners and workers go on with what is under way, no further. A node that runs
    the plan calls without a pause.

    Args:
        workers: whom it works with.
        results: what it gives.
    """

    def __init__(self, workers: WorkerSet, results: LocalIterator[Any]) -> None:
        self.workers = workers
        self.results = results

    @property
    def metrics(self) -> MetricsContext:
        """Its counters."""
        return self.results.shared_metrics.get()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self.results)

    def train(self) -> Any:
        """The next result; blocks until it is there.

        Raises:
            RuntimeError: the plan has ended.
            PlanClosed: `close` was called.
            Exception: what an operator, a learner or a worker raised. The plan can be asked again.
        """
        item = self.results.next_item()
        if item is None:
            raise RuntimeError("the plan has ended: none of its flows has anything more")
        return item.value

    def get_state(self, *, replay: bool = True) -> dict[str, Any]:
        """All that the plan remembers, for a checkpoint; see `topology.nodes.flow.states`.

        For the thread that drives the plan. Learners pause meanwhile, after the batch that they learn from.

        Args:
            replay: whether replay buffers in the driver's process are part of it.
        """
        return get_state(self.results.stage, self.metrics, self.workers.local_worker(), replay=replay)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Takes `get_state` back, and sends the weights to all workers.

        Raises:
            ProgramError: it is the state of another plan.
        """
        local = self.workers.local_worker()
        set_state(state, self.results.stage, self.metrics, local)
        receivers = [*self.workers.remote_workers(), *self.workers.aggregators]
        self.workers.sync_weights(to=receivers, global_vars=local.get_global_vars())

    def close(self) -> None:
        """Ends learners and the local worker's environments. Remote workers are their own nodes. Idempotent.

        A thread that waits for a result is told with `PlanClosed`.
        """
        self.results.close()
        self.workers.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
