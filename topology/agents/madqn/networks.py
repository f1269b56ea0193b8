"""The networks of a team: action values for each agent, and the mixing of values into the team's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import flax.linen as nn
import jax
import jax.numpy as jnp

from topology.agents.core.networks import Torso
from topology.agents.madqn.config import MADQNConfig
from topology.agents.madqn.team import Group, Team
from topology.environments.multi_agent import mask_of, observation_of

__all__ = ["AgentNetwork", "QMixer", "TeamNetwork", "legal_actions", "make_team_network"]


class _Memory(nn.Module):
    """One step of a GRU, which begins anew where `keep` is 0."""

    size: int

    @nn.compact
    def __call__(self, memory: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        features, keep = inputs
        kept = memory * keep[:, None, None]
        memory, hidden = nn.GRUCell(self.size)(kept, features)
        return memory, hidden


class AgentNetwork(nn.Module):
    """Action values of the agents of one group, which are told apart by a one-hot number if there are several.

    Attributes:
        group: the agents.
        hidden_sizes: widths of the hidden layers.
        memory_size: width of the memory; None for none.
    """

    group: Group
    hidden_sizes: Sequence[int]
    memory_size: int | None

    @nn.compact
    def __call__(self, observations: jax.Array, memory: Any, keep: jax.Array) -> tuple[jax.Array, Any]:
        """Values at `T` steps of `B` teams with `G` agents of this group, and their memory after the last.

        Args:
            observations: `[T, B, G, ...]`.
            memory: before the first step, `[B, G, memory_size]`; () without a memory.
            keep: 0 where an episode begins, else 1; `[T, B]`.
        """
        shape = self.group.observation_shape
        is_image = len(shape) == 3 and self.group.observation_dtype == "uint8"
        hidden = Torso(self.hidden_sizes, len(shape), is_image)(observations)
        size = len(self.group.agents)
        if size > 1:
            number = jnp.broadcast_to(jnp.eye(size), (*hidden.shape[:-1], size))
            hidden = jnp.concatenate([hidden, number], axis=-1)
        if self.memory_size is None:
            hidden = nn.relu(nn.Dense(self.hidden_sizes[-1])(hidden))
        else:
            over_time = nn.scan(_Memory, variable_broadcast="params", split_rngs={"params": False})
            memory, hidden = over_time(self.memory_size)(memory, (hidden, keep))
        return nn.Dense(self.group.num_actions)(hidden), memory


class QMixer(nn.Module):
    """The value of a team of the values of its agents: `[..., N]` to `[..., 1]`. It never falls when one of them grows.

    Source: Rashid et al., "QMIX", 2018, arXiv:1803.11485, section 4.1. The state of the environment, which decides how
    values are mixed, is here what all agents see.

    Attributes:
        size: width of the hidden layer.
    """

    size: int

    @nn.compact
    def __call__(self, values: jax.Array, state: jax.Array) -> jax.Array:
        inner = jnp.abs(nn.Dense(values.shape[-1] * self.size)(state))
        inner = inner.reshape((*values.shape, self.size))
        hidden = nn.elu(jnp.einsum("...n,...nh->...h", values, inner) + nn.Dense(self.size)(state))
        outer = jnp.abs(nn.Dense(self.size)(state))
        value = nn.Dense(1)(nn.relu(nn.Dense(self.size)(state)))
        return jnp.sum(hidden * outer, axis=-1, keepdims=True) + value


def legal_actions(team: Team, observations: Mapping[str, Any]) -> jax.Array:
    """Which actions each agent may take: bool `[..., N, A]`, from observations with the leading axes `...`."""
    masks = []
    for group in team.groups:
        for agent in group.agents:
            view = observations[agent]
            leading = observation_of(view).shape[: -len(group.observation_shape) or None]
            mask = mask_of(view)
            mask = jnp.ones((*leading, group.num_actions), bool) if mask is None else mask > 0
            missing = [(0, 0)] * len(leading) + [(0, team.num_actions - group.num_actions)]
            masks.append(jnp.pad(mask, missing))
    return jnp.stack(masks, axis=-2)


@final
class TeamNetwork(nn.Module):
    """All networks of a team.

    Attributes:
        team: the agents.
        hidden_sizes: widths of the hidden layers of each network.
        memory_size: width of the memory; None for none.
        mixing: see `MADQNConfig`.
        mixing_size: width of the mixing network.
    """

    team: Team
    hidden_sizes: tuple[int, ...]
    memory_size: int | None
    mixing: str
    mixing_size: int

    def setup(self) -> None:
        self.networks = {
            group.name: AgentNetwork(group, self.hidden_sizes, self.memory_size) for group in self.team.groups
        }
        self.mixer = QMixer(self.mixing_size)

    def values(self, observations: Mapping[str, Any], memory: Any, keep: jax.Array) -> tuple[jax.Array, Any]:
        """Action values of all agents, `[T, B, N, A]`, and their memory after the last step.

        Args:
            observations: of each agent, `[T, B, ...]`.
            memory: before the first step, `[B, N, memory_size]`; () without a memory.
            keep: 0 where an episode begins, else 1; `[T, B]`.
        """
        all_values, memories, begin = [], [], 0
        for group in self.team.groups:
            end = begin + len(group.agents)
            views = jnp.stack([observation_of(observations[agent]) for agent in group.agents], axis=2)
            own = () if self.memory_size is None else memory[:, begin:end]
            values, own = self.networks[group.name](views, own, keep)
            missing = self.team.num_actions - group.num_actions
            all_values.append(jnp.pad(values, [(0, 0)] * 3 + [(0, missing)]))
            memories.append(own)
            begin = end
        after = () if self.memory_size is None else jnp.concatenate(memories, axis=1)
        return jnp.concatenate(all_values, axis=2), after

    def mix(self, values: jax.Array, observations: Mapping[str, Any]) -> jax.Array:
        """What is learned of the values of the actions taken: `[T, B, N]` to `[T, B, M]`, M is N without mixing, or 1.

        Args:
            values: one for each agent, `[T, B, N]`.
            observations: of each agent, `[T, B, ...]`.
        """
        if self.mixing == "none":
            return values
        if self.mixing == "vdn":
            return jnp.sum(values, axis=-1, keepdims=True)
        views = [observation_of(observations[agent]) for agent in self.team.agents]
        state = jnp.concatenate([view.reshape((*values.shape[:2], -1)) for view in views], axis=-1)
        return self.mixer(values, state.astype(jnp.float32))

    def __call__(self, observations: Mapping[str, Any], memory: Any, keep: jax.Array) -> jax.Array:
        """Uses every network once: for the making of their weights."""
        values, _ = self.values(observations, memory, keep)
        return self.mix(jnp.max(values, axis=-1), observations)


def make_team_network(team: Team, config: MADQNConfig) -> TeamNetwork:
    """The networks that these settings ask for."""
    return TeamNetwork(
        team=team,
        hidden_sizes=config.hidden_sizes,
        memory_size=config.memory_size if config.recurrent else None,
        mixing=config.mixing,
        mixing_size=config.mixing_size,
    )
