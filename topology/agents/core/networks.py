"""Parts of networks that agents share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from topology.agents.core.convolution import SMALL_LAYERS, ImageTorso

__all__ = ["LSTM", "Torso"]


class Torso(nn.Module):
    """Features of observations: `[..., *observation]` to `[..., hidden_sizes[-1]]`, with any leading axes.

    Observations are flattened. Images pass two convolutions first, see `ImageTorso`.

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
        if self.is_image:
            hidden = ImageTorso(SMALL_LAYERS)(observations.reshape((-1, *observations.shape[-3:])))
        else:
            hidden = observations.astype(jnp.float32)
        hidden = hidden.reshape((*leading, -1))
        for size in self.hidden_sizes:
            hidden = nn.relu(nn.Dense(size)(hidden))
        return hidden


class LSTM(nn.Module):
    """A memory along the axis T, emptied where an episode begins.

    Its forget gate begins open: it has 1 added to it.

    Source: Hochreiter & Schmidhuber, "Long Short-Term Memory", 1997; the open gate is that of Gers et al., 2000.

    Attributes:
        size: width of the memory.
    """

    size: int

    @nn.compact
    def __call__(self, features: jax.Array, begins: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        """Outputs `[T, B, size]`, and the state after the last step.

        Args:
            features: `[T, B, ...]`.
            begins: bool `[T, B]`; whether an episode begins there.
            state: before the first step: cell and output, `[B, size]` each.
        """
        # Only what depends on the step before is computed step by step; this product is one for the whole sequence.
        gates = nn.Dense(4 * self.size, name="input")(features)
        recurrent = self.param("recurrent", nn.initializers.orthogonal(), (self.size, 4 * self.size), jnp.float32)

        def step(state: Any, inputs: tuple[jax.Array, jax.Array]) -> tuple[Any, jax.Array]:
            gates, begins = inputs
            cell, output = (jnp.where(begins[:, None], 0.0, leaf) for leaf in state)
            into, keep, out, new = jnp.split(gates + output @ recurrent, 4, axis=-1)
            cell = nn.sigmoid(keep + 1.0) * cell + nn.sigmoid(into) * jnp.tanh(new)
            output = nn.sigmoid(out) * jnp.tanh(cell)
            return (cell, output), output

        state, outputs = jax.lax.scan(step, state, (gates, begins))
        return outputs, state
