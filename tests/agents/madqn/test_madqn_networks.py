"""The networks of a team: sharing, mixing, memory, agents with different actions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from topology.agents.madqn.config import MADQNConfig
from topology.agents.madqn.networks import QMixer, legal_actions, make_team_network
from topology.agents.madqn.team import make_team


@pytest.fixture
def uneven(make_spec):
    return make_spec({"scout_0": 2, "scout_1": 2, "boss": 4}, {"boss": (3, 2)}, masked=("boss",))


@pytest.fixture
def build(make_sequences):
    return functools.partial(_build, make_sequences)


def _build(make_sequences, spec, *, batch=3, length=4, seed=0, **settings):
    """A network, its first weights, and sequences by time."""
    config = MADQNConfig(hidden_sizes=(8,), memory_size=5, mixing_size=6, **settings)
    network = make_team_network(make_team(spec, shared_weights=config.shared_weights), config)
    memory_size = config.memory_size if config.recurrent else None
    sequences = make_sequences(spec, batch, length, seed=seed, memory_size=memory_size)
    observations = jax.tree.map(lambda leaf: np.swapaxes(leaf, 0, 1), sequences.observation)
    keep = np.ones((length, batch), np.float32)
    params = jax.jit(network.init)(jax.random.key(1), observations, sequences.state, keep)
    return network, params, observations, sequences.state, keep


def values(network, params, observations, memory, keep):
    return _compiled(network, "values")(params, observations, memory, keep)


@functools.cache
def _compiled(network, method):
    return jax.jit(functools.partial(network.apply, method=method))


def test_each_kind_has_its_own_actions_and_what_is_missing_is_never_legal(build, uneven):
    network, params, observations, memory, keep = build(uneven)
    q, after = values(network, params, observations, memory, keep)
    assert q.shape == (4, 3, 3, 4)
    assert after == ()
    assert np.all(q[..., :2, 2:] == 0)
    assert np.all(q[..., 2, :] != 0)
    legal = legal_actions(network.team, observations)
    assert legal.shape == (4, 3, 3, 4)
    assert np.all(legal[..., :2, :] == np.array([True, True, False, False]))
    np.testing.assert_array_equal(legal[..., 2, :], observations["boss"]["action_mask"] == 1)


def test_shared_weights_are_one_network_that_knows_whom_it_is_for(build, make_spec):
    spec = make_spec({"a_0": 3, "a_1": 3})
    network, params, observations, memory, keep = build(spec)
    assert len(params["params"]) == 1
    same = {"a_0": observations["a_0"], "a_1": observations["a_0"]}
    q, _ = values(network, params, same, memory, keep)
    assert not np.allclose(q[:, :, 0], q[:, :, 1])
    separate, own, *_ = build(spec, shared_weights=False)
    assert len(own["params"]) == 2
    q, _ = values(separate, own, same, memory, keep)
    assert not np.allclose(q[:, :, 0], q[:, :, 1])


def test_a_memory_goes_on_within_an_episode_and_begins_anew_with_the_next(build, uneven):
    network, params, observations, memory, keep = build(uneven, recurrent=True)
    whole, after = values(network, params, observations, memory, keep)
    first, between = values(network, params, jax.tree.map(lambda x: x[:2], observations), memory, keep[:2])
    second, end = values(network, params, jax.tree.map(lambda x: x[2:], observations), between, keep[2:])
    np.testing.assert_allclose(whole, np.concatenate([first, second]), atol=1e-6)
    np.testing.assert_allclose(after, end, atol=1e-6)
    assert after.shape == (3, 3, 5)
    keep[2, 1] = 0  # the second sequence has an episode that begins there
    cut, _ = values(network, params, observations, memory, keep)
    fresh, _ = values(network, params, jax.tree.map(lambda x: x[2:], observations), 0 * memory, keep[3:].repeat(2, 0))
    np.testing.assert_allclose(cut[:, ::2], whole[:, ::2], atol=1e-6)
    np.testing.assert_allclose(cut[2:, 1], fresh[:, 1], atol=1e-6)
    assert not np.allclose(cut[2:, 1], whole[2:, 1])


def test_mixing(build, uneven):
    taken = jnp.arange(36.0).reshape(4, 3, 3)
    for mixing, expected in (("none", taken), ("vdn", taken.sum(-1, keepdims=True))):
        network = make_team_network(make_team(uneven, shared_weights=True), MADQNConfig(mixing=mixing))
        np.testing.assert_array_equal(network.apply({}, taken, {}, method="mix"), expected)
    network, params, observations, *_ = build(uneven, mixing="qmix")
    mix = lambda taken: _compiled(network, "mix")(params, taken, observations)  # noqa: E731
    assert mix(taken).shape == (4, 3, 1)
    # The same values are worth something else where something else is seen.
    total = mix(jnp.ones((4, 3, 3)))
    assert len(np.unique(np.asarray(total))) == 12
    assert len(params["params"]) == len(network.team.groups) + 1


@pytest.mark.parametrize("seed", range(3))
def test_a_team_never_loses_by_what_one_of_it_gains(seed):
    random = np.random.default_rng(seed)
    state = random.standard_normal((50, 7)).astype(np.float32)
    taken = 10 * random.standard_normal((50, 3)).astype(np.float32)
    mixer = QMixer(16)
    params = jax.jit(mixer.init)(jax.random.key(seed), taken, state)
    gradient = jax.jit(jax.grad(lambda taken: mixer.apply(params, taken, state).sum()))(taken)
    assert np.all(gradient >= 0)
    assert np.mean(gradient > 0) > 0.9
