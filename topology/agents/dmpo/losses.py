"""The losses of DMPO, on batches.

Sources: Abdolmaleki et al., "Maximum a Posteriori Policy Optimisation", 2018, arXiv:1806.06920, and "Relative Entropy
Regularized Policy Iteration", 2018, arXiv:1812.02256 (mean and standard deviation on their own); Hoffman et al.,
"Acme", 2020, arXiv:2006.00979 (distributional critic, action penalty).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import rlax

from topology.agents.dmpo.networks import Gaussian

__all__ = ["Bounds", "Duals", "PolicyLoss", "critic_loss", "make_duals", "policy_loss", "positive"]


class Duals(NamedTuple):
    """Dual variables, each as what `positive` maps to its value.

    Attributes:
        temperature: of the improved distribution over the sampled actions; scalar.
        penalty_temperature: of the distribution that penalizes actions outside; scalar.
        alpha_mean: weights of the penalty for a mean that moves, one for each dimension of the action; `[A]`.
        alpha_stddev: alike, for the standard deviation; `[A]`.
    """

    temperature: jax.Array
    penalty_temperature: jax.Array
    alpha_mean: jax.Array
    alpha_stddev: jax.Array


class Bounds(NamedTuple):
    """KL divergences that the dual variables keep; see `DMPOConfig`. Without `penalty` actions may lie anywhere."""

    improvement: float
    mean: float
    stddev: float
    penalty: float | None


class PolicyLoss(NamedTuple):
    """The loss of policy and dual variables, and what it is made of; means over the batch.

    Attributes:
        loss: scalar.
        kl_mean: divergence of the target policy from the policy by its mean, `[A]`.
        kl_stddev: alike, by its standard deviation, `[A]`.
    """

    loss: jax.Array
    kl_mean: jax.Array
    kl_stddev: jax.Array


def positive(dual: jax.Array) -> jax.Array:
    """The value of a dual variable, always above 0."""
    return jax.nn.softplus(dual) + 1e-8


def make_duals(*, temperature: float, alpha_mean: float, alpha_stddev: float, action_size: int) -> Duals:
    """Dual variables of these values."""

    def inverse(value: float) -> jax.Array:
        return value + jnp.log(-jnp.expm1(-jnp.float32(value)))  # of softplus

    return Duals(
        inverse(temperature),
        inverse(temperature),
        jnp.full((action_size,), inverse(alpha_mean)),
        jnp.full((action_size,), inverse(alpha_stddev)),
    )


def critic_loss(
    *, logits_tm1: jax.Array, r_t: jax.Array, discount_t: jax.Array, logits_t: jax.Array, atoms: jax.Array
) -> jax.Array:
    """Cross entropy to the projected distribution of the target; mean over the batch.

    The value of the last state is the mixture of those of the actions sampled there.

    Source: Bellemare et al., "A Distributional Perspective on Reinforcement Learning", 2017, arXiv:1707.06887.

    Args:
        logits_tm1: of the critic for the first state and the action taken there, `[B, K]`.
        r_t: (n-step) rewards, `[B]`.
        discount_t: (n-step) discounts, `[B]`; 0 where the episode terminated.
        logits_t: of the target critic for the last state and S actions of the target policy, `[S, B, K]`.
        atoms: the returns that the K logits stand for, growing, `[K]`.
    """
    mixture_t = jnp.mean(jax.nn.softmax(logits_t), axis=0)
    returns_t = r_t[:, None] + discount_t[:, None] * atoms
    target = jax.vmap(rlax.categorical_l2_project, in_axes=(0, 0, None))(returns_t, mixture_t, atoms)
    return -jnp.mean(jnp.sum(jax.lax.stop_gradient(target) * jax.nn.log_softmax(logits_tm1), axis=-1))


def policy_loss(
    *, duals: Duals, policy: Gaussian, target: Gaussian, actions: jax.Array, values: jax.Array, bounds: Bounds
) -> PolicyLoss:
    """MPO: the policy follows its own samples, weighted by their values, no further than the bounds allow.

    The samples are weighted by the softmax of their values over the temperature, whose dual loss keeps the weights
    within `bounds.improvement` of the uniform ones. The mean is fitted with the target's standard deviation, and the
    standard deviation with the target's mean, each held back by its own penalties.

    Args:
        duals: dual variables.
        policy: at the states, `[B, A]`; it and the dual variables have gradients.
        target: the target policy there, `[B, A]`.
        actions: samples of the target policy, not clipped, `[S, B, A]`.
        values: of the samples, `[S, B]`.
        bounds: KL divergences.
    """
    by_mean, by_stddev = Gaussian(policy.mean, target.stddev), Gaussian(target.mean, policy.stddev)
    log_probs = _log_prob(by_mean, actions) + _log_prob(by_stddev, actions)
    kl_mean, kl_stddev = _kl(target, by_mean), _kl(target, by_stddev)
    loss, _ = rlax.mpo_loss(
        sample_log_probs=log_probs,
        sample_q_values=jax.lax.stop_gradient(values),
        temperature_constraint=rlax.LagrangePenalty(duals.temperature, bounds.improvement),
        kl_constraints=[
            (kl_mean, rlax.LagrangePenalty(duals.alpha_mean, bounds.mean, per_dimension=True)),
            (kl_stddev, rlax.LagrangePenalty(duals.alpha_stddev, bounds.stddev, per_dimension=True)),
        ],
        projection_operator=positive,
    )
    if bounds.penalty is not None:
        # A second softmax, over how far the samples are outside, whose weights are added to those of the values.
        outside = jnp.linalg.norm(actions - jnp.clip(actions, -1.0, 1.0), axis=-1)
        penalty_loss, weights, _ = rlax.mpo_compute_weights_and_temperature_loss(
            -outside, rlax.LagrangePenalty(duals.penalty_temperature, bounds.penalty), positive
        )
        loss += penalty_loss - jnp.sum(jax.lax.stop_gradient(weights) * log_probs, axis=0)
    return PolicyLoss(jnp.mean(loss), jnp.mean(kl_mean, axis=0), jnp.mean(kl_stddev, axis=0))


def _log_prob(distribution: Gaussian, actions: jax.Array) -> jax.Array:
    """Of actions `[S, B, A]` under `[B, A]`: `[S, B]`."""
    return jnp.sum(jax.scipy.stats.norm.logpdf(actions, distribution.mean, distribution.stddev), axis=-1)


def _kl(first: Gaussian, second: Gaussian) -> jax.Array:
    """KL(first || second) for each dimension, `[B, A]`."""
    ratio = first.stddev / second.stddev
    return 0.5 * (jnp.square((first.mean - second.mean) / second.stddev) + jnp.square(ratio) - 1.0) - jnp.log(ratio)
