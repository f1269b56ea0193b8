"""Environments of several agents: what `dm_env` says of one, said of each by its id."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, TypeVar

import dm_env
import numpy as np
from dm_env import specs

__all__ = ["ACTION_MASK", "OBSERVATION", "MultiAgentEnvironment", "mask_of", "observation_of"]

OBSERVATION, ACTION_MASK = "observation", "action_mask"
"""Keys of an agent's observation where not every action is always legal, as in PettingZoo."""

ValueT = TypeVar("ValueT")


class MultiAgentEnvironment(dm_env.Environment):  # type: ignore[misc]  # dm_env has no type information
    """An environment of several agents that act at the same time.

    Observations, actions, rewards and discounts are dicts with an entry for each of `agents`, in every step alike, and
    so are their specs. An agent's observation is an array or, where its legal actions change, a dict of two:
    `{"observation": array, "action_mask": int8 [A], 1 where legal}`. An agent that has left before the end still has
    its entries: zeros, and one legal action.
    """

    @property
    @abc.abstractmethod
    def agents(self) -> tuple[str, ...]:
        """The ids of all agents. Those that are alike begin alike: "agent_0", "agent_1"."""

    def reward_spec(self) -> dict[str, specs.Array]:
        return self.for_all(specs.Array((), np.float32, name="reward"))

    def discount_spec(self) -> dict[str, specs.Array]:
        return self.for_all(specs.BoundedArray((), np.float32, 0.0, 1.0, name="discount"))

    def for_all(self, value: ValueT) -> dict[str, ValueT]:
        """The same value for each agent: a reward that they share, for example."""
        return dict.fromkeys(self.agents, value)

    def shared_step(self, reward: float, observation: Mapping[str, Any], *, terminal: bool) -> dm_env.TimeStep:
        """A step after the first that gives all agents the same reward, and ends for all of them or for none."""
        return dm_env.TimeStep(
            step_type=dm_env.StepType.LAST if terminal else dm_env.StepType.MID,
            reward=self.for_all(np.float32(reward)),
            discount=self.for_all(np.float32(not terminal)),
            observation=dict(observation),
        )


def observation_of(observation: Any) -> Any:
    """What an agent sees, without the mask of its actions; of a spec, an array or a batch alike."""
    return observation[OBSERVATION] if isinstance(observation, Mapping) else observation


def mask_of(observation: Any) -> Any | None:
    """The mask of an agent's legal actions; None where all are always legal."""
    return observation[ACTION_MASK] if isinstance(observation, Mapping) else None
