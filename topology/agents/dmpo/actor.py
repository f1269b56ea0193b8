"""The acting side of DMPO."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from topology.agents.core.policy import Policy, PolicyOutput
from topology.agents.dmpo.networks import GaussianPolicy

__all__ = ["make_policy"]


@functools.lru_cache(maxsize=8)  # the actors of a program of threads compile once
def make_policy(network: GaussianPolicy, action_shape: tuple[int, ...], *, explore: bool) -> Policy:
    """Acts with samples of the network's distribution or, where `explore` is False, with its mean; within [-1, 1]."""

    def act(params: Any, key: jax.Array, observations: jax.Array, _states: None, _explorations: Any) -> PolicyOutput:
        distribution: Any = network.apply(params, observations)
        action = distribution.sample(key) if explore else distribution.mean
        return PolicyOutput(jnp.clip(action, -1.0, 1.0).reshape((-1, *action_shape)))

    return Policy(act=act)
