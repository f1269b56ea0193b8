"""Continuous actions between -1 and 1, whatever the environment's own bounds are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import dm_env
import numpy as np
from dm_env import specs

from topology.environments.factory import EnvironmentFactory, make_environment
from topology.errors import ProgramError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["UnitActions", "make_with_unit_actions"]


@final
class UnitActions(dm_env.Environment):  # type: ignore[misc]  # dm_env has no type information
    """Another environment, whose bounded actions become float32 in [-1, 1], mapped linearly onto its bounds.

    Actions outside are taken as the nearest inside.

    Args:
        environment: closed by `close()`.

    Raises:
        ProgramError: its actions are not continuous with finite bounds.
    """

    def __init__(self, environment: dm_env.Environment) -> None:
        inner = environment.action_spec()
        if not _has_bounds(inner):
            raise ProgramError(
                f"its actions are {inner!r}, and continuous ones with finite bounds are needed: choose another "
                "environment, or wrap it so that its action spec is a dm_env.specs.BoundedArray of floats"
            )
        self._environment = environment
        self._spec = inner
        self._low = np.broadcast_to(inner.minimum, inner.shape)
        self._range = np.broadcast_to(inner.maximum, inner.shape) - self._low

    def reset(self) -> dm_env.TimeStep:
        return self._environment.reset()

    def step(self, action: NDArray[Any]) -> dm_env.TimeStep:
        part = (np.clip(action, -1.0, 1.0) + 1.0) / 2.0
        return self._environment.step((self._low + part * self._range).astype(self._spec.dtype))

    def observation_spec(self) -> specs.Array:
        return self._environment.observation_spec()

    def action_spec(self) -> specs.BoundedArray:
        return specs.BoundedArray(self._spec.shape, np.float32, -1.0, 1.0, name=self._spec.name)

    def reward_spec(self) -> specs.Array:
        return self._environment.reward_spec()

    def discount_spec(self) -> specs.BoundedArray:
        return self._environment.discount_spec()

    def close(self) -> None:
        self._environment.close()


def make_with_unit_actions(environment: str | EnvironmentFactory, *, seed: int | None = None) -> UnitActions:
    """An environment of `make_environment` behind `UnitActions`.

    Raises:
        ProgramError: as for `make_environment`, or its actions do not fit.
    """
    made = make_environment(environment, seed=seed)
    try:
        return UnitActions(made)
    except ProgramError as error:
        made.close()
        raise ProgramError(f"The environment {environment!r} cannot be used: {error}") from error


def _has_bounds(spec: specs.Array) -> bool:
    return (
        isinstance(spec, specs.BoundedArray)
        and np.issubdtype(spec.dtype, np.floating)
        and bool(np.isfinite(spec.minimum).all() and np.isfinite(spec.maximum).all())
    )
