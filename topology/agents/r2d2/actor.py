"""The acting side of R2D2."""

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
from topology.agents.r2d2.networks import RecurrentQNetwork
from topology.agents.r2d2.state import Carry, RecurrentState, initial_state

__all__ = ["R2D2Actor", "make_greedy", "make_policy"]


@functools.lru_cache(maxsize=8)  # actors of equal networks in one process compile once
def make_policy(network: RecurrentQNetwork) -> Policy:
    """Epsilon-greedy with a memory, of many observations at once."""

    def act(
        params: Any, key: jax.Array, observation: jax.Array, state: RecurrentState, epsilon: jax.Array
    ) -> PolicyOutput:
        cut = jnp.zeros((1, len(epsilon)), bool)
        q, carry = network.apply(params, observation[None], state.action[None], state.reward[None], state.carry, cut)
        which, whether = jax.random.split(key)
        at_random = jax.random.randint(which, epsilon.shape, 0, network.num_actions)
        explores = jax.random.uniform(whether, epsilon.shape) < epsilon
        action = jnp.where(explores, at_random, jnp.argmax(q[0], axis=-1))
        return PolicyOutput(action.astype(jnp.int32), state=state._replace(carry=Carry(*carry)))

    return Policy(act=act, initial_state=initial_state(network.lstm_size), advance=_advance)


def _advance(state: RecurrentState, action: Any, reward: Any) -> RecurrentState:
    return RecurrentState(state.carry, np.int32(action), np.float32(reward))


Greedy = Callable[[Any, Any, Carry, int, float], tuple[Any, Carry]]


@functools.lru_cache(maxsize=8)
def make_greedy(network: RecurrentQNetwork) -> Greedy:
    """A compiled function of weights, observation, memory, and action and reward before: best action, memory after.

    None of them has a batch axis. For one environment this takes a third of the time of the policy for many: the memory
    stays on the device, and nothing is drawn there.
    """

    @jax.jit
    def greedy(
        params: Any, observation: jax.Array, carry: Carry, action: jax.Array, reward: jax.Array
    ) -> tuple[jax.Array, Carry]:
        before = jnp.asarray(action, jnp.int32)[None, None], jnp.asarray(reward, jnp.float32)[None, None]
        carry = Carry(*(leaf[None] for leaf in carry))
        q, after = network.apply(params, observation[None, None], *before, carry, jnp.zeros((1, 1), bool))
        return jnp.argmax(q[0, 0]), Carry(*(leaf[0] for leaf in after))

    return greedy


@final
class R2D2Actor:
    """Epsilon-greedy over the newest weights, with a memory; gives its steps and states to an adder.

    Args:
        network: gives the values.
        epsilon: probability of a random action.
        client: gives the weights.
        random: of the exploration.
        adder: gets the steps; None for an evaluator.
    """

    def __init__(
        self,
        *,
        network: RecurrentQNetwork,
        epsilon: float,
        client: VariableClient,
        random: np.random.Generator,
        adder: Adder | None = None,
    ) -> None:
        self._greedy = make_greedy(network)
        self._num_actions = network.num_actions
        self._epsilon = epsilon
        self._client = client
        self._random = random
        self._adder = adder
        self._params: Any = None
        self._version: int | None = None
        self._initial = self._before = self._after = initial_state(network.lstm_size)  # the newest observation

    def select_action(self, observation: Any) -> int:
        if self._client.version != self._version:
            # On the device once for each version, not once for each step.
            self._params, self._version = jax.device_put(self._client.values[0]), self._client.version
        carry, action, reward = self._before
        # Plain numbers: a compiled function takes those faster than numpy's.
        best, carry = self._greedy(self._params, observation, carry, int(action), float(reward))
        self._after = RecurrentState(carry, action, reward)
        if self._random.random() < self._epsilon:
            return int(self._random.integers(self._num_actions))
        return int(best)

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        self._before = self._initial
        if self._adder is not None:
            self._adder.observe_first(timestep)

    def observe(self, action: int, next_timestep: dm_env.TimeStep) -> None:
        if self._adder is not None:
            self._adder.observe(action, next_timestep, state=self._before)
        self._before = _advance(self._after, action, next_timestep.reward)

    def update(self) -> None:
        self._client.update()
