"""Networks that give a value for each action."""

from __future__ import annotations

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from topology.agents.core.convolution import ImageTorso
from topology.agents.dqn.config import DQNConfig
from topology.environments.specs import EnvironmentSpec, is_image, num_discrete_actions

__all__ = ["ADVANTAGE", "EPSILON", "QNetwork", "make_network"]

ADVANTAGE = "advantage"
"""Its layers `advantage_0`, `advantage_1`, ... alone decide which action is the best, dueling or not."""


EPSILON = 1e-6
"""Added to the variance that a hidden layer is divided by."""


class QNetwork(nn.Module):
    """Action values from observations: `[B, ...]` to `[B, num_actions]`.

    Observations are flattened. Images (`[B, height, width, channels]`, uint8) pass three convolutions first, see
    `ImageTorso`. Each hidden layer is normalized before its activation, which keeps values from growing where there are
    no data: without it one run in ten of CartPole ends far below the others.

    Source: Ba et al., "Layer Normalization", 2016, arXiv:1607.06450; for Q-learning: Gallici et al., "Simplifying Deep
    Temporal Difference Learning", 2024, arXiv:2407.04811; dueling: Wang et al., "Dueling Network Architectures for Deep
    Reinforcement Learning", 2016, arXiv:1511.06581.

    Attributes:
        num_actions: number of actions.
        hidden_sizes: widths of the hidden layers.
        is_image: whether observations are images.
        dueling: whether layers of their own estimate the value of the state, and others what an action adds to it.
        num_quantiles: how many quantiles of the return are estimated; 1 for its mean.
    """

    num_actions: int
    hidden_sizes: Sequence[int]
    is_image: bool = False
    dueling: bool = False
    num_quantiles: int = 1

    def __call__(self, observations: jax.Array) -> jax.Array:
        return jnp.mean(self.quantiles(observations), axis=-2)

    @nn.compact
    def quantiles(self, observations: jax.Array) -> jax.Array:
        """Quantiles of the return of each action, `[B, num_quantiles, num_actions]`."""
        if self.is_image:
            features = ImageTorso()(observations)
        else:
            features = observations.astype(jnp.float32).reshape((observations.shape[0], -1))
        advantages = self._stream(features, ADVANTAGE, self.num_quantiles * self.num_actions)
        values = advantages.reshape(-1, self.num_quantiles, self.num_actions)
        if not self.dueling:
            return values
        state_values = self._stream(features, "value", self.num_quantiles)[..., None]
        return state_values + values - jnp.mean(values, axis=-1, keepdims=True)

    def _stream(self, hidden: jax.Array, name: str, num_outputs: int) -> jax.Array:
        for i, size in enumerate(self.hidden_sizes):
            hidden = nn.relu(_normalize(nn.Dense(size, name=f"{name}_{i}")(hidden)))
        outputs: jax.Array = nn.Dense(num_outputs, name=f"{name}_{len(self.hidden_sizes)}")(hidden)
        return outputs


def _normalize(hidden: jax.Array) -> jax.Array:
    """Mean 0 and variance 1 over the last axis."""
    centered = hidden - hidden.mean(axis=-1, keepdims=True)
    return centered * ((centered * centered).mean(axis=-1, keepdims=True) + EPSILON) ** -0.5


def make_network(config: DQNConfig, spec: EnvironmentSpec) -> QNetwork:
    """The network for an environment.

    Raises:
        ProgramError: its actions are not discrete.
    """
    observations = spec.observations
    return QNetwork(
        num_actions=num_discrete_actions(spec, agent="DQN"),
        hidden_sizes=config.hidden_sizes,
        is_image=is_image(observations),
        dueling=config.dueling,
        num_quantiles=config.num_quantiles,
    )
