"""The acting side of MADQN."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, final

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from topology.agents.core.types import Adder
from topology.agents.core.variables import VariableClient
from topology.agents.madqn.losses import best_actions
from topology.agents.madqn.networks import TeamNetwork, legal_actions
from topology.agents.madqn.team import Team

__all__ = ["EPSILON", "POLICY", "MADQNActor", "make_policy"]

POLICY, EPSILON = "policy", "epsilon"
"""What a trainer serves: the weights, and how much to explore with them."""

Policy = Callable[[Any, Any, Any], tuple[Any, Any, Any]]


@functools.lru_cache(maxsize=8)  # the executors of a program of threads compile once
def make_policy(network: TeamNetwork) -> Policy:
    """A compiled function of weights, observations and memory, none of them with a batch axis.

    It gives the best actions `[N]`, the legal ones `[N, A]`, and the memory after them.
    """

    @jax.jit
    def policy(params: Any, observations: Mapping[str, Any], memory: Any) -> tuple[jax.Array, jax.Array, Any]:
        batched = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None, None], observations)
        one = jax.tree.map(lambda leaf: leaf[None], memory)
        q, after = network.apply(params, batched, one, jnp.ones((1, 1)), method="values")
        legal = legal_actions(network.team, batched)[0, 0]
        return best_actions(q[0, 0], legal), legal, jax.tree.map(lambda leaf: leaf[0], after)

    return policy


@final
class MADQNActor:
    """All agents of one environment. Each takes a random legal action with probability epsilon, else its best one.

    Args:
        team: the agents.
        policy: see `make_policy`.
        memory: of the team at the beginning of an episode, `[N, memory_size]`; () for none.
        client: gives the weights and the epsilon that goes with them.
        random: of the exploration.
        adder: gets the steps; None for an evaluator, which does not explore.
    """

    def __init__(
        self,
        *,
        team: Team,
        policy: Policy,
        memory: Any,
        client: VariableClient,
        random: np.random.Generator,
        adder: Adder | None = None,
    ) -> None:
        self._team = team
        self._policy = policy
        self._first_memory = memory
        self._client = client
        self._random = random
        self._adder = adder
        self._params: Any = None
        self._epsilon = 0.0
        self._version: int | None = None
        self._memory = self._next_memory = memory

    def select_action(self, observation: Mapping[str, Any]) -> dict[str, int]:
        if self._client.version != self._version:
            self._take_variables()
        best, legal, self._next_memory = self._policy(self._params, observation, self._memory)
        actions = self._explore(np.array(best), np.asarray(legal))
        return dict(zip(self._team.agents, actions.tolist(), strict=True))

    def _take_variables(self) -> None:
        params, epsilon = self._client.values
        # On the device once for each version, not once for each step.
        self._params, self._version = jax.device_put(params), self._client.version
        self._epsilon = 0.0 if self._adder is None else float(epsilon)

    def _explore(self, actions: NDArray[Any], legal: NDArray[np.bool_]) -> NDArray[Any]:
        for index in np.flatnonzero(self._random.random(len(actions)) < self._epsilon):
            actions[index] = self._random.choice(np.flatnonzero(legal[index]))
        return actions

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        self._memory = self._first_memory
        if self._adder is not None:
            self._adder.observe_first(timestep)

    def observe(self, action: Mapping[str, int], next_timestep: dm_env.TimeStep) -> None:
        if self._adder is not None:
            stacked = next_timestep._replace(
                reward=self._team.stack(next_timestep.reward, np.float32),
                discount=self._team.stack(next_timestep.discount, np.float32),
            )
            memory = None if isinstance(self._memory, tuple) else np.asarray(self._memory)
            self._adder.observe(self._team.stack(action, np.int32), stacked, state=memory)
        self._memory = self._next_memory

    def update(self) -> None:
        self._client.update()
