"""The losses of DQN, on batches."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import rlax

__all__ = ["QLoss", "double_q_loss", "quantile_loss"]


class QLoss(NamedTuple):
    """The loss, and the error of each transition.

    Attributes:
        loss: weighted mean over the batch; scalar.
        td_error: target minus value, `[B]`.
    """

    loss: jax.Array
    td_error: jax.Array


def double_q_loss(
    *,
    q_tm1: jax.Array,
    a_tm1: jax.Array,
    r_t: jax.Array,
    discount_t: jax.Array,
    q_t_value: jax.Array,
    q_t_selector: jax.Array,
    weights: jax.Array,
    huber_delta: float = 1.0,
) -> QLoss:
    """Double Q-learning with a Huber loss.

    Source: van Hasselt et al., "Deep Reinforcement Learning with Double Q-learning", 2016, arXiv:1509.06461.

    Args:
        q_tm1: values of the network at the first state, `[B, A]`.
        a_tm1: actions taken there, `[B]`.
        r_t: (n-step) rewards, `[B]`.
        discount_t: (n-step) discounts, `[B]`; 0 where the episode terminated.
        q_t_value: values of the target network at the last state, `[B, A]`.
        q_t_selector: values of the network at the last state, which choose the action there, `[B, A]`.
        weights: of the transitions, `[B]`.
        huber_delta: error at which the loss turns from quadratic to linear.
    """
    td_error = jax.vmap(rlax.double_q_learning)(q_tm1, a_tm1, r_t, discount_t, q_t_value, q_t_selector)
    loss = jnp.mean(weights * rlax.huber_loss(td_error, huber_delta))
    return QLoss(loss, td_error)


def quantile_loss(
    *,
    dist_tm1: jax.Array,
    a_tm1: jax.Array,
    r_t: jax.Array,
    discount_t: jax.Array,
    dist_t: jax.Array,
    dist_t_selector: jax.Array,
    weights: jax.Array,
    huber_delta: float = 1.0,
) -> QLoss:
    """Q-learning of the quantiles of the return; the errors are those of its mean.

    The N quantiles are those of the probabilities `(i + 1/2) / N`.

    Source: Dabney et al., "Distributional Reinforcement Learning with Quantile Regression", 2018, arXiv:1710.10044.

    Args:
        dist_tm1: quantiles of the network at the first state, `[B, N, A]`.
        a_tm1: actions taken there, `[B]`.
        r_t: (n-step) rewards, `[B]`.
        discount_t: (n-step) discounts, `[B]`; 0 where the episode terminated.
        dist_t: quantiles of the target network at the last state, `[B, N, A]`.
        dist_t_selector: quantiles whose mean chooses the action there, `[B, N, A]`.
        weights: of the transitions, `[B]`.
        huber_delta: error at which the loss turns from quadratic to linear.
    """
    num_quantiles = dist_tm1.shape[1]
    probabilities = (jnp.arange(num_quantiles, dtype=dist_tm1.dtype) + 0.5) / num_quantiles
    learn = jax.vmap(rlax.quantile_q_learning, in_axes=(0, None, 0, 0, 0, 0, 0, None))
    loss = learn(dist_tm1, probabilities, a_tm1, r_t, discount_t, dist_t_selector, dist_t, huber_delta)
    q_tm1, q_t, q_t_selector = (jnp.mean(dist, axis=1) for dist in (dist_tm1, dist_t, dist_t_selector))
    td_error = jax.vmap(rlax.double_q_learning)(q_tm1, a_tm1, r_t, discount_t, q_t, q_t_selector)
    return QLoss(jnp.mean(weights * loss), jax.lax.stop_gradient(td_error))
