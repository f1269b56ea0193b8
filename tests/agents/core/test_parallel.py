"""A learner on several devices: the same numbers as on one, each device with its part of every update."""

import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from topology.agents.core.parallel import join_updates, learner_mesh, split_updates
from topology.errors import ProgramError

DEVICES = """
import re
from typing import Any, NamedTuple

import jax, jax.numpy as jnp, numpy as np, optax

from topology.agents.core.counter import ChildCounter, Counter
from topology.agents.core.learner import Learner, UpdateOutput
from topology.agents.core.parallel import data_parallel, join_updates, learner_mesh, split_updates
from topology.agents.core.replay import Batch
from topology.context import StopToken

K, B, WIDTH = 3, 8, 5
optimizer = optax.sgd(1e-2, momentum=0.9)


class State(NamedTuple):
    params: Any
    opt_state: Any
    key: Any
    steps: Any


def initial_state():
    params = {"w": jax.random.normal(jax.random.key(0), (WIDTH, 7)), "b": jnp.zeros(7)}
    return State(params, optimizer.init(params), jax.random.key(1), jnp.zeros((), jnp.int32))


def make_update(split, join):
    def loss_fn(params, x, y, noise):
        error = jnp.sum(jnp.tanh((x + noise) @ params["w"] + params["b"]), -1) - y
        return jnp.mean(error**2), jnp.abs(error)

    def once(state, batch):
        (x, y), weight = batch
        key, used = jax.random.split(state.key)
        noise = 0.1 * jax.random.normal(used, x.shape)
        (loss, error), gradients = jax.value_and_grad(loss_fn, has_aux=True)(state.params, x, weight * y, noise)
        updates, opt_state = optimizer.update(gradients, state.opt_state)
        return State(optax.apply_updates(state.params, updates), opt_state, key, state.steps + 1), (loss, error)

    @jax.jit
    def update(state, data, probabilities):
        state, (loss, error) = jax.lax.scan(once, state, split((data, probabilities)))
        return state, UpdateOutput({"loss": loss}, join(error))

    return update


class Batches:
    def __init__(self):
        self.random = np.random.default_rng(3)
        self.priorities = []

    def sample(self):
        x = self.random.normal(size=(K * B, WIDTH)).astype(np.float32)
        return Batch(np.arange(K * B, dtype=np.uint64), np.full(K * B, 0.5), K * B, (x, x.sum(-1)))

    def update_priorities(self, keys, priorities):
        self.priorities.append(priorities)

    def close(self):
        pass


class Rows:
    def write(self, **values):
        pass


def make_learner(update):
    batches = Batches()
    learner = Learner(
        state=initial_state(), update=update, updates_per_call=K, variables={"policy": lambda state: state.params},
        replay=batches, example=batches.sample().data, counts=ChildCounter(Counter(), "learner", max_delay_s=0),
        metrics=Rows(), stop=StopToken(),
    )
    return learner, batches
"""

SAME = """
assert jax.device_count() == 4
dealt = make_update(lambda tree: split_updates(tree, K), join_updates)
blocks = make_update(
    lambda tree: jax.tree.map(lambda leaf: leaf.reshape(K, B, *leaf.shape[1:]), tree), lambda leaf: leaf.reshape(-1)
)
for update in (dealt, blocks):
    (one, one_batches), (four, four_batches) = make_learner(update), make_learner(update)
    four.spread(4)
    for _ in range(5):
        np.testing.assert_allclose(one.step(), four.step(), rtol=1e-5)
    assert four.steps == one.steps == 5 * K
    for ours, theirs in zip(jax.tree.leaves(four.state), jax.tree.leaves(one.state), strict=True):
        assert len(ours.sharding.device_set) == 4 and ours.sharding.is_fully_replicated
        if not jnp.issubdtype(ours.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(four_batches.priorities, one_batches.priorities, rtol=1e-4, atol=1e-6)
    served = four.get_variables(["policy"])
    assert served.version == 5 * K and isinstance(served.values[0]["w"], np.ndarray)


x = np.zeros((K * B, WIDTH), np.float32)
compiled = data_parallel(dealt, learner_mesh(4)).lower(initial_state(), (x, x[:, 0]), x[:, 0]).compile().as_text()
assert "all-reduce" in compiled
rows = {int(rows) for rows in re.findall("f32.([0-9]+),7..* dot.", compiled)} - {WIDTH}
assert rows == {B // 4}, rows
print("same")
"""


def run(code):
    """Runs `code` in a process that sees four devices."""
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", DEVICES + code]
    result = subprocess.run(command, check=False, env=environment, timeout=170, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.timeout(180)
def test_four_devices_give_the_numbers_of_one_and_share_the_rows():
    assert run(SAME) == "same"


def test_fewer_devices_than_asked_for_are_an_error_that_says_what_to_do():
    with pytest.raises(ProgramError, match=r"learner_devices=999, but .* sees \d+ .*(\n|.)*device_count=N"):
        learner_mesh(999)


def test_rows_are_dealt_to_the_updates_in_turn_and_gathered_in_order():
    rows = {"x": jnp.arange(12).reshape(6, 2), "y": jnp.arange(6)}
    split = split_updates(rows, 3)
    np.testing.assert_array_equal(split["y"], [[0, 3], [1, 4], [2, 5]])
    np.testing.assert_array_equal(split["x"][1], [[2, 3], [8, 9]])
    joined = join_updates(split)
    np.testing.assert_array_equal(joined["x"], rows["x"])
    np.testing.assert_array_equal(joined["y"], rows["y"])
