"""The policy and the critic of DMPO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

import flax.linen as nn
import jax
import jax.numpy as jnp

__all__ = ["Critic", "Gaussian", "GaussianPolicy"]

_MIN_STDDEV = 1e-6


class Gaussian(NamedTuple):
    """A normal distribution whose dimensions are independent; each field `[..., A]`."""

    mean: jax.Array
    stddev: jax.Array

    def sample(self, key: jax.Array, *leading: int) -> jax.Array:
        """Samples, `[*leading, ..., A]`."""
        return self.mean + self.stddev * jax.random.normal(key, (*leading, *self.mean.shape))


@final
class GaussianPolicy(nn.Module):
    """A distribution over actions: observations `[B, ...]` to a `Gaussian` of `[B, A]`.

    Actions lie in [-1, 1]; the mean may leave that range.

    Attributes:
        action_size: A.
        hidden_sizes: widths of the hidden layers.
        initial_stddev: about what the standard deviation is at first.
    """

    action_size: int
    hidden_sizes: Sequence[int]
    initial_stddev: float

    @nn.compact
    def __call__(self, observations: jax.Array) -> Gaussian:
        hidden = observations.reshape((observations.shape[0], -1)).astype(jnp.float32)
        hidden = _mlp(nn.Dense(self.hidden_sizes[0])(hidden), self.hidden_sizes[1:])
        near_zero = nn.initializers.variance_scaling(1e-2, "fan_in", "normal")
        mean, scale = (nn.Dense(self.action_size, kernel_init=near_zero)(hidden) for _ in range(2))
        stddev = nn.softplus(scale) * (self.initial_stddev / jnp.log(2.0)) + _MIN_STDDEV  # softplus(0) is log 2
        return Gaussian(mean, stddev)


@final
class Critic(nn.Module):
    """A distribution over returns: observations `[B, ...]` and actions `[..., B, A]` to logits `[..., B, K]`.

    Many actions of one observation cost its first layer once. Actions outside [-1, 1] count as the nearest inside, as
    in the environment.

    Attributes:
        hidden_sizes: widths of the hidden layers.
        num_atoms: K.
    """

    hidden_sizes: Sequence[int]
    num_atoms: int

    @nn.compact
    def __call__(self, observations: jax.Array, actions: jax.Array) -> jax.Array:
        observations = observations.reshape((observations.shape[0], -1)).astype(jnp.float32)
        size = self.hidden_sizes[0]
        # One layer of both, in two parts.
        hidden = nn.Dense(size)(observations) + nn.Dense(size, use_bias=False)(jnp.clip(actions, -1.0, 1.0))
        logits: jax.Array = nn.Dense(self.num_atoms)(_mlp(hidden, self.hidden_sizes[1:]))
        return logits


def _mlp(first: jax.Array, hidden_sizes: Sequence[int]) -> jax.Array:
    """What follows the first layer: normalised and squashed, for observations of any scale; then plain ones."""
    hidden = nn.tanh(nn.LayerNorm()(first))
    for size in hidden_sizes:
        hidden = nn.elu(nn.Dense(size)(hidden))
    return hidden
