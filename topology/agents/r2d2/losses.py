"""The loss of R2D2, on sequences in order of time, and the priorities that follow from it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import rlax

__all__ = ["masked_mean", "n_step_errors", "sequence_priority"]

_RESCALED = rlax.SIGNED_HYPERBOLIC_PAIR


def n_step_errors(
    *,
    q_tm1: jax.Array,
    a_tm1: jax.Array,
    r_t: jax.Array,
    discount_t: jax.Array,
    q_t_value: jax.Array,
    q_t_selector: jax.Array,
    continues_t: jax.Array,
    n_step: int,
) -> jax.Array:
    """Errors of n-step double Q-learning on rescaled values; `[T, B]`. No gradient goes into the targets.

    The networks give h(Q), with h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x. A target takes its value `n_step` steps
    on, or at the last observation before that: where the sequence or the episode ends.

    Source: Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning", 2019, section 2.3;
    Pohlen et al., "Observe and Look Further", 2018, arXiv:1805.11593.

    Args:
        q_tm1: values of the network at each step, `[T, B, A]`.
        a_tm1: actions taken there, `[T, B]`.
        r_t: what they gave, `[T, B]`.
        discount_t: `[T, B]`; 0 where the episode terminated.
        q_t_value: values of the target network at the next step, `[T, B, A]`.
        q_t_selector: values of the network at the next step, which choose the action there, `[T, B, A]`.
        continues_t: 1 where an action was taken at the next step, 0 where the episode ended there, `[T, B]`.
        n_step: steps of a target.
    """

    def errors(
        q_tm1: jax.Array,
        a_tm1: jax.Array,
        r_t: jax.Array,
        discount_t: jax.Array,
        q_t_value: jax.Array,
        q_t_selector: jax.Array,
        continues_t: jax.Array,
    ) -> jax.Array:
        v_t = _RESCALED.apply_inv(rlax.batched_index(q_t_value, jnp.argmax(q_t_selector, axis=-1)))
        # A lambda of 0 ends a return where its episode ends, so that one that was cut off keeps its last value.
        returns = rlax.n_step_bootstrapped_returns(r_t, discount_t, v_t, n_step, continues_t)
        target_tm1 = jax.lax.stop_gradient(_RESCALED.apply(returns))
        error: jax.Array = target_tm1 - rlax.batched_index(q_tm1, a_tm1)
        return error

    over_batch = jax.vmap(errors, in_axes=1, out_axes=1)
    return over_batch(q_tm1, a_tm1, r_t, discount_t, q_t_value, q_t_selector, continues_t)


def masked_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean over time of what the mask (0 or 1) lets through: `[T, B]` to `[B]`; 0 where there is nothing."""
    return jnp.sum(values * mask, axis=0) / jnp.maximum(jnp.sum(mask, axis=0), 1.0)


def sequence_priority(td_error: jax.Array, mask: jax.Array, max_priority_weight: float) -> jax.Array:
    """Priority of each sequence, between the largest and the mean of its absolute errors: `[T, B]` to `[B]`.

    Source: Kapturowski et al., 2019, section 2.3, where the weight of the largest is 0.9.
    """
    errors = jnp.abs(td_error) * mask
    return max_priority_weight * jnp.max(errors, axis=0) + (1 - max_priority_weight) * masked_mean(errors, mask)
