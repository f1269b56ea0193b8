"""The losses of MADQN against sums by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from topology.agents.madqn import losses


def test_the_best_action_is_a_legal_one():
    q = jnp.array([[3.0, -1.0, -2.0], [3.0, -1.0, -2.0], [-3.0, -1.0, -1.0]])
    legal = jnp.array([[True, True, True], [False, True, True], [True, True, False]])
    assert losses.best_actions(q, legal).tolist() == [0, 1, 1]
    assert losses.best_actions(q, jnp.zeros((3, 3), bool)).tolist() == [0, 0, 0]
    assert losses.value_of(q, jnp.array([2, 0, 1])).tolist() == [-2.0, 3.0, -1.0]


def test_a_team_gets_the_mean_and_goes_on_with_any_of_them():
    rewards = jnp.array([[[1.0, 3.0], [2.0, 2.0]]])
    discounts = jnp.array([[[0.0, 0.9], [0.0, 0.0]]])
    reward, discount = losses.team_rewards(rewards, discounts)
    np.testing.assert_allclose(reward, [[[2.0], [2.0]]])
    np.testing.assert_allclose(discount, [[[0.9], [0.0]]])


def reference(r, discount, v, continues, n_step):
    """The targets of one agent in one sequence, step by step."""
    targets = []
    for t in range(len(r)):
        total, factor = 0.0, 1.0
        for k in range(t, len(r)):
            total += factor * r[k]
            factor *= discount[k]
            if k - t + 1 == n_step or k == len(r) - 1 or continues[k] == 0:
                total += factor * v[k]
                break
        targets.append(total)
    return targets


@pytest.mark.parametrize("n_step", [1, 3])
def test_targets_end_with_their_episode_or_sequence(n_step):
    random = np.random.default_rng(n_step)
    shape = (5, 4, 2)
    r, v, taken = (random.standard_normal(shape).astype(np.float32) for _ in range(3))
    discount = random.choice([0.0, 0.9], shape, p=[0.2, 0.8]).astype(np.float32)
    continues = random.integers(2, size=shape[:2]).astype(np.float32)
    compiled = jax.jit(functools.partial(losses.n_step_errors, n_step=n_step))
    error = compiled(v_tm1=taken, r_t=r, discount_t=discount, v_t=v, continues_t=continues)
    for b in range(4):
        for m in range(2):
            expected = reference(r[:, b, m], discount[:, b, m], v[:, b, m], continues[:, b], n_step)
            np.testing.assert_allclose(error[:, b, m], expected - taken[:, b, m], atol=1e-5)


def test_no_gradient_goes_into_the_targets():
    def loss(v):
        ones = jnp.ones((3, 1, 1))
        return jnp.sum(
            losses.n_step_errors(v_tm1=v, r_t=ones, discount_t=ones, v_t=10 * v, continues_t=jnp.ones((3, 1)), n_step=2)
        )

    np.testing.assert_array_equal(jax.grad(loss)(jnp.ones((3, 1, 1))), -np.ones((3, 1, 1)))


def test_the_mean_is_of_what_the_mask_lets_through():
    values = jnp.array([[[1.0, 3.0]], [[100.0, 100.0]], [[5.0, 7.0]]])
    assert losses.masked_mean(values, jnp.array([[1.0], [0.0], [1.0]])) == 4.0
    assert losses.masked_mean(values, jnp.zeros((3, 1))) == 0.0
