"""The graph of DQN is the one its originals have: groups, edges, one epsilon an actor, cachers in turn."""

import subprocess
import sys

import numpy as np
import pytest

from topology.agents.core.exploration import epsilon_ladder
from topology.agents.dqn.program import DQN, PRELOAD, DQNConfig, dqn
from topology.environments import Catch
from topology.errors import ProgramError


def sources(program):
    """For each actor, the index of the cacher that it pulls from."""
    cachers = [node.addresses[0] for node in program.groups["cacher"]]
    handles = [dict(node.input_handles)["source"] for node in program.groups["actor"]]
    return [cachers.index(handle.address) for handle in handles]


def test_groups_and_their_order():
    program = dqn(DQNConfig(num_actors=5, num_caches=2))
    assert {label: len(nodes) for label, nodes in program.groups.items()} == {
        "replay": 1,
        "counter": 2,
        "learner": 1,
        "evaluator": 1,
        "cacher": 2,
        "actor": 5,
    }
    assert list(program.groups) == ["replay", "counter", "learner", "evaluator", "cacher", "actor"]
    assert program.name == "dqn"
    program.validate(serialize=True)


def test_without_a_limit_there_is_no_coordinator():
    assert len(dqn(DQNConfig(max_actor_steps=None)).groups["counter"]) == 1


def test_actors_pull_from_the_cachers_in_turn_and_have_the_epsilons_of_the_ladder():
    program = dqn(DQNConfig(num_actors=5, num_caches=2))
    assert sources(program) == [0, 1, 0, 1, 0]
    epsilons = [node.describe().arguments["exploration"] for node in program.groups["actor"]]
    np.testing.assert_array_equal(epsilons, epsilon_ladder(5))


def test_every_edge():
    program = dqn(DQNConfig(num_actors=1))
    owners = {node.addresses[0]: label for label, _, node in program.named_nodes() if node.addresses}
    edges = {
        (f"{label}/{index}", path, owners[handle.address])
        for label, index, node in program.named_nodes()
        for path, handle in node.input_handles
    }
    assert {edge for edge in edges if not edge[0].startswith("cacher")} == {
        ("counter/1", "counter", "counter"),
        ("learner/0", "replay", "replay"),
        ("learner/0", "counter", "counter"),
        ("evaluator/0", "source", "learner"),
        ("evaluator/0", "counter", "counter"),
        ("actor/0", "replay", "replay"),
        ("actor/0", "source", "cacher"),
        ("actor/0", "counter", "counter"),
    }
    assert [edge[2] for edge in edges if edge[0] == "cacher/0"] == ["learner"]


def test_inference_servers_stand_between_the_cachers_and_the_actors():
    program = dqn(DQNConfig(num_actors=5, num_caches=2, inference_servers=3, environments_per_actor=4))
    assert list(program.groups) == ["replay", "counter", "learner", "evaluator", "cacher", "inference", "actor"]
    owners = {node.addresses[0]: f"{label}/{index}" for label, index, node in program.named_nodes() if node.addresses}

    def sources_of(label):
        return [owners[dict(node.input_handles)["source"].address] for node in program.groups[label]]

    assert sources_of("inference") == ["cacher/0", "cacher/1", "cacher/0"]
    assert sources_of("actor") == ["inference/0", "inference/1", "inference/2", "inference/0", "inference/1"]
    program.validate(serialize=True)


def test_a_wrong_environment_is_refused_before_anything_runs():
    with pytest.raises(ProgramError, match="Did you mean"):
        dqn(DQNConfig(environment="catchh"))
    with pytest.raises(ProgramError, match="needs an environment with discrete actions"):
        dqn(DQNConfig(environment="gym:Pendulum-v1"))


def test_an_environment_factory_takes_the_place_of_the_name():
    agent = DQN(DQNConfig(), lambda seed: Catch(rows=4, columns=3, seed=seed))
    agent.build().validate(serialize=True)
    assert agent.spec.observations.shape == (4, 3)


def test_building_the_graph_loads_no_jax_and_preloading_starts_none():
    code = f"""
import importlib, sys
from topology.agents.dqn.program import DQNConfig, dqn
dqn(DQNConfig())
assert "jax" not in sys.modules
for name in {PRELOAD!r}:
    importlib.import_module(name)
from jax._src import xla_bridge
assert not xla_bridge._backends, xla_bridge._backends
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
