"""The acting side of DQN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, final

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from topology.agents.core.transitions import NStepTransitions, Transition
from topology.agents.core.variables import VariableClient
from topology.agents.dqn.networks import QNetwork

__all__ = ["DQNActor", "TransitionSink", "make_greedy"]

GreedyPolicy = Callable[[Any, Any], Any]


class TransitionSink(Protocol):
    """Where an actor's transitions go."""

    def write(self, transitions: Sequence[Transition]) -> None:
        """Takes transitions in the order they were made; blocks while replay has no room for them."""

    def end_episode(self) -> None:
        """Says that the next transitions belong to another episode."""


def make_greedy(network: QNetwork) -> GreedyPolicy:
    """A compiled function from weights and one observation (no batch axis) to the best action."""

    @jax.jit
    def best_action(params: Any, observation: jax.Array) -> jax.Array:
        return jnp.argmax(network.apply(params, observation[None])[0])

    return best_action


@final
class DQNActor:
    """Epsilon-greedy over the newest weights; writes n-step transitions.

    Args:
        policy: see `make_greedy`.
        num_actions: number of actions.
        epsilon: probability of a random action, which costs no network evaluation.
        client: gives the weights.
        random: of the exploration.
        transitions: makes transitions of the steps; None for an evaluator, which writes none.
        sink: gets the transitions.
    """

    def __init__(
        self,
        *,
        policy: GreedyPolicy,
        num_actions: int,
        epsilon: float,
        client: VariableClient,
        random: np.random.Generator,
        transitions: NStepTransitions | None = None,
        sink: TransitionSink | None = None,
    ) -> None:
        if (transitions is None) != (sink is None):
            raise ValueError("An actor that writes needs both transitions and sink; one that does not, neither")
        self._policy = policy
        self._num_actions = num_actions
        self._epsilon = epsilon
        self._client = client
        self._random = random
        self._transitions = transitions
        self._sink = sink
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
        if self._transitions is not None:
            self._transitions.observe_first(timestep)

    def observe(self, action: int, next_timestep: dm_env.TimeStep) -> None:
        if self._transitions is None or self._sink is None:
            return
        self._sink.write(self._transitions.observe(action, next_timestep))
        if next_timestep.last():
            self._sink.end_episode()

    def update(self) -> None:
        self._client.update()
