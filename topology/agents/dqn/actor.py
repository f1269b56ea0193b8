"""The acting side of DQN."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, final

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from topology.agents.core.policy import Policy, PolicyOutput
from topology.agents.core.types import Adder
from topology.agents.core.variables import VariableClient
from topology.agents.dqn.networks import QNetwork

__all__ = ["DQNActor", "make_greedy", "make_policy"]

GreedyPolicy = Callable[[Any, Any], Any]


@functools.lru_cache(maxsize=8)  # the actors of a program of threads compile once
def make_greedy(network: QNetwork) -> GreedyPolicy:
    """A compiled function from weights and one observation (no batch axis) to the best action."""

    @jax.jit
    def best_action(params: Any, observation: jax.Array) -> jax.Array:
        return jnp.argmax(network.apply(params, observation[None])[0])

    return best_action


@functools.lru_cache(maxsize=8)
def make_policy(network: QNetwork) -> Policy:
    """Epsilon-greedy for many observations at once; how much to explore is epsilon."""

    def act(params: Any, key: Any, observations: Any, states: Any, explorations: Any) -> PolicyOutput:
        del states
        whether, which = jax.random.split(key)
        values: Any = network.apply(params, observations)
        best = jnp.argmax(values, axis=-1)
        other = jax.random.randint(which, best.shape, 0, network.num_actions)
        return PolicyOutput(jnp.where(jax.random.uniform(whether, best.shape) < explorations, other, best))

    return Policy(act=act)


@final
class DQNActor:
    """Epsilon-greedy over the newest weights; gives its steps to an adder.

    Args:
        policy: see `make_greedy`.
        num_actions: number of actions.
        epsilon: probability of a random action, which costs no network evaluation.
        client: gives the weights.
        random: of the exploration.
        adder: gets the steps; None for an evaluator.
    """

    def __init__(
        self,
        *,
        policy: GreedyPolicy,
        num_actions: int,
        epsilon: float,
        client: VariableClient,
        random: np.random.Generator,
        adder: Adder | None = None,
    ) -> None:
        self._policy = policy
        self._num_actions = num_actions
        self._epsilon = epsilon
        self._client = client
        self._random = random
        self._adder = adder
        self._params: Any = None
        self._version: int | None = None

    def select_action(self, observation: Any) -> int:
        if self._random.random() < self._epsilon:
            return int(self._random.integers(self._num_actions))
        if self._client.version != self._version:
            # On the device once for each version, not once for each step.
            self._params, self._version = jax.device_put(self._client.values[0]), self._client.version
        return int(self._policy(self._params, observation))

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        if self._adder is not None:
            self._adder.observe_first(timestep)

    def observe(self, action: int, next_timestep: dm_env.TimeStep) -> None:
        if self._adder is not None:
            self._adder.observe(action, next_timestep)

    def update(self) -> None:
        self._client.update()
