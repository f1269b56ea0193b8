"""The network of IMPALA: a policy and a value, with or without a memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from topology.agents.core.networks import LSTM, Torso
from topology.agents.impala.config import IMPALAConfig
from topology.environments.specs import EnvironmentSpec, is_image, num_discrete_actions

__all__ = ["PolicyValueNetwork", "make_network"]


class PolicyValueNetwork(nn.Module):
    """Logits of the actions and a value for each step of sequences.

    Attributes:
        num_actions: number of actions.
        hidden_sizes: widths of the hidden layers.
        lstm_size: width of the LSTM after them; None for none.
        shared_layers: whether policy and value share the hidden layers; an LSTM they always share.
        observation_rank: axes of one observation.
        is_image: whether observations are images.
    """

    num_actions: int
    hidden_sizes: Sequence[int]
    lstm_size: int | None
    shared_layers: bool
    observation_rank: int
    is_image: bool = False

    @nn.compact
    def __call__(self, observations: jax.Array, begins: jax.Array, state: Any) -> tuple[jax.Array, jax.Array, Any]:
        """Logits `[T, B, A]`, values `[T, B]`, and the memory after the last step.

        Args:
            observations: `[T, B, ...]`.
            begins: bool `[T, B]`; whether an episode begins there, with an empty memory.
            state: the memory before the first step, a pair of `[B, lstm_size]`; whatever it is without an LSTM.
        """
        hidden = for_value = self._embed(observations, "torso")
        if self.lstm_size is not None:
            hidden, state = LSTM(self.lstm_size, name="memory")(hidden, begins, state)
            for_value = hidden
        elif not self.shared_layers:
            for_value = self._embed(observations, "value_torso")
        # Near 0, so that the first actions are drawn from nearly equal chances.
        logits = nn.Dense(self.num_actions, kernel_init=nn.initializers.orthogonal(0.01), name="policy")(hidden)
        values = nn.Dense(1, name="value")(for_value)
        return logits, jnp.squeeze(values, -1), state

    def _embed(self, observations: jax.Array, name: str) -> jax.Array:
        return Torso(self.hidden_sizes, self.observation_rank, self.is_image, name=name)(observations)


def make_network(config: IMPALAConfig, spec: EnvironmentSpec) -> PolicyValueNetwork:
    """The network for an environment.

    Raises:
        ProgramError: its actions are not discrete.
    """
    return PolicyValueNetwork(
        num_actions=num_discrete_actions(spec, agent="IMPALA"),
        hidden_sizes=config.hidden_sizes,
        lstm_size=config.lstm_size,
        shared_layers=config.shared_layers,
        observation_rank=len(spec.observations.shape),
        is_image=is_image(spec.observations),
    )
