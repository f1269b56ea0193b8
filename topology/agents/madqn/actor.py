"""The acting side of MADQN."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, final

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from topology.agents.core.policy import Policy, PolicyOutput
from topology.agents.core.types import Adder
from topology.agents.madqn.losses import best_actions
from topology.agents.madqn.networks import TeamNetwork, legal_actions
from topology.agents.madqn.team import Team

__all__ = ["TeamAdder", "make_policy"]


@functools.lru_cache(maxsize=8)  # the executors of a program of threads compile once
def make_policy(network: TeamNetwork, *, explores: bool) -> Policy:
    """All agents of `B` environments: the weights are those of the network, and with them the trainer's epsilon.

    Each agent takes a random legal action with probability epsilon, else its best one. The actions are a dict by agent.

    Args:
        network: of the team.
        explores: whether epsilon counts; it does not for an evaluator.
    """
    team = network.team

    def act(variables: Any, key: jax.Array, observations: Any, memory: Any, exploration: jax.Array) -> PolicyOutput:
        params, epsilon = variables
        row = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], observations)
        keep = jnp.ones((1, len(exploration)))
        q, after = network.apply(params, row, () if memory is None else memory, keep, method="values")
        legal = legal_actions(team, row)[0]
        actions = best_actions(q[0], legal)
        if explores:
            which, whether = jax.random.split(key)
            at_random = jax.random.categorical(which, jnp.where(legal, 0.0, -jnp.inf))
            actions = jnp.where(jax.random.uniform(whether, actions.shape) < epsilon, at_random, actions)
        by_agent = {agent: actions[:, index].astype(jnp.int32) for index, agent in enumerate(team.agents)}
        return PolicyOutput(by_agent, state=None if memory is None else after)

    size = network.memory_size
    return Policy(act=act, initial_state=None if size is None else np.zeros((len(team.agents), size), np.float32))


@final
class TeamAdder:
    """Writes what all agents did and got as arrays `[N]`, in the order of the team.

    Args:
        team: the agents.
        adder: gets the steps.
    """

    def __init__(self, team: Team, adder: Adder) -> None:
        self._team = team
        self._adder = adder

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        self._adder.observe_first(timestep)

    def observe(
        self, action: Mapping[str, int], next_timestep: dm_env.TimeStep, extras: Any = None, state: Any = None
    ) -> None:
        stacked = next_timestep._replace(
            reward=self._team.stack(next_timestep.reward, np.float32),
            discount=self._team.stack(next_timestep.discount, np.float32),
        )
        self._adder.observe(self._team.stack(action, np.int32), stacked, extras=extras, state=state)

    def close(self) -> None:
        self._adder.close()
