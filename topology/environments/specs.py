"""What an agent must know of an environment before it can be built."""

from __future__ import annotations

from typing import NamedTuple

import dm_env
from dm_env import specs

from topology.errors import ProgramError

__all__ = ["EnvironmentSpec", "make_environment_spec", "num_discrete_actions"]


class EnvironmentSpec(NamedTuple):
    """The four specs of a `dm_env` environment."""

    observations: specs.Array
    actions: specs.Array
    rewards: specs.Array
    discounts: specs.Array


def make_environment_spec(environment: dm_env.Environment) -> EnvironmentSpec:
    """The specs of `environment`, without stepping it."""
    return EnvironmentSpec(
        observations=environment.observation_spec(),
        actions=environment.action_spec(),
        rewards=environment.reward_spec(),
        discounts=environment.discount_spec(),
    )


def num_discrete_actions(spec: EnvironmentSpec, *, agent: str) -> int:
    """How many actions there are, for an `agent` that needs a finite number of them.

    Raises:
        ProgramError: the actions are not discrete.
    """
    if isinstance(spec.actions, specs.DiscreteArray):
        return int(spec.actions.num_values)
    raise ProgramError(
        f"{agent} needs an environment with discrete actions, but this one has {spec.actions!r}: choose another "
        "environment, or wrap it so that its action spec is a dm_env.specs.DiscreteArray"
    )
