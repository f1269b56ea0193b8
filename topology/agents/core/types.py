"""The interfaces between the parts of an agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import dm_env

__all__ = ["Actor", "Adder", "VariableSource", "Variables", "Weights"]


class Variables(NamedTuple):
    """Weights as a variable source gives them.

    Attributes:
        version: learner steps that made them; never goes back within a run.
        time_s: when the source gave them, in seconds since the epoch: their age counts from here, caches included.
        values: one tree of numpy arrays for each name asked for, in that order.
    """

    version: int
    time_s: float
    values: list[Any]


class VariableSource(Protocol):
    """Gives weights by name: a learner, or a courier client of a learner or of a cacher before it."""

    def get_variables(self, names: Sequence[str]) -> Variables:
        """The newest weights. Raises `KeyError` for an unknown name."""


class Weights(Protocol):
    """What is known of the weights that somebody acts with: a `VariableClient`, or the client of a server of it."""

    @property
    def version(self) -> int:
        """Learner steps that made them; -1 before the first."""

    @property
    def age_s(self) -> float:
        """Seconds since the source gave them."""

    def update_and_wait(self) -> bool:
        """Blocks until there are some as new as can be; returns whether they are newer than those before."""


class Actor(Protocol):
    """What an environment loop drives."""

    def select_action(self, observation: Any) -> Any:
        """The action for one observation, without a batch axis."""

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        """Sees the first step of an episode."""

    def observe(self, action: Any, next_timestep: dm_env.TimeStep) -> None:
        """Sees an action that was taken, and the step it led to."""

    def update(self) -> None:
        """Called once for every environment step: takes newer weights if there are some. Does not block."""


class Adder(Protocol):
    """Where an actor's steps go."""

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        """Begins an episode."""

    def observe(self, action: Any, next_timestep: dm_env.TimeStep, extras: Any = None, state: Any = None) -> None:
        """Adds a step; may block while replay lets nothing in.

        Args:
            action: what was done.
            next_timestep: what it led to.
            extras: a tree of arrays kept with each step, such as the policy's logits; None where the agent keeps none.
            state: the recurrent state before the action, kept where a sequence begins; None without one.
        """

    def close(self) -> None:
        """Sends what is left; does not wait for it."""
