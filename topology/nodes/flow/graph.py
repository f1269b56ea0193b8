"""The picture of a plan: its operators as parts of the nodes that they run in, in the graph of the program."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, final

from topology.graph import GraphEdge, GraphNode, ProgramGraph
from topology.graph_values import structure_of
from topology.nodes.flow.applying import Apply
from topology.nodes.flow.gather import BulkRounds, GatherAsync
from topology.nodes.flow.learner import learner_of
from topology.nodes.flow.naming import name_of_function
from topology.nodes.flow.stages import Stage

if TYPE_CHECKING:
    from topology.nodes.flow.plan import Plan

__all__ = ["draw", "find_plan"]

_KINDS = {"workers": "worker", "aggregators": "aggregator", "replay_actors": "replay"}
_ALONE = "plan"


def find_plan(graph: ProgramGraph) -> tuple[ProgramGraph, dict[str, list[str]]]:
    """The graph, and the names of the workers of its plan by kind; the plan itself under "plan".

    Raises:
        LookupError: it has no plan, or several.
    """
    found = [node.name for node in graph.nodes() if _runs_a_plan(node)]
    if len(found) != 1:
        raise LookupError(f"the program {graph.name!r} has {len(found)} nodes that run a plan, not exactly one")
    names: dict[str, list[str]] = {"plan": found}
    for edge in graph.edges:
        kind = _KINDS.get(edge.argument.partition("[")[0])
        if edge.caller == found[0] and kind is not None:
            names.setdefault(kind, []).append(edge.target)
    return graph, names


def _runs_a_plan(node: GraphNode) -> bool:
    """Whether an argument `plan` of the node is one, whatever its constructor."""
    found = structure_of(node.arguments.get("plan"))
    return found is not None and found[0] == "Plan"


def draw(plan: Plan, graph: ProgramGraph | None, names: Mapping[str, list[str]]) -> ProgramGraph:
    """The graph of a program with the operators of its plan; of the plan alone where there is no program."""
    sketch = _Sketch(names.get("plan", [f"{_ALONE}/0"])[0])
    sketch.visit(plan.sketch(names).stage)
    if graph is None:
        nodes = [_bare(_ALONE, 0, "Plan", name_of_function(plan.execution_plan))]
        nodes += [
            _bare(*_split(name), "Worker", kind) for kind, group in names.items() for name in group if kind != "plan"
        ]
        graph = ProgramGraph(name_of_function(plan.execution_plan), nodes, ())
    nodes = [dataclasses.replace(node, inner=(*node.inner, *sketch.parts(node))) for node in graph.nodes()]
    return ProgramGraph(graph.name, nodes, [*graph.edges, *sketch.edges])


def _bare(group: str, index: int, kind: str, constructor: str) -> GraphNode:
    return GraphNode(group=group, index=index, kind=kind, constructor=constructor)


def _split(name: str) -> tuple[str, int]:
    group, _, index = name.rpartition("/")
    return group, int(index)


@final
class _Sketch:
    """Operators by the node they run in, and the edges between them; each operator once."""

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._operators: dict[str, list[tuple[str, str]]] = {}
        self._known: dict[int, str] = {}
        self._kept: list[Any] = []  # so that no id is used again
        self.edges: list[GraphEdge] = []

    def parts(self, node: GraphNode) -> Iterator[GraphNode]:
        """What runs inside a node."""
        for index, (kind, name) in enumerate(self._operators.get(node.name, ())):
            yield _bare(node.name, len(node.inner) + index, kind, name)

    def visit(self, stage: Stage) -> str:
        """Adds a stage, after those it asks; returns its name."""
        if id(stage) in self._known:
            return self._known[id(stage)]
        sources = [self.visit(source) for source in stage.inputs]
        name = self._add(stage, self._driver, stage.place, stage.name)
        self.edges += [GraphEdge(name, source, "items") for source in sources]
        if isinstance(stage, GatherAsync | BulkRounds):
            self._visit_shards(name, stage)
        self._visit_queue(name, stage)
        self._visit_weights(name, stage)
        return name

    def _add(self, what: Any, node: str, kind: str, name: str) -> str:
        operators = self._operators.setdefault(node, [])
        operators.append((kind, name))
        self._known[id(what)] = f"{node}/{len(operators) - 1}"
        self._kept.append(what)
        return self._known[id(what)]

    def _visit_shards(self, name: str, stage: GatherAsync | BulkRounds) -> None:
        for shard in stage.shards:
            asks = name
            for operator in reversed(shard.spec.operators):
                inside = self._add(operator, shard.actor.name, "shard", operator.name)
                self.edges.append(GraphEdge(asks, inside, "items"))
                asks = inside
            self.edges.append(GraphEdge(asks, shard.actor.name, "items"))

    def _visit_queue(self, name: str, stage: Stage) -> None:
        """A learner between two queues: who reads from it, and whom it reads from."""
        queue = getattr(stage, "queue", None) or getattr(getattr(stage, "fn", None), "queue", None)
        learner = learner_of(queue) if queue is not None else None
        if learner is None:
            return
        thread = self._known.get(id(learner)) or self._add(learner, self._driver, "thread", "LearnerThread")
        if learner.inqueue is queue:
            self.edges.append(GraphEdge(thread, name, "inqueue"))
        else:
            self.edges.append(GraphEdge(name, thread, "outqueue"))

    def _visit_weights(self, name: str, stage: Stage) -> None:
        receivers: Iterable[Any] = getattr(stage.fn, "receivers", ()) if isinstance(stage, Apply) else ()
        self.edges += [GraphEdge(name, actor.name, "weights") for actor in receivers]
