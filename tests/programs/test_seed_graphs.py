"""The five agents this project began with, as graphs: R2D2, IMPALA, MADQN, DQN, DMPO.

What each `build` declares is pinned here, edge by edge. The last test runs the original methods where they are at hand.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import topology as lp
from topology.graph import ProgramGraph

Edges = list[tuple[str, str, str]]

# Epsilons, largest last: 0.4 to the powers 8 ... 1, to ten digits (the last ones are the machine's own).
EPSILONS = {
    1: [0.4],
    2: [0.00065536, 0.4],
    3: [0.00065536, 0.01619086162, 0.4],
    4: [0.00065536, 0.005559127279, 0.04715560318, 0.4],
    8: [0.00065536, 0.0016384, 0.004096, 0.01024, 0.0256, 0.064, 0.16, 0.4],
}
REFRESH = {"refresh_interval_ms": 2000, "stale_after_ms": 4000}


def epsilons_of(num_actors: int) -> np.ndarray:
    return np.flip(np.logspace(1, 8, num_actors, base=0.4))


class Agent:
    """What the builders have in common: methods that would make the parts of an agent."""

    def __init__(self, *, actors: int = 1, caches: int = 0, max_steps: int | None = None) -> None:
        self.actors, self.caches, self.max_steps = actors, caches, max_steps

    def replay(self):
        raise AssertionError("declaring a program makes nothing")

    def queue(self):
        raise AssertionError("declaring a program makes nothing")

    def counter(self, checkpoint=True):
        raise AssertionError("declaring a program makes nothing")

    def coordinator(self, counter, max_steps=None):
        raise AssertionError("declaring a program makes nothing")

    def learner(self, replay, counter):
        raise AssertionError("declaring a program makes nothing")

    def trainer(self, replay, counter):
        raise AssertionError("declaring a program makes nothing")

    def evaluator(self, variable_source, counter, trainer=None):
        raise AssertionError("declaring a program makes nothing")

    def add_caches(self, program: lp.Program, source: Any, count: int) -> list[Any]:
        with program.group("cacher"):
            return [program.add_node(lp.CacherNode(source, **REFRESH)) for _ in range(count)]


class R2D2(Agent):
    def actor(self, replay, variable_source, counter, epsilon):
        raise AssertionError("declaring a program makes nothing")

    def build(self) -> lp.Program:
        program = lp.Program("r2d2")
        replay = program.add_node(lp.ReverbNode(self.replay), "replay")
        counter = program.add_node(lp.CourierNode(self.counter), "counter")
        learner = program.add_node(lp.CourierNode(self.learner, replay, counter), "learner")
        [cacher] = self.add_caches(program, learner, 1)
        program.add_node(lp.CourierNode(self.evaluator, cacher, counter), "evaluator")
        for epsilon in epsilons_of(self.actors):
            program.add_node(lp.CourierNode(self.actor, replay, cacher, counter, epsilon), "actor")
        return program


class Impala(Agent):
    def actor(self, queue, variable_source, counter):
        raise AssertionError("declaring a program makes nothing")

    def build(self) -> lp.Program:
        program = lp.Program("impala")
        queue = program.add_node(lp.ReverbNode(self.queue), "replay")
        counter = program.add_node(lp.CourierNode(self.counter), "counter")
        learner = program.add_node(lp.CourierNode(self.learner, queue, counter), "learner")
        program.add_node(lp.CourierNode(self.evaluator, learner, counter), "evaluator")
        [cacher] = self.add_caches(program, learner, 1)
        for _ in range(self.actors):
            program.add_node(lp.CourierNode(self.actor, queue, cacher, counter), "actor")
        return program


class Madqn(Agent):
    def executor(self, executor_id, replay, variable_source, counter, trainer):
        raise AssertionError("declaring a program makes nothing")

    def build(self) -> lp.Program:
        program = lp.Program("madqn")
        replay = program.add_node(lp.ReverbNode(self.replay), "replay")
        counter = program.add_node(lp.CourierNode(self.counter, True), "counter")
        if self.max_steps:
            program.add_node(lp.CourierNode(self.coordinator, counter), "coordinator")
        trainer = program.add_node(lp.CourierNode(self.trainer, replay, counter), "trainer")
        program.add_node(lp.CourierNode(self.evaluator, trainer, counter, trainer), "evaluator")
        sources = self.add_caches(program, trainer, self.caches) or [trainer]
        for i, source in zip(range(self.actors), itertools.cycle(sources), strict=False):
            program.add_node(lp.CourierNode(self.executor, i, replay, source, counter, trainer), "executor")
        return program


class Dqn(Agent):
    def actor(self, replay, variable_source, counter, epsilon):
        raise AssertionError("declaring a program makes nothing")

    def begin(self, name: str) -> tuple[lp.Program, Any, Any, Any]:
        program = lp.Program(name)
        replay = program.add_node(lp.ReverbNode(self.replay), "replay")
        with program.group("counter"):
            counter = program.add_node(lp.CourierNode(self.counter))
            if self.max_steps:
                program.add_node(lp.CourierNode(self.coordinator, counter, self.max_steps))
        learner = program.add_node(lp.CourierNode(self.learner, replay, counter), "learner")
        program.add_node(lp.CourierNode(self.evaluator, learner, counter), "evaluator")
        return program, replay, counter, learner

    def build(self) -> lp.Program:
        program, replay, counter, learner = self.begin("dqn")
        sources = itertools.cycle(self.add_caches(program, learner, self.caches))
        for epsilon, source in zip(epsilons_of(self.actors), sources, strict=False):
            program.add_node(lp.CourierNode(self.actor, replay, source, counter, epsilon), "actor")
        return program


class Dmpo(Dqn):
    def actor(self, replay, variable_source, counter, actor_id):
        raise AssertionError("declaring a program makes nothing")

    def build(self) -> lp.Program:
        program, replay, counter, learner = self.begin("dmpo")
        sources = itertools.cycle(self.add_caches(program, learner, self.caches) or [learner])
        for i, source in zip(range(self.actors), sources, strict=False):
            program.add_node(lp.CourierNode(self.actor, replay, source, counter, i), "actor")
        return program


def edges_of(graph: ProgramGraph) -> Edges:
    return sorted((edge.caller, edge.target, edge.argument) for edge in graph.edges)


def common_edges(learner: str, evaluator_source: str, replay: str = "replay") -> Edges:
    return [
        (f"{learner}/0", "replay/0", replay),
        (f"{learner}/0", "counter/0", "counter"),
        ("evaluator/0", evaluator_source, "variable_source"),
        ("evaluator/0", "counter/0", "counter"),
    ]


def cacher_edges(learner: str, count: int) -> Edges:
    return [(f"cacher/{i}", f"{learner}/0", "source") for i in range(count)]


def actor_edges(
    actors: int, sources: list[str], group: str = "actor", replay: str = "replay", more: tuple[str, ...] = ()
) -> Edges:
    """Each actor has the replay, the counter, and the sources in turn."""
    edges = []
    for i in range(actors):
        edges += [(f"{group}/{i}", "replay/0", replay), (f"{group}/{i}", "counter/0", "counter")]
        edges += [(f"{group}/{i}", sources[i % len(sources)], "variable_source")]
        edges += [(f"{group}/{i}", f"{other}/0", other) for other in more]
    return edges


def check(graph: ProgramGraph, sizes: dict[str, int], edges: Edges, epsilons: int | None = None) -> None:
    """Groups and their order and sizes, every edge, kinds and constructors, settings of cachers, epsilons."""
    assert {group: len(graph.nodes(group)) for group in graph.groups} == sizes
    assert list(graph.groups) == list(sizes)
    assert edges_of(graph) == sorted(edges)
    kinds = {"replay": "ReverbNode", "cacher": "CacherNode"}
    assert all(node.kind == kinds.get(node.group, "CourierNode") for node in graph.nodes())
    for cacher in graph.nodes("cacher") if "cacher" in graph else ():
        assert {name: cacher.argument(name) for name in REFRESH} == REFRESH
    if epsilons is not None:
        found = [node.argument("epsilon") for node in graph.nodes("actor")]
        assert found == pytest.approx(epsilons_of(epsilons), rel=1e-12)
        if epsilons in EPSILONS:
            assert found == pytest.approx(EPSILONS[epsilons], rel=1e-9)


def check_r2d2(graph: ProgramGraph, actors: int) -> None:
    sizes = {"replay": 1, "counter": 1, "learner": 1, "cacher": 1, "evaluator": 1, "actor": actors}
    edges = common_edges("learner", "cacher/0") + cacher_edges("learner", 1) + actor_edges(actors, ["cacher/0"])
    check(graph, sizes, edges, epsilons=actors)


def check_impala(graph: ProgramGraph, actors: int) -> None:
    sizes = {"replay": 1, "counter": 1, "learner": 1, "evaluator": 1, "cacher": 1, "actor": actors}
    edges = common_edges("learner", "learner/0") + cacher_edges("learner", 1)
    check(graph, sizes, edges + actor_edges(actors, ["cacher/0"], replay="queue"))
    assert graph.node("replay/0").constructor.endswith(".queue")


def check_madqn(graph: ProgramGraph, actors: int, caches: int, max_steps: int | None) -> None:
    limiter = {"coordinator": 1} if max_steps else {}
    cachers = {"cacher": caches} if caches else {}
    sizes = {"replay": 1, "counter": 1, **limiter, "trainer": 1, "evaluator": 1, **cachers, "executor": actors}
    edges = [*common_edges("trainer", "trainer/0"), ("evaluator/0", "trainer/0", "trainer")]
    edges += [("coordinator/0", "counter/0", "counter")] if max_steps else []
    edges += cacher_edges("trainer", caches)
    sources = [f"cacher/{i}" for i in range(caches)] or ["trainer/0"]
    check(graph, sizes, edges + actor_edges(actors, sources, group="executor", more=("trainer",)))
    assert graph.node("counter/0").argument("checkpoint") is True
    assert [node.argument("executor_id") for node in graph.nodes("executor")] == list(range(actors))


def check_dqn(graph: ProgramGraph, actors: int, caches: int, max_steps: int | None) -> None:
    sizes = {"replay": 1, "counter": 2 if max_steps else 1, "learner": 1, "evaluator": 1}
    edges = common_edges("learner", "learner/0") + cacher_edges("learner", caches)
    edges += [("counter/1", "counter/0", "counter")] if max_steps else []
    edges += actor_edges(actors, [f"cacher/{i}" for i in range(caches)])
    check(graph, {**sizes, "cacher": caches, "actor": actors}, edges, epsilons=actors)
    check_limit(graph, max_steps)


def check_dmpo(graph: ProgramGraph, actors: int, caches: int, max_steps: int | None) -> None:
    sizes = {"replay": 1, "counter": 2 if max_steps else 1, "learner": 1, "evaluator": 1}
    cachers = {"cacher": caches} if caches else {}
    edges = common_edges("learner", "learner/0") + cacher_edges("learner", caches)
    edges += [("counter/1", "counter/0", "counter")] if max_steps else []
    edges += actor_edges(actors, [f"cacher/{i}" for i in range(caches)] or ["learner/0"])
    check(graph, {**sizes, **cachers, "actor": actors}, edges)
    check_limit(graph, max_steps)
    assert [node.argument("actor_id") for node in graph.nodes("actor")] == list(range(actors))


def check_limit(graph: ProgramGraph, max_steps: int | None) -> None:
    if max_steps:
        assert graph.node("counter/1").constructor.endswith(".coordinator")
        assert graph.node("counter/1").argument("max_steps") == max_steps


ACTORS = [1, 2, 3, 4, 8]


@pytest.mark.parametrize("actors", ACTORS)
def test_r2d2(actors):
    check_r2d2(R2D2(actors=actors).build().graph(), actors)


@pytest.mark.parametrize("actors", [1, 4])
def test_impala(actors):
    check_impala(Impala(actors=actors).build().graph(), actors)


@pytest.mark.parametrize("max_steps", [None, 1000])
@pytest.mark.parametrize("caches", [0, 1, 3])
@pytest.mark.parametrize("actors", [1, 4])
def test_madqn(actors, caches, max_steps):
    graph = Madqn(actors=actors, caches=caches, max_steps=max_steps).build().graph()
    check_madqn(graph, actors, caches, max_steps)


@pytest.mark.parametrize("max_steps", [None, 1000])
@pytest.mark.parametrize(("actors", "caches"), [(1, 1), (2, 1), (3, 2), (4, 2), (8, 3)])
def test_dqn(actors, caches, max_steps):
    check_dqn(Dqn(actors=actors, caches=caches, max_steps=max_steps).build().graph(), actors, caches, max_steps)


@pytest.mark.parametrize("max_steps", [None, 1000])
@pytest.mark.parametrize(("actors", "caches"), [(1, 0), (4, 0), (4, 1), (5, 2)])
def test_dmpo(actors, caches, max_steps):
    check_dmpo(Dmpo(actors=actors, caches=caches, max_steps=max_steps).build().graph(), actors, caches, max_steps)


@pytest.mark.parametrize(("actors", "caches"), [(4, 1), (4, 2), (7, 3), (64, 5)])
def test_actor_i_uses_cacher_i_mod_n(actors, caches):
    graph = Dqn(actors=actors, caches=caches).build().graph()
    for i in range(actors):
        assert graph.target(f"actor/{i}", "cacher") == f"cacher/{i % caches}"


def test_the_programs_can_be_launched():
    """Nothing is wrong with the declarations, and nothing was made by declaring."""
    for agent in (R2D2, Impala, Madqn, Dqn, Dmpo):
        assert agent(actors=3, caches=2, max_steps=10).build().faults() == []


# --- the original methods ---------------------------------------------------------------------------------------------

ORIGINALS = Path(__file__).parents[2].parent / "shared" / "seeds" / "003_builds_indented.py"
NAMES = ["r2d2", "impala", "madqn", "dqn", "dmpo"]
AGENTS = [R2D2, Impala, Madqn, Dqn, Dmpo]


def original_builds() -> dict[str, Callable[[Any], lp.Program]]:
    """The methods of the file, each compiled as it stands with our package as `lp`. All have the same name there."""
    tree = ast.parse(ORIGINALS.read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert [function.name for function in functions] == ["build"] * 5
    builds = []
    for function in functions:
        namespace: dict[str, Any] = {"lp": lp, "np": np, "Any": Any}
        exec(compile(ast.Module([function], []), str(ORIGINALS), "exec"), namespace)
        builds.append(namespace["build"])
    return dict(zip(NAMES, builds, strict=True))


def with_attributes(agent: Agent) -> Agent:
    """The agent with the private attributes that the original methods read."""
    agent._num_actors = agent._num_exectors = agent.actors  # the second one is spelt like that
    agent._num_caches = agent.caches
    agent._max_actor_steps = agent._max_executor_steps = agent.max_steps
    agent._checkpoint = True
    return agent


@pytest.mark.skipif(not ORIGINALS.exists(), reason="the original build() methods are not kept in this repository")
@pytest.mark.parametrize("max_steps", [None, 1000])
@pytest.mark.parametrize(("actors", "caches"), [(1, 1), (4, 2), (8, 3), (4, 0)])
@pytest.mark.parametrize(("name", "agent"), list(zip(NAMES, AGENTS, strict=True)))
def test_the_original_builds_declare_the_pinned_graphs(name, agent, actors, caches, max_steps):
    caches = max(caches, 1) if name == "dqn" else caches  # without a cache it has no variable source
    made = with_attributes(agent(actors=actors, caches=caches, max_steps=max_steps))
    graph = original_builds()[name](made).graph()
    assert graph.name == name
    {
        "r2d2": lambda: check_r2d2(graph, actors),
        "impala": lambda: check_impala(graph, actors),
        "madqn": lambda: check_madqn(graph, actors, caches, max_steps),
        "dqn": lambda: check_dqn(graph, actors, caches, max_steps),
        "dmpo": lambda: check_dmpo(graph, actors, caches, max_steps),
    }[name]()
    assert not graph.diff(made.build().graph())
