"""The loss against numbers worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from topology.agents.core.updates import importance_weights
from topology.agents.dqn.losses import double_q_loss, quantile_loss


def make(**changes):
    arguments = {
        "q_tm1": jnp.array([[1.0, 2.0], [0.5, -1.0]]),
        "a_tm1": jnp.array([1, 0]),
        "r_t": jnp.array([1.0, -2.0]),
        "discount_t": jnp.array([0.5, 0.9]),
        "q_t_value": jnp.array([[10.0, 4.0], [1.0, 3.0]]),
        "q_t_selector": jnp.array([[0.0, 5.0], [2.0, 1.0]]),
        "weights": jnp.array([1.0, 0.5]),
    }
    return arguments | changes


def test_the_target_network_values_the_action_that_the_network_chooses():
    # First row: action 1 is chosen, worth 4: 1 + 0.5 * 4 - 2 = 1. Second: action 0, worth 1: -2 + 0.9 - 0.5 = -1.6.
    result = double_q_loss(**make())
    np.testing.assert_allclose(result.td_error, [1.0, -1.6], rtol=1e-6)
    # Huber with delta 1: 0.5 and 1.6 - 0.5 = 1.1, weighted 1 and 0.5, mean of two.
    np.testing.assert_allclose(result.loss, (0.5 + 0.55) / 2, rtol=1e-6)


def test_the_huber_delta_moves_the_bend():
    np.testing.assert_allclose(double_q_loss(**make(), huber_delta=2.0).loss, (0.5 + 0.5 * 1.28) / 2, rtol=1e-6)


def test_a_terminal_transition_has_its_reward_as_target():
    result = double_q_loss(**make(discount_t=jnp.zeros(2)))
    np.testing.assert_allclose(result.td_error, [-1.0, -2.5], rtol=1e-6)


def test_the_gradient_goes_through_the_first_state_only():
    def loss(q_tm1, q_t_value, q_t_selector):
        return double_q_loss(**make(q_tm1=q_tm1, q_t_value=q_t_value, q_t_selector=q_t_selector)).loss

    arguments = make()
    gradients = jax.grad(loss, argnums=(0, 1, 2))(arguments["q_tm1"], arguments["q_t_value"], arguments["q_t_selector"])
    # d huber / d q = -clip(td, -1, 1), times the weight, over two: -1 * 1 / 2 and +1 * 0.5 / 2.
    np.testing.assert_allclose(gradients[0], [[0.0, -0.5], [0.25, 0.0]], rtol=1e-6)
    assert not np.any(gradients[1])
    assert not np.any(gradients[2])


def test_importance_weights_undo_the_sampling_up_to_their_largest():
    weights = importance_weights(jnp.array([0.5, 0.125, 0.25]), 0.5)
    np.testing.assert_allclose(weights, [0.5, 1.0, np.sqrt(0.5)], rtol=1e-6)
    np.testing.assert_allclose(importance_weights(jnp.array([0.5, 0.1]), 0.0), [1.0, 1.0])


def make_quantiles(**changes):
    arguments = {
        "dist_tm1": jnp.array([[[0.0, 9.0], [1.0, 9.0]]]),
        "a_tm1": jnp.array([0]),
        "r_t": jnp.array([1.0]),
        "discount_t": jnp.array([0.5]),
        "dist_t": jnp.array([[[7.0, -2.0], [7.0, 6.0]]]),
        "dist_t_selector": jnp.array([[[0.0, 1.0], [0.0, 3.0]]]),
        "weights": jnp.array([0.5]),
    }
    return arguments | changes


def test_quantiles_move_by_the_share_of_targets_above_them():
    # The mean of the selector chooses action 1, whose targets are 1 + 0.5 * (-2, 6) = (0, 4), for estimates (0, 1).
    # Errors: of 0 at probability 1/4: (0, 4), weights |1/4 - [error < 0]| = (1/4, 1/4), Huber (0, 3.5);
    # of 1 at 3/4: (-1, 3), weights (1/4, 3/4), Huber (0.5, 2.5). Mean over targets, sum over estimates.
    result = quantile_loss(**make_quantiles())
    expected = (0.25 * 3.5) / 2 + (0.25 * 0.5 + 0.75 * 2.5) / 2
    np.testing.assert_allclose(result.loss, 0.5 * expected, rtol=1e-6)
    np.testing.assert_allclose(result.td_error, [2.0 - 0.5], rtol=1e-6)


def test_learned_quantiles_are_those_of_the_returns():
    returns = np.random.default_rng(0).choice([0.0, 1.0, 10.0], size=512, p=[0.3, 0.5, 0.2]).astype(np.float32)
    several = {"a_tm1": jnp.zeros(512, jnp.int32), "discount_t": jnp.zeros(512), "weights": jnp.ones(512)}
    dist_t = jnp.zeros((512, 5, 1))

    def loss(dist):
        rows = jnp.broadcast_to(dist[None, :, None], (512, 5, 1))
        arguments = make_quantiles(dist_tm1=rows, r_t=returns, dist_t=dist_t, dist_t_selector=dist_t, **several)
        return quantile_loss(**arguments, huber_delta=0.01).loss

    step = jax.jit(lambda dist, rate: dist - rate * jax.grad(loss)(dist))
    dist = jnp.full(5, 3.0)
    for i in range(800):
        dist = step(dist, 20.0 if i < 600 else 1.0)
    np.testing.assert_allclose(dist, np.quantile(returns, [0.1, 0.3, 0.5, 0.7, 0.9], method="nearest"), atol=0.15)
