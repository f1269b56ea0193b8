"""The loss of IMPALA, on sequences.

Source: Espeholt et al., "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures",
2018, arXiv:1802.01561, section 4.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import rlax

__all__ = ["IMPALALoss", "VTrace", "action_log_probability", "impala_loss", "masked_mean", "vtrace"]


class VTrace(NamedTuple):
    """What V-trace makes of sequences, both `[T, B]` and without a gradient.

    Attributes:
        targets: of the values.
        advantages: of the actions, importance weights included.
    """

    targets: jax.Array
    advantages: jax.Array


class IMPALALoss(NamedTuple):
    """Scalars, each a mean over the steps that count.

    Attributes:
        loss: the weighted sum of the others.
        policy_loss: of the policy gradient.
        baseline_loss: half the squared error of the values.
        entropy: of the policy, in nats.
        ratio: importance weights of the actions, before they are clipped; 1 on policy.
    """

    loss: jax.Array
    policy_loss: jax.Array
    baseline_loss: jax.Array
    entropy: jax.Array
    ratio: jax.Array


def action_log_probability(logits: jax.Array, actions: jax.Array) -> jax.Array:
    """Logarithm of the probability of each action: `[..., A]` and `[...]` to `[...]`."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], axis=-1)[..., 0]


def masked_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean of the values where the mask is 1; 0 where it is so nowhere."""
    return jnp.sum(values * mask) / jnp.maximum(jnp.sum(mask), 1.0)


def vtrace(
    *,
    v_tm1: jax.Array,
    v_t: jax.Array,
    r_t: jax.Array,
    discount_t: jax.Array,
    ratio_tm1: jax.Array,
    mask_tm1: jax.Array,
    max_ratio: float,
    max_policy_ratio: float,
    trace_decay: float,
) -> VTrace:
    """Targets and advantages by V-trace, of sequences `[T, B]`.

    Nothing reaches back over a masked step: the value of its state stands for all that follows.

    Args:
        v_tm1: values of the states in which actions were taken.
        v_t: values of the states they led to.
        r_t: rewards on the way.
        discount_t: discounts on the way; 0 where an episode terminated.
        ratio_tm1: probability of the action now, divided by what it was when it was taken.
        mask_tm1: 1 where an action was taken.
        max_ratio: rho-bar.
        max_policy_ratio: clips the ratios of the advantages.
        trace_decay: lambda.
    """
    of_one = functools.partial(
        rlax.vtrace_td_error_and_advantage,
        lambda_=trace_decay,
        clip_rho_threshold=max_ratio,
        clip_pg_rho_threshold=max_policy_ratio,
    )
    ratio_tm1 = jnp.where(mask_tm1 > 0, ratio_tm1, 0.0)
    result = jax.vmap(of_one, in_axes=1, out_axes=1)(v_tm1, v_t, r_t, discount_t, ratio_tm1)
    targets = jax.lax.stop_gradient(result.errors + v_tm1)
    return VTrace(targets, jax.lax.stop_gradient(result.pg_advantage))


def impala_loss(
    *,
    logits: jax.Array,
    values: jax.Array,
    behaviour_logits: jax.Array,
    actions: jax.Array,
    rewards: jax.Array,
    discounts: jax.Array,
    mask: jax.Array,
    entropy_cost: float,
    baseline_cost: float,
    max_ratio: float = 1.0,
    max_policy_ratio: float = 1.0,
    trace_decay: float = 1.0,
) -> IMPALALoss:
    """The loss of sequences of `T` rows (see `StepSequence`), the last of which only gives a value.

    Args:
        logits: of the policy that learns, `[T, B, A]`.
        values: `[T, B]`.
        behaviour_logits: of the policy that acted, `[T, B, A]`.
        actions: int `[T, B]`.
        rewards: `[T, B]`; that of row t leads to row t + 1, as does its discount.
        discounts: `[T, B]`.
        mask: `[T, B]`; 1 where an action was taken.
        entropy_cost: weight of the entropy.
        baseline_cost: weight of the error of the values.
        max_ratio: see `vtrace`.
        max_policy_ratio: see `vtrace`.
        trace_decay: see `vtrace`.
    """
    mask_tm1 = mask[:-1]
    log_pi = action_log_probability(logits, actions)[:-1]
    log_mu = action_log_probability(behaviour_logits, actions)[:-1]
    ratio = jnp.exp(jax.lax.stop_gradient(log_pi) - log_mu)
    corrected = vtrace(
        v_tm1=values[:-1],
        v_t=values[1:],
        r_t=rewards[:-1],
        discount_t=discounts[:-1],
        ratio_tm1=ratio,
        mask_tm1=mask_tm1,
        max_ratio=max_ratio,
        max_policy_ratio=max_policy_ratio,
        trace_decay=trace_decay,
    )
    policy_loss = masked_mean(-log_pi * corrected.advantages, mask_tm1)
    baseline_loss = masked_mean(rlax.l2_loss(values[:-1], corrected.targets), mask_tm1)
    log_policy = jax.nn.log_softmax(logits[:-1])
    entropy = masked_mean(-jnp.sum(jnp.exp(log_policy) * log_policy, axis=-1), mask_tm1)
    loss = policy_loss + baseline_cost * baseline_loss - entropy_cost * entropy
    return IMPALALoss(loss, policy_loss, baseline_loss, entropy, masked_mean(ratio, mask_tm1))
