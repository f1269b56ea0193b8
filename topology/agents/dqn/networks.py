"""Networks that give a value for each action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from topology.agents.core.convolution import ImageTorso
from topology.environments.specs import EnvironmentSpec, num_discrete_actions

__all__ = ["QNetwork", "make_network", "normalize"]


class QNetwork(nn.Module):
    """Action values from observations: `[B, ...]` to `[B, num_actions]`.

    Observations are flattened. Images (`[B, height, width, channels]`, uint8) pass three convolutions first, see
    `ImageTorso`. Each hidden layer is normalized before its activation, which keeps values from growing where there are
    no data: without it one run in ten of CartPole ends far below the others.

    Source: Ba et al., "Layer Normalization", 2016, arXiv:1607.06450; for Q-learning: Gallici et al., "Simplifying Deep
    Temporal Difference Learning", 2024, arXiv:2407.04811.

    Attributes:
        num_actions: number of actions.
        hidden_sizes: widths of the hidden layers.
        is_image: whether observations are images.
    """

    num_actions: int
    hidden_sizes: Sequence[int]
    is_image: bool = False

    @nn.compact
    def __call__(self, observations: jax.Array) -> jax.Array:
        if self.is_image:
            hidden = ImageTorso()(observations)
        else:
            hidden = observations.astype(jnp.float32).reshape((observations.shape[0], -1))
        for size in self.hidden_sizes:
            hidden = nn.relu(normalize(nn.Dense(size)(hidden)))
        values: jax.Array = nn.Dense(self.num_actions)(hidden)
        return values


def normalize(hidden: Any) -> Any:
    """Mean 0 and variance 1 over the last axis, of jax and of numpy arrays."""
    centered = hidden - hidden.mean(axis=-1, keepdims=True)
    return centered * ((centered * centered).mean(axis=-1, keepdims=True) + 1e-6) ** -0.5


def make_network(spec: EnvironmentSpec, hidden_sizes: Sequence[int]) -> QNetwork:
    """The network for an environment.

    Raises:
        ProgramError: its actions are not discrete.
    """
    observations = spec.observations
    return QNetwork(
        num_actions=num_discrete_actions(spec, agent="DQN"),
        hidden_sizes=tuple(hidden_sizes),
        is_image=len(observations.shape) == 3 and observations.dtype == np.uint8,
    )
