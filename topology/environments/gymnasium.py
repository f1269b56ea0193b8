"""Gymnasium environments as `dm_env` environments."""

from __future__ import annotations

import difflib
import importlib.metadata
from collections.abc import Callable
from typing import Any, final

import dm_env
import gymnasium
import numpy as np
from dm_env import specs
from gymnasium import spaces
from numpy.typing import NDArray

from topology.errors import ProgramError

__all__ = ["GymnasiumEnvironment", "make_gymnasium"]

Observation = NDArray[Any]


@final
class GymnasiumEnvironment(dm_env.Environment):  # type: ignore[misc]  # dm_env has no type information
    """One Gymnasium environment with discrete actions, or with bounded continuous ones.

    An episode that terminates ends with discount 0, one that is truncated (a time limit) ends with discount 1, so that
    its last state still has a value. Images (uint8 boxes) stay as they are, other boxes become float32, discrete
    observations become one-hot float32 vectors. Stepping after the end of an episode starts the next one.

    Args:
        environment: closed by `close()`.
        seed: given to the first reset; later ones go on with its random state.

    Raises:
        ProgramError: an action or observation space that does not fit.
    """

    def __init__(self, environment: gymnasium.Env[Any, Any], *, seed: int | None = None) -> None:
        self._environment = environment
        self._seed = seed
        self._must_reset = True
        self._action_spec, self._to_action = _convert_actions(environment.action_space)
        self._observation_spec, self._convert = _convert_observations(environment.observation_space)

    def reset(self) -> dm_env.TimeStep:
        observation, _ = self._environment.reset(seed=self._seed)
        self._seed = None
        self._must_reset = False
        return dm_env.restart(self._convert(observation))

    def step(self, action: Any) -> dm_env.TimeStep:
        if self._must_reset:
            return self.reset()
        raw, reward, terminated, truncated, _ = self._environment.step(self._to_action(action))
        observation = self._convert(raw)
        self._must_reset = bool(terminated or truncated)
        if terminated:
            return dm_env.termination(float(reward), observation)
        if truncated:
            return dm_env.truncation(float(reward), observation)
        return dm_env.transition(float(reward), observation)

    def observation_spec(self) -> specs.Array:
        return self._observation_spec

    def action_spec(self) -> specs.DiscreteArray | specs.BoundedArray:
        return self._action_spec

    def close(self) -> None:
        self._environment.close()


def make_gymnasium(environment_id: str, seed: int | None = None) -> GymnasiumEnvironment:
    """`gymnasium.make(environment_id)` behind the adapter.

    Raises:
        ProgramError: no such id (with near matches), a package it needs is missing, or spaces that do not fit.
    """
    _register_namespace(environment_id)
    try:
        environment = gymnasium.make(environment_id)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ProgramError(
            f"The environment 'gym:{environment_id}' needs a package that is not installed: {error}"
        ) from error
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv, gymnasium.error.Error) as error:
        near = difflib.get_close_matches(environment_id, list(gymnasium.registry), n=3)
        hint = f" Did you mean {' or '.join(repr(f'gym:{name}') for name in near)}?" if near else ""
        raise ProgramError(
            f"Gymnasium has no environment {environment_id!r}: {error}{hint} `gymnasium.pprint_registry()` lists them "
            "all; those of another package are written gym:package:Name-v0."
        ) from error
    try:
        return GymnasiumEnvironment(environment, seed=seed)
    except ProgramError as error:
        environment.close()
        raise ProgramError(f"The environment 'gym:{environment_id}' cannot be used: {error}") from error


def _register_namespace(environment_id: str) -> None:
    """Has the package that announces the namespace of an id, as MinAtar does, register its environments.

    Gymnasium did this itself before its version 1.
    """
    namespace, slash, _ = environment_id.partition("/")
    if not slash or any(name.startswith(f"{namespace}/") for name in gymnasium.registry):
        return
    for announced in importlib.metadata.entry_points(group="gymnasium.envs", name=namespace):
        announced.load()()


def _convert_actions(space: gymnasium.Space[Any]) -> tuple[specs.Array, Callable[[Any], Any]]:
    if isinstance(space, spaces.Discrete):
        first = int(space.start)
        return specs.DiscreteArray(int(space.n), name="action"), lambda action: int(action) + first
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        raise ProgramError(
            f"its actions are {space}, and only discrete and continuous ones are supported: choose an environment with "
            "a Discrete or a Box action space, or wrap it in one that maps a number to an action"
        )
    if not space.is_bounded("both"):
        raise ProgramError(
            f"its actions are {space}, and continuous ones must have bounds: wrap it in one that has them, such as "
            "gymnasium.wrappers.TransformAction"
        )
    dtype = space.dtype
    spec = specs.BoundedArray(space.shape, dtype, space.low, space.high, name="action")
    return spec, lambda action: np.asarray(action, dtype)


def _convert_observations(space: gymnasium.Space[Any]) -> tuple[specs.Array, Callable[[Any], Observation]]:
    if isinstance(space, spaces.Discrete):
        rows = np.eye(int(space.n), dtype=np.float32)
        spec = specs.BoundedArray((int(space.n),), np.float32, 0.0, 1.0, name="observation")
        return spec, lambda observation: rows[int(observation) - int(space.start)].copy()
    if not isinstance(space, spaces.Box | spaces.MultiBinary):
        raise ProgramError(
            f"its observations are {space}, and only boxes, binary vectors and discrete ones are supported: wrap it in "
            "gymnasium.wrappers.FlattenObservation"
        )
    dtype = np.dtype(np.uint8) if space.dtype == np.uint8 and len(space.shape) >= 2 else np.dtype(np.float32)
    low, high = _bounds(space, dtype)
    spec = specs.BoundedArray(space.shape, dtype, low, high, name="observation")
    # Always a copy: some environments write every observation into the same array.
    return spec, lambda observation: np.array(observation, dtype=dtype)


def _bounds(space: spaces.Box | spaces.MultiBinary, dtype: np.dtype[Any]) -> tuple[Observation, Observation]:
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, dtype), np.ones(space.shape, dtype)
    if dtype == np.uint8:
        return space.low, space.high
    limit = np.finfo(np.float32).max
    unbounded = [
        np.where(np.abs(bound) >= limit, np.copysign(np.inf, bound), bound) for bound in (space.low, space.high)
    ]
    return unbounded[0].astype(dtype), unbounded[1].astype(dtype)
