"""A policy as a function of many observations at once, and those who call it: here, or in an inference server.

An agent whose builder has `make_policy` gets inference servers and actors with several environments for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, final

import jax
import numpy as np
from numpy.typing import NDArray

from topology.agents.core.variables import VariableClient

__all__ = ["ActingPolicy", "LocalPolicy", "Policy", "PolicyOutput", "WeightedPolicy"]


class PolicyOutput(NamedTuple):
    """What a policy says to `N` observations.

    Attributes:
        action: `[N, ...]`.
        extras: kept with each step, a tree of `[N, ...]`, such as the policy's logits; None for none.
        state: recurrent states after the observations, a tree of `[N, ...]`; None without any.
    """

    action: Any
    extras: Any = None
    state: Any = None


def _keep(kept: Any, *_: Any) -> Any:
    return kept


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How an agent acts on `N` observations at once.

    Attributes:
        act: pure function of weights, a random key, observations `[N, ...]`, recurrent states (a tree of `[N, ...]`, or
            None) and how much to explore, float32 `[N]` (0 where the graph says nothing), to a `PolicyOutput`. Equal
            objects for equal policies (`functools.lru_cache`) let the actors of one process compile it once.
        initial_state: recurrent state where an episode begins, a tree of arrays without the axis N; None without one.
        advance: the state before the next observation, from that after this one, the action taken and its reward, all
            of one environment: for networks that see their last action and reward. Called on the host.
        annotate: what is kept with a step, from its extras and the version of the weights that chose the action: for
            agents that learn how old their data is. Called on the host.
    """

    act: Callable[[Any, Any, Any, Any, Any], PolicyOutput]
    initial_state: Any = None
    advance: Callable[[Any, Any, Any], Any] = _keep
    annotate: Callable[[Any, int], Any] = _keep


@functools.lru_cache(maxsize=8)
def _compiled(act: Callable[..., PolicyOutput]) -> Callable[..., PolicyOutput]:
    @jax.jit
    def call(params: Any, key: Any, count: Any, *inputs: Any) -> PolicyOutput:
        return act(params, jax.random.fold_in(key, count), *inputs)

    return call


@final
class WeightedPolicy:
    """A policy compiled, with its weights on the device. For one thread.

    Args:
        policy: compiled at the first call, and for each new `N`.
        seed: of what is random. The same calls with the same weights give the same actions.
    """

    def __init__(self, policy: Policy, *, seed: int) -> None:
        self._call = _compiled(policy.act)
        self._key = jax.random.key(seed)
        self._calls = 0
        self._params: Any = None

    def set_weights(self, values: Any) -> None:
        """Acts with these weights from the next call on. Copies them to the device."""
        self._params = jax.device_put(values)

    def __call__(self, observations: Any, states: Any, explorations: NDArray[np.float32]) -> PolicyOutput:
        """The actions for `[N, ...]`, as numpy arrays."""
        output = self._call(self._params, self._key, np.uint32(self._calls), observations, states, explorations)
        self._calls += 1
        return PolicyOutput(*jax.device_get(output))


class ActingPolicy(Protocol):
    """What an actor with several environments asks for their actions."""

    @property
    def version(self) -> int:
        """Learner steps that made the weights of the last actions; -1 before the first."""

    def __call__(self, observations: Any, states: Any, explorations: NDArray[np.float32]) -> PolicyOutput:
        """The actions for `[N, ...]`, as numpy arrays; blocks until they are there."""

    def update(self) -> None:
        """Called once for every environment step; does not block."""


@final
class LocalPolicy:
    """A policy in the actor's own process, with the weights of a `VariableClient`.

    Args:
        policy: of the agent.
        client: gives the weights.
        seed: of the exploration.
    """

    def __init__(self, policy: Policy, client: VariableClient, *, seed: int) -> None:
        self._policy = WeightedPolicy(policy, seed=seed)
        self._client = client
        self._version = -1

    @property
    def version(self) -> int:
        """Learner steps that made the weights of the last actions; -1 before the first."""
        return self._version

    def __call__(self, observations: Any, states: Any, explorations: NDArray[np.float32]) -> PolicyOutput:
        if self._client.version != self._version:
            self._policy.set_weights(self._client.values[0])
            self._version = self._client.version
        return self._policy(observations, states, explorations)

    def update(self) -> None:
        self._client.update()
