"""The loss of MADQN, on sequences in order of time."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import rlax

__all__ = ["best_actions", "masked_mean", "n_step_errors", "team_rewards", "value_of"]


def best_actions(q: jax.Array, legal: jax.Array) -> jax.Array:
    """The best legal action: `[..., A]` to `[...]`; 0 where none is legal."""
    return jnp.argmax(jnp.where(legal, q, -jnp.inf), axis=-1)


def value_of(q: jax.Array, actions: jax.Array) -> jax.Array:
    """The values of these actions: `[..., A]` and `[...]` to `[...]`."""
    return jnp.take_along_axis(q, actions[..., None], axis=-1)[..., 0]


def team_rewards(rewards: jax.Array, discounts: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Rewards and discounts of a team that learns one value, `[..., N]` to `[..., 1]`.

    The reward is the mean of the agents' own, which is theirs where they share it. The team goes on as long as one of
    them does.
    """
    return jnp.mean(rewards, axis=-1, keepdims=True), jnp.max(discounts, axis=-1, keepdims=True)


def n_step_errors(
    *,
    v_tm1: jax.Array,
    r_t: jax.Array,
    discount_t: jax.Array,
    v_t: jax.Array,
    continues_t: jax.Array,
    n_step: int,
) -> jax.Array:
    """Errors of n-step values: target minus value, `[T, B, M]`. No gradient goes into the targets.

    A target takes its value `n_step` steps on, or at the last observation before that: where the sequence or the
    episode ends.

    Args:
        v_tm1: values of the actions taken at each step, `[T, B, M]`.
        r_t: what they gave, `[T, B, M]`.
        discount_t: `[T, B, M]`; 0 where the episode terminated.
        v_t: values of the best actions at the next step, `[T, B, M]`.
        continues_t: 1 where an action was taken at the next step, 0 where the episode ended there, `[T, B]`.
        n_step: steps of a target.
    """

    def target(r_t: jax.Array, discount_t: jax.Array, v_t: jax.Array, continues_t: jax.Array) -> jax.Array:
        # A lambda of 0 ends a return where its episode ends, so that one that was cut off keeps its last value.
        result: jax.Array = rlax.n_step_bootstrapped_returns(r_t, discount_t, v_t, n_step, continues_t)
        return result

    over_agents = jax.vmap(target, in_axes=(1, 1, 1, None), out_axes=1)
    targets = jax.vmap(over_agents, in_axes=1, out_axes=1)(r_t, discount_t, v_t, continues_t)
    return jax.lax.stop_gradient(targets) - v_tm1


def masked_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """The mean of `values` `[T, B, M]` where `mask` `[T, B]` is 1; 0 where it is nowhere. Scalar."""
    weights = jnp.broadcast_to(mask[..., None], values.shape)
    return jnp.sum(values * weights) / jnp.maximum(jnp.sum(weights), 1.0)
