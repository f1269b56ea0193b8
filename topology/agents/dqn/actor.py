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
from topology.agents.dqn.networks import ADVANTAGE, EPSILON, QNetwork

__all__ = ["DQNActor", "make_greedy", "make_policy"]

Greedy = Callable[[Any], int]
"""From one observation, without a batch axis, to the best action."""


@functools.lru_cache(maxsize=8)  # the actors of a program of threads compile once
def make_greedy(network: QNetwork) -> Callable[[Any], Greedy]:
    """A function that takes weights, numpy arrays, once for each version of them."""
    if not network.is_image:
        # For a few hundred kilobytes of weights, calling a compiled function costs more than the arithmetic.
        return functools.partial(_greedy_on_host, len(network.hidden_sizes), network.num_actions)

    @jax.jit
    def best_action(params: Any, observation: jax.Array) -> jax.Array:
        return jnp.argmax(network.apply(params, observation[None])[0])

    def greedy(params: Any) -> Greedy:
        on_device = jax.device_put(params)
        return lambda observation: int(best_action(on_device, observation))

    return greedy


def _greedy_on_host(num_hidden: int, num_actions: int, params: Any) -> Greedy:
    dense = [params["params"][f"{ADVANTAGE}_{i}"] for i in range(num_hidden + 1)]
    *layers, last = [(np.asarray(layer["kernel"]), np.asarray(layer["bias"])) for layer in dense]
    # The mean of a layer is taken away from its weights, once: what they give has mean 0 already.
    hidden = [(kernel - kernel.mean(axis=1, keepdims=True), bias - bias.mean()) for kernel, bias in layers]
    # The mean over the quantiles is taken of the weights, once.
    kernel_of_mean = last[0].reshape(len(last[0]), -1, num_actions).mean(axis=1)
    bias_of_mean = last[1].reshape(-1, num_actions).mean(axis=0)

    def best_action(observation: Any) -> int:
        values = np.asarray(observation, np.float32).reshape(-1)
        for kernel, bias in hidden:
            centered = values @ kernel + bias
            values = np.maximum(centered * (centered @ centered / len(centered) + EPSILON) ** -0.5, 0)
        return int(np.argmax(values @ kernel_of_mean + bias_of_mean))

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
        policy: Callable[[Any], Greedy],
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
        self._greedy: Greedy | None = None
        self._version: int | None = None

    def select_action(self, observation: Any) -> int:
        if self._random.random() < self._epsilon:
            return int(self._random.integers(self._num_actions))
        if self._greedy is None or self._client.version != self._version:
            self._greedy, self._version = self._policy(self._client.values[0]), self._client.version
        return self._greedy(observation)

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        if self._adder is not None:
            self._adder.observe_first(timestep)

    def observe(self, action: int, next_timestep: dm_env.TimeStep) -> None:
        if self._adder is not None:
            self._adder.observe(action, next_timestep)

    def update(self) -> None:
        self._client.update()
