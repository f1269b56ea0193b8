"""The acting side of IMPALA."""

from __future__ import annotations

import functools
from typing import Any, final

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from topology.agents.core.policy import LocalPolicy, Policy, PolicyOutput
from topology.agents.core.types import Adder
from topology.agents.impala.networks import PolicyValueNetwork
from topology.agents.impala.replay import initial_state

__all__ = ["IMPALAActor", "make_policy"]


@functools.lru_cache(maxsize=8)  # actors of equal networks in one process compile once
def make_policy(network: PolicyValueNetwork, *, greedy: bool) -> Policy:
    """Draws actions, or takes the most likely ones. The extras of a step are those of `replay.signature`."""

    def act(params: Any, key: jax.Array, observations: jax.Array, states: Any, explorations: Any) -> PolicyOutput:
        del explorations
        begins = jnp.zeros((1, len(observations)), bool)  # where an episode begins, the state is the initial one
        output: Any = network.apply(params, observations[None], begins, states)
        logits, state = output[0][0], output[2]
        actions = jnp.argmax(logits, axis=-1) if greedy else jax.random.categorical(key, logits)
        return PolicyOutput(actions.astype(jnp.int32), {"logits": logits}, state)

    return Policy(act=act, initial_state=initial_state(network.lstm_size), annotate=_annotate)


def _annotate(extras: dict[str, Any], version: int) -> dict[str, Any]:
    return extras | {"version": np.int32(version)}


@final
class IMPALAActor:
    """Plays one environment with the newest policy; gives its steps to an adder, with what the policy said of them.

    Args:
        agent: see `make_policy`.
        policy: the same, with weights.
        adder: gets the steps; None for an evaluator.
    """

    def __init__(self, *, agent: Policy, policy: LocalPolicy, adder: Adder | None = None) -> None:
        self._agent = agent
        self._policy = policy
        self._adder = adder
        self._state = agent.initial_state
        self._output = PolicyOutput(None)

    def select_action(self, observation: Any) -> int:
        observations, states = jax.tree.map(lambda leaf: leaf[None], (observation, self._state))
        output = self._policy(observations, states, np.zeros(1, np.float32))
        self._output = jax.tree.map(lambda leaf: leaf[0], output)
        return int(self._output.action)

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        self._state = self._agent.initial_state
        if self._adder is not None:
            self._adder.observe_first(timestep)

    def observe(self, action: int, next_timestep: dm_env.TimeStep) -> None:
        if self._adder is not None:
            extras = self._agent.annotate(self._output.extras, self._policy.version)
            self._adder.observe(action, next_timestep, extras, self._state)
        self._state = self._output.state

    def update(self) -> None:
        self._policy.update()
