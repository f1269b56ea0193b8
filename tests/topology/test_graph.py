"""Graphs: what is in them, questions, equality, round trips, differences."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import os
import pickle
import subprocess
import sys
import time
from typing import Any
from unittest import mock

import numpy as np
import pytest

import topology as lp
from topology.errors import ProgramError
from topology.graph import GraphEdge, GraphNode, ProgramGraph


@dataclasses.dataclass(frozen=True)
class Config:
    batch_size: int = 256
    rate: float = 1e-3


class Builder:
    def replay(self):
        pass

    def learner(self, replay, config):
        pass

    def actor(self, replay, source, epsilon, *extra, **settings):
        pass


@pytest.fixture
def build(service):
    def build(actors=4, cachers=2, epsilon=0.4, config=None, name="agent"):
        self, program = Builder(), lp.Program(name)
        replay = program.add_node(service(self.replay), "replay")
        learner = program.add_node(service(self.learner, replay, config or Config()), "learner")
        with program.group("cacher"):
            sources = [program.add_node(service(dict, source=learner)) for _ in range(cachers)]
        with program.group("actor"):
            for i in range(actors):
                program.add_node(service(self.actor, replay, sources[i % cachers], np.float64(epsilon) / (i + 1)))
        return program

    return build


def test_nodes_and_groups_are_in_the_order_of_the_program(build):
    graph = build().graph()
    assert graph.name == "agent"
    assert graph.groups == ("replay", "learner", "cacher", "actor")
    assert [node.name for node in graph.nodes()][:3] == ["replay/0", "learner/0", "cacher/0"]
    assert [node.name for node in graph.nodes("actor")] == [f"actor/{i}" for i in range(4)]
    assert len(graph) == 8
    assert "actor/3" in graph
    assert "actor" in graph
    assert "actor/4" not in graph


def test_a_node_says_what_it_is(build):
    node = build().graph().node("learner/0")
    assert (node.group, node.index, node.kind, node.constructor) == ("learner", 0, "ServiceNode", "Builder.learner")
    assert node.arguments == {"replay": "<replay/0>", "config": {"<Config>": {"batch_size": 256, "rate": 0.001}}}
    assert node.argument("config.batch_size") == 256
    assert node.inner == ()


def test_edges_go_from_the_receiver_to_the_owner_with_their_path(build):
    graph = build(actors=1, cachers=1).graph()
    assert graph.edges == (
        GraphEdge("learner/0", "replay/0", "replay"),
        GraphEdge("cacher/0", "learner/0", "source"),
        GraphEdge("actor/0", "replay/0", "replay"),
        GraphEdge("actor/0", "cacher/0", "source"),
    )
    assert str(graph.edges[0]) == "learner/0 -> replay/0 (replay)"


def test_questions(build):
    graph = build().graph()
    assert graph.callers_of("learner") == ("cacher/0", "cacher/1")
    assert graph.callers_of("cacher/1") == ("actor/1", "actor/3")
    assert graph.callers_of("actor") == ()
    assert graph.targets_of("actor/3") == ("replay/0", "cacher/1")
    assert graph.targets_of("actor") == ("replay/0", "cacher/0", "cacher/1")
    assert graph.target("actor/3", "cacher") == "cacher/1"
    assert graph.arguments_of("actor", "cacher") == ("source",)
    assert graph.arguments_of("actor", "learner") == ()
    assert graph.node("actor/3").argument("epsilon") == 0.1


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda g: g.node("actro/3"), "no node or group 'actro/3'; did you mean actor/"),
        (lambda g: g.nodes("zzz"), "the groups are replay, learner, cacher, actor"),
        (lambda g: g.callers_of("lerner"), "did you mean learner"),
        (lambda g: g.targets_of("lerner"), "did you mean learner"),
        (lambda g: g.arguments_of("actor", "lerner"), "did you mean learner"),
        (lambda g: g.target("actor/0", "learner"), "actor/0 uses none of learner, not exactly one"),
        (lambda g: g.target("actor", "cacher"), "actor uses cacher/0, cacher/1 of cacher, not exactly one"),
        (lambda g: g.node("actor/0").argument("eps"), "has no argument 'eps'; it has replay, source, epsilon"),
        (lambda g: g.node("learner/0").argument("config.batch"), "no argument 'config.batch'; it has replay, config"),
    ],
)
def test_a_question_about_nothing_says_what_there_is(build, ask, message):
    with pytest.raises(LookupError, match=message):
        ask(build().graph())


def test_handles_are_found_however_deep(service):
    program = lp.Program("deep")
    a = program.add_node(service(), "a")
    b = program.add_node(service(), "b")
    program.add_node(
        lp.PyNode(Builder().actor, [0, a], (b,), {"k": a}, a, extra=lp.Deferred(dict, x=[b]), more=Config(rate=a)), "c"
    )
    graph = program.graph()
    assert [(edge.target, edge.argument) for edge in graph.edges] == [
        ("a/0", "replay[1]"),
        ("b/0", "source[0]"),
        ("a/0", "epsilon['k']"),
        ("a/0", "extra[0]"),
        ("b/0", "extra.x[0]"),
        ("a/0", "more.rate"),
    ]
    node = graph.node("c/0")
    assert [node.argument(edge.argument) for edge in graph.edges[:4]] == ["<a/0>", "<b/0>", "<a/0>", "<a/0>"]
    assert graph.targets_of("c") == ("a/0", "b/0")


def test_arguments_without_a_name_are_numbered(service):
    program = lp.Program("p")
    program.add_node(lp.PyNode(max, 1, 2, key=len), "builtin")
    program.add_node(lp.PyNode(Builder().replay, "too", "many"), "wrong call")
    graph = program.graph()
    assert graph.node("builtin/0").arguments == {"0": 1, "1": 2, "key": "<len>"}
    assert graph.node("wrong call/0").arguments == {"0": "too", "1": "many"}


def test_cycles_and_self_edges(service):
    first, second = service(list.append), service(print)
    first.configure(second.create_handle(), first.create_handle())
    second.configure(first.create_handle())
    program = lp.make_program(first, second)
    graph = program.graph()
    assert graph.callers_of("servicenode_0") == ("servicenode_0/0", "servicenode_1/0")
    assert graph.callers_of("servicenode_1") == ("servicenode_0/0",)
    program.validate()


def test_the_parts_of_a_colocation(service):
    inner = service(Builder)
    program = lp.Program("p")
    handle = inner.create_handle()
    with program.group("box"):
        program.add_node(lp.MultiThreadingColocation([inner, lp.MultiThreadingColocation([lp.PyNode(print, handle)])]))
    program.add_node(lp.PyNode(print, handle), "outside")
    graph = program.graph()
    assert [part.name for part in graph.node("box/0").walk()] == ["box/0", "box/0/0", "box/0/1", "box/0/1/0"]
    assert graph.node("box/0/1/0").kind == "PyNode"
    assert [part.name for part in graph.nodes("box/0")] == ["box/0/0", "box/0/1"]
    assert len(graph) == 2
    assert graph.callers_of("box") == ("box/0/1/0", "outside/0")
    assert graph.callers_of("box/0/0") == ("box/0/1/0", "outside/0")
    assert graph.targets_of("box/0") == ("box/0/0",)
    assert graph.callers_of("box/0/1") == ()
    assert ProgramGraph.from_json(graph.to_json()) == graph


def test_names_that_begin_alike_are_not_confused(service):
    program = lp.Program("p")
    one = program.add_node(service(), "actor")
    two = program.add_node(service(), "actor_2")
    program.add_node(lp.PyNode(print, two), "x")
    program.add_node(lp.PyNode(print, one), "y")
    assert program.graph().callers_of("actor") == ("y/0",)


def test_stand_ins_are_shown_by_their_type(service):
    class Bare:
        def create_handle(self):
            return None

    program = lp.Program("p")
    program.add_node(mock.Mock(), "mock")
    program.add_node(Bare(), "bare")
    program.add_node(service(dict, x=mock.Mock()), "real")
    graph = program.graph()
    assert [node.kind for node in graph.nodes()] == ["Mock", "Bare", "ServiceNode"]
    assert graph.node("real/0").arguments == {"x": "<Mock>"}
    assert graph.edges == ()


def test_a_handle_from_outside_is_shown_but_is_no_edge(service):
    program = lp.make_program(lp.PyNode(print, x=service().create_handle()))
    graph = program.graph()
    assert graph.edges == ()
    assert graph.node("pynode_0/0").arguments == {"x": "<ServiceHandle of a node outside the program>"}


def test_an_address_is_shown(service):
    node = service()
    graph = lp.make_program(node, lp.PyNode(dict, at=node.own_address)).graph()
    assert graph.node("pynode_1/0").argument("at") == "<address of servicenode_0/0>"


def test_partials_show_the_whole_call(service):
    program = lp.Program("p")
    replay = program.add_node(service(), "replay")
    program.add_node(lp.PyNode(functools.partial(Builder().actor, replay, epsilon=0.1), source=3), "actor")
    node = program.graph().node("actor/0")
    assert node.constructor == "Builder.actor"
    assert node.arguments == {"replay": "<replay/0>", "source": 3, "epsilon": 0.1}
    assert program.graph().callers_of("replay") == ("actor/0",)


def test_declaring_and_inspecting_calls_no_constructor(service):
    program = lp.make_program(service(pytest.fail, "called"), lp.PyNode(lp.Deferred(pytest.fail).dereference))
    str(program.graph())


def test_a_graph_does_not_change_with_the_program(build, service):
    program = build()
    graph = program.graph()
    program.add_node(service(), "later")
    assert "later" not in graph
    graph.node("actor/0").arguments.clear()
    assert graph == build().graph()


def test_equality_and_hash(build):
    assert build().graph() == build().graph()
    assert len({build().graph(), build().graph(), build(actors=3).graph()}) == 2
    assert build().graph() != build(epsilon=0.5).graph()
    assert build().graph() != build(name="other").graph()
    assert build().graph() != "graph"


def test_a_graph_survives_json_pickle_and_copy(build):
    graph = build().graph()
    assert ProgramGraph.from_json(graph.to_json()) == graph
    assert ProgramGraph.from_json(graph.to_json(indent=None).encode()) == graph
    assert ProgramGraph.from_dict(json.loads(json.dumps(graph.to_dict()))).to_json() == graph.to_json()
    assert pickle.loads(pickle.dumps(graph)) == graph
    assert copy.deepcopy(graph) == graph


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected a graph as JSON text"),
        ("[]", "found 'list'"),
        ("{}", r"format 'topology.graph' version 1, found \(None, None\)"),
        ('{"format": "topology.graph", "version": 2}', r"found \('topology.graph', 2\)"),
        ('{"format": "topology.graph", "version": 1, "name": "x"}', "damaged: KeyError"),
        ('{"format": "topology.graph", "version": 1, "name": "x", "nodes": [3], "edges": []}', "damaged: TypeError"),
    ],
)
def test_other_json_is_refused(text, message):
    with pytest.raises(ProgramError, match=message):
        ProgramGraph.from_json(text)


SNAPSHOT = """
import json, sys
import topology as lp

class Odd:
    def __repr__(self): return object.__repr__(self)

def f(*args, **kwargs): ...

settings = {name: Odd() for name in set("abcdefgh")}
program = lp.Program("p")
program.add_node(lp.PyNode(f, {"x", "y", "z"}, settings, {Odd: 1, len: 2}, **settings), "n")
graph = program.graph()
print(graph.to_json(), graph, repr(graph), graph.to_mermaid(), graph.to_dot(), graph.to_svg(), hash(graph) and "")
"""


def test_all_output_is_the_same_in_every_process():
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SNAPSHOT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            timeout=60,
            capture_output=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1
    assert b"0x" not in outputs.pop()


def test_no_difference(build):
    difference = build().graph().diff(build().graph())
    assert not difference
    assert str(difference) == "no difference"


def test_every_kind_of_difference_is_listed(build):
    old = build(actors=2, cachers=2).graph()
    new = build(actors=3, cachers=1, epsilon=0.5, config=Config(rate=2e-3), name="other").graph()
    difference = old.diff(new)
    assert difference
    assert str(difference).splitlines() == [
        "~ program name: agent -> other",
        "- cacher/1  ServiceNode  dict(source=<learner/0>)",
        "+ actor/2  ServiceNode  Builder.actor(replay=<replay/0>, source=<cacher/0>, epsilon=0.166667)",
        "~ learner/0 config: Config(batch_size=256, rate=0.001) -> Config(batch_size=256, rate=0.002)",
        "~ actor/0 epsilon: 0.4 -> 0.5",
        "~ actor/1 source: <cacher/1> -> <cacher/0>",
        "~ actor/1 epsilon: 0.2 -> 0.25",
        "- edge cacher/1 -> learner/0 (source)",
        "- edge actor/1 -> cacher/1 (source)",
        "+ edge actor/1 -> cacher/0 (source)",
        "+ edge actor/2 -> replay/0 (replay)",
        "+ edge actor/2 -> cacher/0 (source)",
    ]
    assert [node.name for node in difference.removed_nodes] == ["cacher/1"]
    assert [change.what for change in difference.changes] == ["config", "epsilon", "source", "epsilon"]


def test_differences_that_are_easily_missed():
    def graph(**kwargs: Any) -> ProgramGraph:
        return ProgramGraph("p", [GraphNode(group="a", index=0, **{"kind": "K", **kwargs})], [])

    def arguments(**kwargs: Any) -> ProgramGraph:
        return graph(arguments_json=json.dumps(kwargs))

    assert str(graph().diff(graph(kind="L"))) == "~ a/0 kind: K -> L"
    assert str(graph(constructor="f").diff(graph())) == "~ a/0 constructor: f -> "
    assert str(graph().diff(graph(methods=("get", "set")))) == "~ a/0 methods: none -> get, set"
    assert str(arguments(x=1).diff(arguments(x=True))) == "~ a/0 x: 1 -> True"
    assert str(arguments(x=0.1).diff(arguments(x=0.1 + 1e-12))) == "~ a/0 x: 0.1 -> 0.10000000000100001"
    assert str(arguments(x=1).diff(arguments())) == "~ a/0 x: 1 -> (absent)"
    assert str(arguments(x=list(range(99))).diff(arguments(x=[*range(98), 0]))).startswith("~ a/0 x: [0, 1, 2,")
    assert str(arguments(x=1, y=2).diff(arguments(y=2, x=1))) == "~ a/0 order of arguments: x, y -> y, x"


def test_the_order_of_groups_is_a_difference():
    nodes = [GraphNode(group=group, index=0, kind="K") for group in "ab"]
    old, new = ProgramGraph("p", nodes, []), ProgramGraph("p", nodes[::-1], [])
    assert old != new
    assert str(old.diff(new)) == "~ order of groups: a, b -> b, a"


def test_every_difference_of_values_is_a_difference_in_words(build):
    """Two graphs are equal exactly when their diff is empty."""
    graphs = [build(*arguments).graph() for arguments in [(4, 2), (4, 1), (3, 2), (4, 2, 0.5)]]
    for one in graphs:
        for other in graphs:
            assert (one == other) == (not one.diff(other))


def test_a_thousand_nodes_take_a_fraction_of_a_second(build):
    program = build(actors=1000, cachers=8)
    start = time.perf_counter()
    graph = program.graph()
    text = graph.to_json()
    again = ProgramGraph.from_json(text)
    assert not graph.diff(again)
    assert again.target("actor/999", "cacher") == "cacher/7"
    outputs = [str(graph), graph.to_mermaid(), graph.to_dot(), graph.to_svg()]
    assert time.perf_counter() - start < 2.0  # 0.25 s on the machine this was written on
    assert max(map(len, outputs)) < 20_000  # for people: the size does not grow with the group


@pytest.mark.parametrize("name", [None, 5, []])
def test_a_name_is_a_text(build, name):
    graph = build().graph()
    for ask in (graph.node, graph.targets_of, graph.callers_of, lambda name: graph.target("actor/0", name)):
        with pytest.raises(TypeError, match="a node or group goes by its name, such as 'actor/0'"):
            ask(name)
