"""The graph of IMPALA is the one its original has: a queue, one cacher for the actors, the evaluator at the learner."""

import subprocess
import sys

import pytest

from topology.agents.impala.program import IMPALA, PRELOAD, IMPALAConfig, impala
from topology.environments import Catch
from topology.errors import ProgramError

ENDLESS = IMPALAConfig(num_actors=3, max_actor_steps=None)


def edges(program):
    owners = {node.addresses[0]: label for label, _, node in program.named_nodes() if node.addresses}
    return [
        (f"{label}/{index}", path, owners[handle.address])
        for label, index, node in program.named_nodes()
        for path, handle in node.input_handles
    ]


def test_groups_and_their_order():
    program = impala(ENDLESS)
    assert [(label, len(nodes)) for label, nodes in program.groups.items()] == [
        ("replay", 1),
        ("counter", 1),
        ("learner", 1),
        ("evaluator", 1),
        ("cacher", 1),
        ("actor", 3),
    ]
    assert program.name == "impala"
    assert IMPALA(ENDLESS).build("other").name == "other"
    program.validate(serialize=True)


def test_every_edge():
    found = edges(impala(ENDLESS))
    assert [(node, owner) for node, _, owner in found if node == "cacher/0"] == [("cacher/0", "learner")]
    assert [edge for edge in found if edge[0] != "cacher/0"] == [
        ("learner/0", "replay", "replay"),
        ("learner/0", "counter", "counter"),
        ("evaluator/0", "source", "learner"),
        ("evaluator/0", "counter", "counter"),
        *(
            (f"actor/{index}", path, owner)
            for index in range(3)
            for path, owner in (("replay", "replay"), ("source", "cacher"), ("counter", "counter"))
        ),
    ]


def test_a_limit_adds_the_coordinator_and_nothing_else():
    program = impala(IMPALAConfig(num_actors=3, max_actor_steps=100))
    assert len(program.groups["counter"]) == 2
    limited = edges(program)
    assert [edge for edge in limited if edge[0] == "counter/1"] == [("counter/1", "counter", "counter")]
    assert [edge for edge in limited if edge[0] != "counter/1"] == edges(impala(ENDLESS))


def test_inference_servers_stand_between_the_cacher_and_the_actors():
    program = impala(IMPALAConfig(num_actors=3, inference_servers=2))
    assert list(program.groups)[-3:] == ["cacher", "inference", "actor"]
    found = edges(program)
    assert [owner for node, path, owner in found if node.startswith("inference")] == ["cacher", "cacher"]
    assert [owner for node, path, owner in found if node.startswith("actor") and path == "source"] == 3 * ["inference"]


def test_an_environment_that_does_not_fit_is_refused_before_anything_runs():
    with pytest.raises(ProgramError, match="Did you mean"):
        impala(IMPALAConfig(environment="catchh"))
    with pytest.raises(ProgramError, match="IMPALA needs an environment with discrete actions"):
        impala(IMPALAConfig(environment="gym:Pendulum-v1"))


def test_an_environment_factory_takes_the_place_of_the_name():
    agent = IMPALA(IMPALAConfig(), lambda seed: Catch(rows=4, columns=3, seed=seed))
    agent.build().validate(serialize=True)
    assert agent.spec.observations.shape == (4, 3)


def test_building_the_graph_loads_no_jax_and_preloading_starts_none():
    code = f"""
import importlib, sys
from topology.agents.impala.program import IMPALA, IMPALAConfig
agent = IMPALA(IMPALAConfig(lstm_size=8))
agent.build()
agent.make_table(seed=0, lockstep=False)
assert "jax" not in sys.modules
for name in {PRELOAD!r}:
    importlib.import_module(name)
from jax._src import xla_bridge
assert not xla_bridge._backends, xla_bridge._backends
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
