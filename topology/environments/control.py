"""Tasks of the DeepMind Control Suite as `dm_env` environments whose observations are vectors."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from typing import Any, final

import dm_env
import numpy as np
from dm_env import specs
from numpy.typing import NDArray

from topology.errors import ProgramError

__all__ = ["FlatObservations", "make_control"]


@final
class FlatObservations(dm_env.Environment):  # type: ignore[misc]  # dm_env has no type information
    """Another environment, whose observations by name become one float32 vector, in the order of its spec.

    A time limit ends an episode with discount 1, so that its last state still has a value.

    Args:
        environment: closed by `close()`.
    """

    def __init__(self, environment: dm_env.Environment) -> None:
        self._environment = environment
        self._names = tuple(environment.observation_spec())
        size = sum(int(np.prod(spec.shape)) for spec in environment.observation_spec().values())
        self._spec = specs.Array((size,), np.float32, name="observation")

    def reset(self) -> dm_env.TimeStep:
        return self._flat(self._environment.reset())

    def step(self, action: Any) -> dm_env.TimeStep:
        return self._flat(self._environment.step(action))

    def observation_spec(self) -> specs.Array:
        return self._spec

    def action_spec(self) -> specs.BoundedArray:
        return self._environment.action_spec()

    def close(self) -> None:
        self._environment.close()

    def _flat(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        return timestep._replace(observation=self._join(timestep.observation))

    def _join(self, observation: Mapping[str, Any]) -> NDArray[np.float32]:
        return np.concatenate([np.ravel(observation[name]) for name in self._names]).astype(np.float32)


def make_control(task: str, seed: int | None = None) -> FlatObservations:
    """A task of the suite, written domain-task, e.g. "cartpole-swingup" or "ball_in_cup-catch".

    Source: Tassa et al., "dm_control: Software and tasks for continuous control", 2020, arXiv:2006.12983.

    Raises:
        ProgramError: no such task (with near matches), or dm_control is not installed.
    """
    # Nothing is drawn here; without a display dm_control would look for one, and complain.
    os.environ.setdefault("MUJOCO_GL", "disable")
    try:
        from dm_control import suite
    except ImportError as error:
        raise ProgramError(
            f"The environment 'dm_control:{task}' needs a package that is not installed ({error}): "
            "pip install 'rl-topology[control]'"
        ) from error
    known = ["-".join(names) for names in suite.ALL_TASKS]
    if task not in known:
        near = difflib.get_close_matches(task, known, n=3)
        hint = f"Did you mean {' or '.join(repr(f'dm_control:{name}') for name in near)}?" if near else ""
        raise ProgramError(
            f"dm_control has no task {task!r}. {hint or 'It has ' + ', '.join(known) + '.'} "
            "They are written dm_control:domain-task."
        )
    domain, _, name = task.partition("-")
    return FlatObservations(suite.load(domain, name, task_kwargs={"random": seed}))
