"""The acting side of DMPO."""

from __future__ import annotations

import functools
from typing import Any, final

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from topology.agents.core.policy import ActingPolicy, Policy, PolicyOutput
from topology.agents.core.types import Adder
from topology.agents.dmpo.networks import GaussianPolicy

__all__ = ["DMPOActor", "make_policy"]


@functools.lru_cache(maxsize=8)  # the actors of a program of threads compile once
def make_policy(network: GaussianPolicy, action_shape: tuple[int, ...], *, explore: bool) -> Policy:
    """Acts with samples of the network's distribution or, where `explore` is False, with its mean; within [-1, 1]."""

    def act(params: Any, key: jax.Array, observations: jax.Array, _states: None, _explorations: Any) -> PolicyOutput:
        distribution: Any = network.apply(params, observations)
        action = distribution.sample(key) if explore else distribution.mean
        return PolicyOutput(jnp.clip(action, -1.0, 1.0).reshape((-1, *action_shape)))

    return Policy(act=act)


@final
class DMPOActor:
    """Acts by a policy in one environment; gives its steps to an adder.

    Args:
        policy: see `make_policy`.
        adder: gets the steps; None for an evaluator.
    """

    _no_exploration = np.zeros(1, np.float32)  # the policy itself says how much it explores

    def __init__(self, policy: ActingPolicy, adder: Adder | None = None) -> None:
        self._policy = policy
        self._adder = adder

    def select_action(self, observation: NDArray[Any]) -> NDArray[np.float32]:
        action: NDArray[np.float32] = self._policy(observation[None], None, self._no_exploration).action[0]
        return action

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        if self._adder is not None:
            self._adder.observe_first(timestep)

    def observe(self, action: NDArray[np.float32], next_timestep: dm_env.TimeStep) -> None:
        if self._adder is not None:
            self._adder.observe(action, next_timestep)

    def update(self) -> None:
        self._policy.update()
