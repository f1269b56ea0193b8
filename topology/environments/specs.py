"""What an agent must know of an environment before it can be built."""

from __future__ import annotations

from typing import Any, NamedTuple

import dm_env
import numpy as np
from dm_env import specs

from topology.errors import ProgramError

__all__ = [
    "EnvironmentSpec",
    "check_arrays",
    "check_observation",
    "is_image",
    "make_environment_spec",
    "num_discrete_actions",
]

_NUMBERS = "biuf"  # kinds of dtypes: truth values, integers of both kinds, floats


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


def is_image(observations: Any) -> bool:
    """Whether observations of this spec are images: uint8 `[height, width, channels]`."""
    return isinstance(observations, specs.Array) and len(observations.shape) == 3 and observations.dtype == np.uint8


def check_observation(observation: Any, *, agent: str, of: str = "an environment") -> None:
    """That the spec of an observation is one array of numbers.

    Args:
        observation: the spec.
        agent: name of who needs it.
        of: whose observation it is, for the text of the error.

    Raises:
        ProgramError: it is not.
    """
    if not isinstance(observation, specs.Array):
        raise ProgramError(
            f"{agent} needs {of} whose observation is one array, but this one's is {observation!r}: join its parts, "
            "with topology.environments.control.FlatObservations (dm_env) or gymnasium.wrappers.FlattenObservation; "
            "several agents in one environment are for madqn"
        )
    if np.dtype(observation.dtype).kind not in _NUMBERS:
        raise ProgramError(
            f"{agent} needs {of} whose observation is made of numbers, but this one's is {observation!r}"
        )
    if 0 in observation.shape:
        raise ProgramError(
            f"{agent} needs {of} that shows something, but this one's observation is {observation!r}, an array without "
            "entries: where there is nothing to see, show a constant"
        )


def check_arrays(spec: EnvironmentSpec, *, agent: str) -> None:
    """That an environment shows one array and gives one reward for each step.

    Raises:
        ProgramError: it does not.
    """
    check_observation(spec.observations, agent=agent)
    if not isinstance(spec.rewards, specs.Array) or spec.rewards.shape != ():
        raise ProgramError(
            f"{agent} needs an environment with one reward for each step, but this one's is {spec.rewards!r}: make one "
            "number of it, whose spec is a dm_env.specs.Array of shape ()"
        )


def num_discrete_actions(spec: EnvironmentSpec, *, agent: str) -> int:
    """How many actions there are, for an `agent` that needs a finite number of them, of one that sees and acts alone.

    Raises:
        ProgramError: the actions are not discrete; or as `check_arrays`.
    """
    check_arrays(spec, agent=agent)
    if isinstance(spec.actions, specs.DiscreteArray):
        return int(spec.actions.num_values)
    raise ProgramError(
        f"{agent} needs an environment with discrete actions, but this one has {spec.actions!r}: choose another "
        "environment, or wrap it so that its action spec is a dm_env.specs.DiscreteArray"
    )
