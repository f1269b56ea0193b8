"""The recurrent network: a layer or two, an LSTM, and a value for each action."""

from __future__ import annotations

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import rlax

from topology.agents.core.networks import Torso
from topology.agents.r2d2.config import R2D2Config
from topology.agents.r2d2.state import Carry
from topology.environments.specs import EnvironmentSpec, is_image, num_discrete_actions

__all__ = ["RecurrentQNetwork", "make_network"]


class RecurrentQNetwork(nn.Module):
    """Action values from observations, the actions and rewards before them, and a memory.

    A torso, an LSTM, and the two heads of a dueling network.

    Source: Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning", 2019; Wang et al.,
    "Dueling Network Architectures for Deep Reinforcement Learning", 2016, arXiv:1511.06581.

    Attributes:
        num_actions: number of actions.
        hidden_sizes: widths of the layers before the LSTM.
        lstm_size: width of the LSTM.
        head_size: width of the hidden layer after it.
        observation_rank: axes of one observation.
        is_image: whether observations are images.
    """

    num_actions: int
    hidden_sizes: Sequence[int]
    lstm_size: int
    head_size: int
    observation_rank: int
    is_image: bool = False

    @nn.compact
    def __call__(
        self, observation: jax.Array, action: jax.Array, reward: jax.Array, carry: Carry, cut: jax.Array
    ) -> tuple[jax.Array, Carry]:
        """Values at `T` steps of `B` episodes, and the memory after them.

        Args:
            observation: `[T, B, ...]`.
            action: the one before each observation, `[T, B]`; -1 for none.
            reward: the one before each observation, `[T, B]`.
            carry: the memory before the first step.
            cut: bool `[T, B]`; no gradient goes back through time from such a step.
        """
        embedding = Torso(self.hidden_sizes, self.observation_rank, self.is_image)(observation)
        before = [jax.nn.one_hot(action, self.num_actions), rlax.signed_hyperbolic(reward)[..., None]]
        # Only what depends on the step before is computed step by step; this product is one for the whole sequence.
        gates = nn.Dense(4 * self.lstm_size, name="lstm_input")(jnp.concatenate([embedding, *before], axis=-1))
        recurrent = self.param(
            "lstm_recurrent", nn.initializers.orthogonal(), (self.lstm_size, 4 * self.lstm_size), jnp.float32
        )

        def step(carry: Carry, inputs: tuple[jax.Array, jax.Array]) -> tuple[Carry, jax.Array]:
            gates, cut = inputs
            carry = jax.tree.map(lambda x: jnp.where(cut[:, None], jax.lax.stop_gradient(x), x), carry)
            carry = _lstm(gates + carry.hidden @ recurrent, carry.cell)
            return carry, carry.hidden

        carry, hidden = jax.lax.scan(step, carry, (gates, cut))
        return self._values(hidden), carry

    def _values(self, hidden: jax.Array) -> jax.Array:
        value = nn.Dense(1)(nn.relu(nn.Dense(self.head_size)(hidden)))
        advantage = nn.Dense(self.num_actions)(nn.relu(nn.Dense(self.head_size)(hidden)))
        return value + advantage - jnp.mean(advantage, axis=-1, keepdims=True)


def _lstm(gates: jax.Array, cell: jax.Array) -> Carry:
    """One step of an LSTM whose forget gate begins open: it has 1 added to it."""
    into, keep, out, new = jnp.split(gates, 4, axis=-1)
    cell = jax.nn.sigmoid(keep + 1.0) * cell + jax.nn.sigmoid(into) * jnp.tanh(new)
    return Carry(cell, jax.nn.sigmoid(out) * jnp.tanh(cell))


def make_network(config: R2D2Config, spec: EnvironmentSpec) -> RecurrentQNetwork:
    """The network for an environment.

    Raises:
        ProgramError: its actions are not discrete.
    """
    return RecurrentQNetwork(
        num_actions=num_discrete_actions(spec, agent="R2D2"),
        hidden_sizes=config.hidden_sizes,
        lstm_size=config.lstm_size,
        head_size=config.head_size,
        observation_rank=len(spec.observations.shape),
        is_image=is_image(spec.observations),
    )
