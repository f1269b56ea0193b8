"""The loss of DQN, on batches."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import rlax

__all__ = ["DoubleQLoss", "double_q_loss", "importance_weights"]


class DoubleQLoss(NamedTuple):
    """The loss, and the error of each transition.

    Attributes:
        loss: weighted mean over the batch; scalar.
        td_error: target minus value, `[B]`.
    """

    loss: jax.Array
    td_error: jax.Array


def importance_weights(probability: jax.Array, exponent: float) -> jax.Array:
    """Weights that undo prioritized sampling, the largest of them 1; `[B]` to `[B]`.

    Source: Schaul et al., "Prioritized Experience Replay", 2016, arXiv:1511.05952, section 3.4.
    """
    weights = (1.0 / probability) ** exponent
    return weights / jnp.max(weights)


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
) -> DoubleQLoss:
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
    return DoubleQLoss(loss, td_error)
