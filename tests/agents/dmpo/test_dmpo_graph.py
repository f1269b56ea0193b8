"""The graph of DMPO is the one its original has: groups, edges, the learner or cachers in turn."""

import subprocess
import sys

import dm_env
import pytest
from dm_env import specs

from topology.agents.dmpo.program import DMPO, PRELOAD, DMPOConfig, dmpo
from topology.environments import Catch
from topology.environments.unit_actions import make_with_unit_actions
from topology.errors import ProgramError


def edges(program):
    owners = {node.addresses[0]: f"{label}/{index}" for label, index, node in program.named_nodes() if node.addresses}
    return {
        (f"{label}/{index}", path, owners[handle.address])
        for label, index, node in program.named_nodes()
        for path, handle in node.input_handles
    }


def sources(program):
    return [owner for node, path, owner in sorted(edges(program)) if path == "source" and node.startswith("actor")]


def test_groups_and_their_order():
    program = dmpo(DMPOConfig(num_actors=3))
    assert list(program.groups) == ["replay", "counter", "learner", "evaluator", "actor"]
    assert [len(nodes) for nodes in program.groups.values()] == [1, 2, 1, 1, 3]
    assert program.name == "dmpo"
    program.validate(serialize=True)


def test_with_cachers():
    program = dmpo(DMPOConfig(num_actors=5, num_caches=2))
    assert list(program.groups) == ["replay", "counter", "learner", "evaluator", "cacher", "actor"]
    assert sources(program) == ["cacher/0", "cacher/1", "cacher/0", "cacher/1", "cacher/0"]
    assert [owner for node, _, owner in edges(program) if node.startswith("cacher")] == ["learner/0"] * 2


def test_with_an_inference_server_the_actors_ask_it():
    program = dmpo(DMPOConfig(num_actors=2, inference_servers=1))
    assert list(program.groups) == ["replay", "counter", "learner", "evaluator", "inference", "actor"]
    assert sources(program) == ["inference/0", "inference/0"]


def test_without_a_limit_there_is_no_coordinator():
    assert len(dmpo(DMPOConfig(max_actor_steps=None)).groups["counter"]) == 1


def test_every_edge_and_the_actors_numbers():
    program = dmpo(DMPOConfig(num_actors=2))
    assert edges(program) == {
        ("counter/1", "counter", "counter/0"),
        ("learner/0", "replay", "replay/0"),
        ("learner/0", "counter", "counter/0"),
        ("evaluator/0", "source", "learner/0"),
        ("evaluator/0", "counter", "counter/0"),
        *((f"actor/{i}", "replay", "replay/0") for i in range(2)),
        *((f"actor/{i}", "source", "learner/0") for i in range(2)),
        *((f"actor/{i}", "counter", "counter/0") for i in range(2)),
    }
    assert [node.describe().arguments["actor_id"] for node in program.groups["actor"]] == [0, 1]


def test_discrete_actions_are_refused_before_anything_runs():
    with pytest.raises(ProgramError, match=r"'catch' cannot be used: its actions are DiscreteArray"):
        dmpo(DMPOConfig(environment="catch"))
    with pytest.raises(ProgramError, match="continuous ones with finite bounds"):
        DMPO(DMPOConfig(), Catch)


def test_an_environment_factory_takes_the_place_of_the_name_and_actions_become_those_of_the_agent():
    def factory(*, seed=None):
        return make_with_unit_actions("gym:MountainCarContinuous-v0", seed=seed)

    agent = DMPO(DMPOConfig(), factory)
    agent.build().validate(serialize=True)
    assert agent.spec.observations.shape == (2,)
    pendulum = DMPO(DMPOConfig(environment="gym:Pendulum-v1")).spec.actions
    assert (pendulum.minimum, pendulum.maximum, pendulum.shape) == (-1.0, 1.0, (1,))
    assert isinstance(pendulum, specs.BoundedArray)
    assert isinstance(agent.make_builder(3).make_environment(), dm_env.Environment)


def test_building_the_graph_loads_no_jax_and_preloading_starts_none():
    code = f"""
import importlib, sys
from topology.agents.dmpo.program import DMPOConfig, dmpo
dmpo(DMPOConfig())
assert "jax" not in sys.modules
for name in {PRELOAD!r}:
    importlib.import_module(name)
from jax._src import xla_bridge
assert not xla_bridge._backends, xla_bridge._backends
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
