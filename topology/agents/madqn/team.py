"""The agents of an environment as one team: who shares a network, and what is written of them into replay.

All but the observations is in arrays with an axis `N` of the agents, in the order of `Team.agents`. Where they have
different numbers of actions, `A` is the largest; what an agent has fewer of is never legal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from dm_env import specs

from topology.agents.core.sequences import StepSequence, sequence_signature
from topology.agents.madqn.config import MADQNConfig
from topology.environments.multi_agent import OBSERVATION, observation_of
from topology.environments.specs import EnvironmentSpec, check_observation
from topology.errors import ProgramError

__all__ = ["TABLE", "Group", "Team", "make_team", "signature"]

TABLE = "sequence_table"


@final
@dataclass(frozen=True, kw_only=True)
class Group:
    """Agents that share a network.

    Attributes:
        name: of the network.
        agents: their ids.
        observation_shape: of each of them.
        observation_dtype: of each of them, its name.
        num_actions: of each of them.
    """

    name: str
    agents: tuple[str, ...]
    observation_shape: tuple[int, ...]
    observation_dtype: str
    num_actions: int


@final
@dataclass(frozen=True, kw_only=True)
class Team:
    """All agents of an environment.

    Attributes:
        groups: each agent is in one of them.
        num_actions: the most that one of them has.
    """

    groups: tuple[Group, ...]
    num_actions: int

    @property
    def agents(self) -> tuple[str, ...]:
        """Their ids, group by group: the order of the axis `N`."""
        return tuple(agent for group in self.groups for agent in group.agents)

    def stack(self, values: Mapping[str, Any], dtype: type[np.generic]) -> np.ndarray[Any, Any]:
        """A value for each agent as an array `[N]`.

        Raises:
            ProgramError: the environment did not give one for each.
        """
        try:
            return np.array([values[agent] for agent in self.agents], dtype)
        except (TypeError, KeyError, IndexError):
            raise ProgramError(
                f"an environment of several agents gives rewards and discounts in dicts with all of their ids, "
                f"{', '.join(self.agents)}, but this one gave {values!r}"
            ) from None


def make_team(spec: EnvironmentSpec, *, shared_weights: bool) -> Team:
    """The team of an environment, of its spec.

    Raises:
        ProgramError: it is not an environment of several agents with discrete actions, or agents that would share a
            network see or do different things.
    """
    observations, actions = spec.observations, spec.actions
    if not isinstance(observations, Mapping) or not isinstance(actions, Mapping) or set(observations) != set(actions):
        raise ProgramError(
            "MADQN needs an environment of several agents, whose observation and action specs are dicts with the same "
            f"agents' ids as keys, but this one has {observations!r} and {actions!r}: choose two_step, switch_riddle, "
            "or pettingzoo:mpe.simple_spread_v3, or see topology.environments.multi_agent"
        )
    if wrong := [agent for agent in actions if not isinstance(actions[agent], specs.DiscreteArray)]:
        raise ProgramError(f"MADQN needs discrete actions, but those of {wrong[0]} are {actions[wrong[0]]!r}")
    groups: dict[str, list[str]] = {}
    for agent in actions:
        groups.setdefault(_kind(agent) if shared_weights else agent, []).append(agent)
    made = tuple(_make_group(name, tuple(agents), spec) for name, agents in groups.items())
    return Team(groups=made, num_actions=max(group.num_actions for group in made))


def _kind(agent: str) -> str:
    return re.sub(r"_\d+$", "", agent)


def _make_group(name: str, agents: tuple[str, ...], spec: EnvironmentSpec) -> Group:
    def features(agent: str) -> tuple[tuple[int, ...], str, int]:
        view = spec.observations[agent]
        seen: Any = view if isinstance(view, Mapping) and OBSERVATION not in view else observation_of(view)
        check_observation(seen, agent="MADQN", of=f"an agent {agent!r}")
        return tuple(seen.shape), np.dtype(seen.dtype).name, int(spec.actions[agent].num_values)

    shape, dtype, num_actions = features(agents[0])
    for agent in agents:
        if features(agent) != (shape, dtype, num_actions):
            raise ProgramError(
                f"{agents[0]} and {agent} cannot share a network: observations and number of actions are "
                f"{features(agents[0])} and {features(agent)}. Set shared_weights to false, so that each has its own"
            )
    return Group(name=name, agents=agents, observation_shape=shape, observation_dtype=dtype, num_actions=num_actions)


def signature(config: MADQNConfig, spec: EnvironmentSpec) -> StepSequence:
    """The specs of an item of the table: a sequence of the whole team and, with a memory, what it was at its start."""
    size = len(spec.actions)
    numbers = specs.Array((size,), np.float32)
    team = EnvironmentSpec(spec.observations, specs.Array((size,), np.int32), numbers, numbers)
    state = specs.Array((size, config.memory_size), np.float32) if config.recurrent else ()
    return sequence_signature(team, config.sequence_length, state=state)
