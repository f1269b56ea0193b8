"""The loss against numbers worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from topology.agents.dqn.losses import double_q_loss, importance_weights


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
