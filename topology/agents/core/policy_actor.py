"""The actor of an agent that says how it acts by a `Policy`."""

from __future__ import annotations

from typing import Any, final

import dm_env
import jax
import numpy as np

from topology.agents.core.policy import ActingPolicy, Policy, PolicyOutput
from topology.agents.core.types import Adder

__all__ = ["PolicyActor", "Seat"]


class Seat:
    """What an actor is to one environment: does what was planned for it, and keeps the recurrent state.

    Args:
        agent: says what the recurrent states are, and what is kept with a step.
        policy: chose the actions.
        adder: gets the steps; None for an evaluator.
    """

    def __init__(self, agent: Policy, policy: ActingPolicy, adder: Adder | None) -> None:
        self._agent = agent
        self._policy = policy
        self._adder = adder
        self.state = agent.initial_state
        self.planned = PolicyOutput(None)

    def select_action(self, observation: Any) -> Any:  # noqa: ARG002 - planned already
        """The planned action; numbers as ints, also those of several agents by their ids."""
        action = self.planned.action
        if isinstance(action, dict):
            return {agent: _plain(each) for agent, each in action.items()}
        return _plain(action)

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        self.state = self._agent.initial_state
        if self._adder is not None:
            self._adder.observe_first(timestep)

    def observe(self, action: Any, next_timestep: dm_env.TimeStep) -> None:
        if self._adder is not None:
            extras = self._agent.annotate(self.planned.extras, self._policy.version)
            self._adder.observe(action, next_timestep, extras=extras, state=self.state)
        self.state = self._agent.advance(self.planned.state, action, next_timestep.reward)

    def update(self) -> None:
        self._policy.update()


def _plain(action: Any) -> Any:
    return int(action) if isinstance(action, np.integer) else action


@final
class PolicyActor(Seat):
    """Acts by a policy in one environment; gives its steps to an adder.

    Args:
        agent, policy, adder: see `Seat`.
        exploration: what the graph gave this actor, e.g. its epsilon; None for nothing.
    """

    def __init__(
        self, agent: Policy, policy: ActingPolicy, *, exploration: float | None = None, adder: Adder | None = None
    ) -> None:
        super().__init__(agent, policy, adder)
        self._exploration = np.full(1, exploration or 0.0, np.float32)

    def select_action(self, observation: Any) -> Any:
        observations, states = jax.tree.map(lambda leaf: leaf[None], (observation, self.state))
        output = self._policy(observations, states, self._exploration)
        self.planned = jax.tree.map(lambda leaf: leaf[0], output)
        return super().select_action(observation)
