"""The graph of R2D2 is that of its originals: all weights come through one cacher, and each actor has its epsilon."""

import subprocess
import sys

import numpy as np
import pytest

from topology.agents.core.exploration import epsilon_ladder
from topology.agents.r2d2.program import PRELOAD, R2D2, R2D2Config, r2d2
from topology.environments import MemoryChain
from topology.errors import ProgramError


def test_groups_and_their_order():
    program = r2d2(R2D2Config(num_actors=3))
    groups = [(label, len(nodes)) for label, nodes in program.groups.items()]
    assert groups == [("replay", 1), ("counter", 2), ("learner", 1), ("cacher", 1), ("evaluator", 1), ("actor", 3)]
    assert program.name == "r2d2"
    assert R2D2(R2D2Config()).build("mine").name == "mine"
    program.validate(serialize=True)


def test_without_a_limit_it_has_no_coordinator_as_its_originals():
    groups = r2d2(R2D2Config(max_actor_steps=None)).groups
    assert [(label, len(nodes)) for label, nodes in groups.items()] == [
        ("replay", 1), ("counter", 1), ("learner", 1), ("cacher", 1), ("evaluator", 1), ("actor", 4),
    ]  # fmt: skip


def test_every_edge():
    program = r2d2(R2D2Config(num_actors=2))
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
        ("evaluator/0", "source", "cacher"),
        ("evaluator/0", "counter", "counter"),
        *((f"actor/{i}", path, path) for i in (0, 1) for path in ("replay", "counter")),
        *((f"actor/{i}", "source", "cacher") for i in (0, 1)),
    }
    assert [edge[2] for edge in edges if edge[0] == "cacher/0"] == ["learner"]


def test_actors_have_the_epsilons_of_the_ladder():
    nodes = r2d2(R2D2Config(num_actors=5)).groups["actor"]
    epsilons = [node.describe().arguments["exploration"] for node in nodes]
    np.testing.assert_array_equal(epsilons, epsilon_ladder(5))


def test_an_environment_that_does_not_fit_is_refused_before_anything_runs():
    with pytest.raises(ProgramError, match="Did you mean"):
        r2d2(R2D2Config(environment="cartpole_hiden"))
    with pytest.raises(ProgramError, match="R2D2 needs an environment with discrete actions"):
        r2d2(R2D2Config(environment="gym:Pendulum-v1"))


def test_an_environment_factory_takes_the_place_of_the_name():
    agent = R2D2(R2D2Config(), lambda seed: MemoryChain(3, seed=seed))
    agent.build().validate(serialize=True)
    assert agent.spec.observations.shape == (3,)


def test_building_the_graph_loads_no_jax_and_preloading_starts_none():
    code = f"""
import importlib, sys
from topology.agents.r2d2.program import R2D2, R2D2Config
R2D2(R2D2Config()).make_table(seed=0, lockstep=False)
R2D2(R2D2Config()).build()
assert "jax" not in sys.modules
for name in {PRELOAD!r}:
    importlib.import_module(name)
from jax._src import xla_bridge
assert not xla_bridge._backends, xla_bridge._backends
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
