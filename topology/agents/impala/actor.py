"""The acting side of IMPALA."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from topology.agents.core.policy import Policy, PolicyOutput
from topology.agents.impala.networks import PolicyValueNetwork
from topology.agents.impala.replay import initial_state

__all__ = ["make_policy"]


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
