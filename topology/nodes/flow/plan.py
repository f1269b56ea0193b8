"""A plan as a value: how to build it, with which settings; and one that was built and runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, final

from topology.nodes.flow.inspection import Inert, inspection
from topology.nodes.flow.local_iterator import LocalIterator
from topology.nodes.flow.metrics import MetricsContext
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

    def build(self, workers: WorkerSet) -> RunningPlan:
        """Builds it with these workers."""
        return RunningPlan(workers, self.execution_plan(workers, self.config))

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
            return self.execution_plan(workers, self.config)


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
            Exception: what an operator, a learner or a worker raised. The plan can be asked again.
        """
        item = self.results.next_item()
        if item is None:
            raise RuntimeError("the plan has ended: none of its flows has anything more")
        return item.value

    def get_state(self) -> dict[str, Any]:
        """Counters and the local worker's state, for a checkpoint."""
        return {"metrics": self.metrics.save(), "worker": self.workers.local_worker().get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Takes `get_state` back, and sends the weights to all workers."""
        self.metrics.restore(state["metrics"])
        self.workers.local_worker().set_state(state["worker"])
        self.workers.sync_weights(global_vars=self.workers.local_worker().get_global_vars())

    def close(self) -> None:
        """Ends learners and the local worker's environments. Remote workers are their own nodes. Idempotent."""
        self.workers.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
