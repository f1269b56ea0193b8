"""The graph of MADQN is the one its original has: groups, edges, executors that pull from the cachers in turn."""

import subprocess
import sys

import pytest

from topology.agents.madqn.program import MADQN, PRELOAD, MADQNConfig, madqn
from topology.environments import Catch
from topology.environments.switch_riddle import SwitchRiddle
from topology.errors import ProgramError


def edges_of(program):
    owners = {node.addresses[0]: f"{label}/{index}" for label, index, node in program.named_nodes() if node.addresses}
    return [
        (f"{label}/{index}", path, owners[handle.address])
        for label, index, node in program.named_nodes()
        for path, handle in node.input_handles
    ]


def test_groups_and_their_order():
    program = madqn(MADQNConfig(num_actors=3, num_caches=2))
    assert {label: len(nodes) for label, nodes in program.groups.items()} == {
        "replay": 1,
        "counter": 1,
        "coordinator": 1,
        "trainer": 1,
        "evaluator": 1,
        "cacher": 2,
        "executor": 3,
    }
    assert list(program.groups) == ["replay", "counter", "coordinator", "trainer", "evaluator", "cacher", "executor"]
    assert program.name == "madqn"
    program.validate(serialize=True)


def test_without_a_limit_there_is_no_coordinator_and_by_default_no_cacher():
    program = madqn(MADQNConfig(max_actor_steps=None))
    assert list(program.groups) == ["replay", "counter", "trainer", "evaluator", "executor"]


def test_every_edge_without_cachers():
    assert edges_of(madqn(MADQNConfig(num_actors=1))) == [
        ("coordinator/0", "counter", "counter/0"),
        ("trainer/0", "replay", "replay/0"),
        ("trainer/0", "counter", "counter/0"),
        ("evaluator/0", "source", "trainer/0"),
        ("evaluator/0", "counter", "counter/0"),
        ("evaluator/0", "trainer", "trainer/0"),
        ("executor/0", "replay", "replay/0"),
        ("executor/0", "source", "trainer/0"),
        ("executor/0", "counter", "counter/0"),
        ("executor/0", "trainer", "trainer/0"),
    ]


def test_executors_pull_from_the_cachers_in_turn_and_have_their_numbers():
    program = madqn(MADQNConfig(num_actors=5, num_caches=2))
    edges = edges_of(program)
    sources = [owner for node, path, owner in edges if path == "source" and node.startswith("executor")]
    assert sources == ["cacher/0", "cacher/1", "cacher/0", "cacher/1", "cacher/0"]
    assert ("evaluator/0", "source", "trainer/0") in edges
    assert [owner for node, _, owner in edges if node.startswith("cacher")] == ["trainer/0", "trainer/0"]
    numbers = [node.describe().arguments["executor_id"] for node in program.groups["executor"]]
    assert numbers == [0, 1, 2, 3, 4]


def test_inference_servers_stand_between_the_cachers_and_the_executors():
    program = madqn(MADQNConfig(num_actors=3, num_caches=1, inference_servers=2, environments_per_actor=4))
    assert list(program.groups)[-3:] == ["cacher", "inference", "executor"]
    assert [edge for edge in edges_of(program) if "inference" in str(edge)] == [
        ("inference/0", "source", "cacher/0"),
        ("inference/1", "source", "cacher/0"),
        ("executor/0", "source", "inference/0"),
        ("executor/1", "source", "inference/1"),
        ("executor/2", "source", "inference/0"),
    ]


def test_environments_that_do_not_fit_are_refused_before_anything_runs():
    with pytest.raises(ProgramError, match="needs an environment of several agents"):
        madqn(MADQNConfig(environment="catch"))
    with pytest.raises(ProgramError, match="needs an environment of several agents"):
        MADQN(MADQNConfig(), Catch)


def test_an_environment_factory_takes_the_place_of_the_name():
    agent = MADQN(MADQNConfig(), lambda seed: SwitchRiddle(4, seed=seed))
    agent.build().validate(serialize=True)
    assert list(agent.spec.observations) == ["agent_0", "agent_1", "agent_2", "agent_3"]


def test_building_the_graph_loads_no_jax_and_preloading_starts_none():
    code = f"""
import importlib, sys
from topology.agents.madqn.program import MADQNConfig, madqn
madqn(MADQNConfig())
assert "jax" not in sys.modules
for name in {PRELOAD!r}:
    importlib.import_module(name)
from jax._src import xla_bridge
assert not xla_bridge._backends, xla_bridge._backends
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
