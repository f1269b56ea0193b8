"""PettingZoo's parallel environments as multi-agent environments."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any, final

import dm_env
import gymnasium
import numpy as np
from dm_env import specs
from gymnasium import spaces
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from topology.environments.multi_agent import ACTION_MASK, OBSERVATION, MultiAgentEnvironment
from topology.errors import ProgramError

__all__ = ["ParallelEnv", "PettingZooEnvironment", "make_pettingzoo"]

_MOVED = {"mpe": "mpe2"}  # families that have left the package


@final
class PettingZooEnvironment(MultiAgentEnvironment):
    """One parallel environment with discrete actions.

    All of its `possible_agents` are there in every step; of one that has left, all is zero and its actions are dropped.
    An agent that terminates has discount 0 from then on, one that is truncated (a time limit) has discount 1. The
    episode ends when all have left. Observations become float32; where they come with an `action_mask`, it stays.

    Args:
        environment: closed by `close()`.
        seed: given to the first reset; later ones go on with its random state.

    Raises:
        ProgramError: an action or observation space that does not fit.
    """

    def __init__(self, environment: ParallelEnv[str, Any, Any], *, seed: int | None = None) -> None:
        self._environment = environment
        self._seed = seed
        self._must_reset = True
        self._agents = tuple(str(agent) for agent in environment.possible_agents)
        self._num_actions = {agent: _num_actions(agent, environment.action_space(agent)) for agent in self._agents}
        self._observation_spec = {
            agent: _observation_spec(agent, environment.observation_space(agent), self._num_actions[agent])
            for agent in self._agents
        }

    @property
    def agents(self) -> tuple[str, ...]:
        return self._agents

    def reset(self) -> dm_env.TimeStep:
        observations, _ = self._environment.reset(seed=self._seed)
        self._seed = None
        self._must_reset = False
        return dm_env.restart(self._convert(observations))

    def step(self, action: Mapping[str, int]) -> dm_env.TimeStep:
        if self._must_reset:
            return self.reset()
        there = list(self._environment.agents)  # some environments change theirs in place
        taken = {agent: np.int64(action[agent]) for agent in there}
        observations, rewards, terminated, _, _ = self._environment.step(taken)
        self._must_reset = not self._environment.agents
        goes_on = {agent: agent in there and not terminated.get(agent, True) for agent in self._agents}
        return dm_env.TimeStep(
            step_type=dm_env.StepType.LAST if self._must_reset else dm_env.StepType.MID,
            reward={agent: np.float32(rewards.get(agent, 0.0)) for agent in self._agents},
            discount={agent: np.float32(goes_on[agent]) for agent in self._agents},
            observation=self._convert(observations),
        )

    def observation_spec(self) -> dict[str, Any]:
        return self._observation_spec

    def action_spec(self) -> dict[str, specs.DiscreteArray]:
        return {agent: specs.DiscreteArray(count, name="action") for agent, count in self._num_actions.items()}

    def close(self) -> None:
        self._environment.close()

    def _convert(self, observations: Mapping[str, Any]) -> dict[str, Any]:
        return {agent: self._convert_one(agent, observations.get(agent)) for agent in self._agents}

    def _convert_one(self, agent: str, raw: Any) -> Any:
        spec = self._observation_spec[agent]
        if not isinstance(spec, dict):
            return _array(raw, spec)
        if raw is None:
            first = np.arange(self._num_actions[agent]) == 0
            return {OBSERVATION: _array(None, spec[OBSERVATION]), ACTION_MASK: first.astype(np.int8)}
        return {key: _array(raw[key], spec[key]) for key in spec}


def make_pettingzoo(name: str, seed: int | None = None) -> PettingZooEnvironment:
    """The environment `FAMILY.NAME`, e.g. "mpe.simple_spread_v3", behind the adapter.

    Raises:
        ProgramError: no such environment, a package it needs is missing, or spaces that do not fit.
    """
    module = _import(name)
    make = getattr(module, "parallel_env", None)
    if make is None:
        raise ProgramError(
            f"The environment 'pettingzoo:{name}' has no parallel_env(): its agents act in turn, which is not supported"
        )
    environment = make()
    try:
        return PettingZooEnvironment(environment, seed=seed)
    except ProgramError as error:
        environment.close()
        raise ProgramError(f"The environment 'pettingzoo:{name}' cannot be used: {error}") from error


def _import(name: str) -> ModuleType:
    family, _, rest = name.partition(".")
    package = _MOVED.get(family, f"pettingzoo.{family}")
    try:
        module = importlib.import_module(package)
        return importlib.import_module(f"{package}.{rest}") if rest else module
    except ModuleNotFoundError as error:
        if error.name == package and family in _MOVED:
            raise ProgramError(
                f"The environment 'pettingzoo:{name}' needs the package {package!r}, which is not installed: "
                'pip install "rl-topology[multiagent]"'
            ) from error
        if error.name is not None and error.name.startswith(package):
            raise ProgramError(
                f"There is no environment 'pettingzoo:{name}' ({error}). It is written family.name_version, as in "
                f"'pettingzoo:mpe.simple_spread_v3'.{_hint(package, family, rest)}"
            ) from error
        raise ProgramError(f"The environment 'pettingzoo:{name}' needs a package that is missing: {error}") from error


def _hint(package: str, family: str, wanted: str) -> str:
    if importlib.util.find_spec(package) is None:
        return ""
    found = pkgutil.iter_modules(importlib.import_module(package).__path__)
    known = [module.name for module in found if re.search(r"_v\d+$", module.name)]
    near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(repr(f'pettingzoo:{family}.{match}') for match in near)}?" if near else ""


def _num_actions(agent: str, space: gymnasium.Space[Any]) -> int:
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return int(space.n)
    raise ProgramError(f"the actions of {agent} are {space}, and only discrete ones from 0 on are supported")


def _observation_spec(agent: str, space: gymnasium.Space[Any], num_actions: int) -> Any:
    if isinstance(space, spaces.Dict) and set(space) == {OBSERVATION, ACTION_MASK}:
        mask = specs.BoundedArray((num_actions,), np.int8, 0, 1, name="legal actions")
        return {OBSERVATION: _observation_spec(agent, space[OBSERVATION], num_actions), ACTION_MASK: mask}
    if isinstance(space, spaces.Box | spaces.MultiBinary | spaces.Discrete):
        return specs.Array(space.shape, np.float32, name="observation")
    raise ProgramError(
        f"the observations of {agent} are {space}, and only boxes, binary vectors and numbers are supported, alone or "
        f"as the {OBSERVATION!r} beside an {ACTION_MASK!r}"
    )


def _array(value: Any, spec: specs.Array) -> NDArray[Any]:
    """A copy: some environments write every observation into the same array. Zeros for None."""
    return np.zeros(spec.shape, spec.dtype) if value is None else np.array(value, spec.dtype)
