"""Parts of networks that agents share."""

from __future__ import annotations

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

__all__ = ["Torso", "is_image"]


def is_image(observations: specs.Array) -> bool:
    """Whether observations of this spec are images: uint8 `[height, width, channels]`."""
    return len(observations.shape) == 3 and observations.dtype == np.uint8


class Torso(nn.Module):
    """Features of observations: `[..., *observation]` to `[..., hidden_sizes[-1]]`, with any leading axes.

    Observations are flattened. Images are scaled to 0..1 and pass two convolutions first.

    Attributes:
        hidden_sizes: widths of the hidden layers.
        observation_rank: axes of one observation.
        is_image: see `is_image`.
    """

    hidden_sizes: Sequence[int]
    observation_rank: int
    is_image: bool = False

    @nn.compact
    def __call__(self, observations: jax.Array) -> jax.Array:
        leading = observations.shape[: observations.ndim - self.observation_rank]
        hidden = observations.astype(jnp.float32)
        if self.is_image:
            hidden = hidden.reshape((-1, *observations.shape[-3:])) / 255.0
            hidden = nn.relu(nn.Conv(16, (8, 8), (4, 4))(hidden))
            hidden = nn.relu(nn.Conv(32, (4, 4), (2, 2))(hidden))
        hidden = hidden.reshape((*leading, -1))
        for size in self.hidden_sizes:
            hidden = nn.relu(nn.Dense(size)(hidden))
        return hidden
