"""Environments by name, by path, by factory: what the command line and configurations use."""

from __future__ import annotations

import difflib
import sys
from typing import TYPE_CHECKING, Any, Protocol

import dm_env

from topology.environments.by_path import call_factory, find_factory, takes_seed
from topology.environments.catch import Catch
from topology.environments.memory_chain import MemoryChain
from topology.environments.switch_riddle import SwitchRiddle
from topology.environments.two_step import TwoStepGame
from topology.errors import ProgramError

if TYPE_CHECKING:
    import gymnasium

__all__ = ["EnvironmentFactory", "make_environment"]


class EnvironmentFactory(Protocol):
    """Makes one environment; a factory without a `seed` parameter is called without."""

    def __call__(self, *, seed: int | None = None) -> dm_env.Environment | gymnasium.Env[Any, Any]: ...


def _cartpole_hidden(*, seed: int | None = None) -> dm_env.Environment:
    from topology.environments.cartpole_hidden import cartpole_hidden

    return cartpole_hidden(seed=seed)


_BUILT_IN = {"cartpole_hidden": _cartpole_hidden, "catch": Catch, "memory_chain": MemoryChain}
_BUILT_IN |= {"switch_riddle": SwitchRiddle, "two_step": TwoStepGame}  # of several agents
_GYMNASIUM = "gym:"
_DM_CONTROL = "dm_control:"
_PETTINGZOO = "pettingzoo:"


def make_environment(
    environment: str | dm_env.Environment | gymnasium.Env[Any, Any] | EnvironmentFactory, seed: int | None = None
) -> dm_env.Environment:
    """An environment by name, by path, by factory, or as it is.

    Args:
        environment: "catch"; "memory_chain", or "memory_chain:20" for its length; "cartpole_hidden"; "gym:" and a
            Gymnasium id, e.g. "gym:CartPole-v1"; "dm_control:" and a task, e.g. "dm_control:cartpole-swingup"; a
            function that returns a `dm_env`, Gymnasium or (parallel) PettingZoo environment, or where it is:
            "package.module:function" or "path/to/file.py:function"; or an environment. One of `dm_env` is returned as
            it is, one of Gymnasium behind `GymnasiumEnvironment`.
        seed: of its randomness; None for a different one each time. Not used for a `dm_env` environment that exists
            already.

    Raises:
        ProgramError: nothing of that name, or an environment that does not fit.

    Example:
        >>> make_environment("catch", seed=1).observation_spec().shape
        (10, 5)
    """
    if isinstance(environment, str):
        return _by_name(environment, seed)
    if (found := _adapt(environment, seed)) is not None:
        return found
    if not callable(environment):
        raise ProgramError(
            f"make_environment() takes a name, an environment or a function that returns one, got {environment!r}"
        )
    made = environment(seed=seed) if takes_seed(environment) else environment()
    return _checked(made, f"The environment factory {environment!r}", seed)


def _checked(made: object, who: str, seed: int | None) -> dm_env.Environment:
    if (found := _adapt(made, seed)) is None:
        raise ProgramError(f"{who} returned {made!r}, not a dm_env.Environment or a gymnasium.Env")
    return found


def _adapt(value: object, seed: int | None) -> dm_env.Environment | None:
    """`value` as a `dm_env` environment; None when it is no environment."""
    if isinstance(value, dm_env.Environment):
        return value
    if "pettingzoo" in sys.modules:
        from topology.environments.pettingzoo import ParallelEnv, PettingZooEnvironment

        if isinstance(value, ParallelEnv):
            return PettingZooEnvironment(value, seed=seed)
    if "gymnasium" not in sys.modules:
        return None  # whoever has an environment of it has imported it
    import gymnasium

    if not isinstance(value, gymnasium.Env):
        return None
    from topology.environments.gymnasium import GymnasiumEnvironment

    try:
        return GymnasiumEnvironment(value, seed=seed)
    except ProgramError as error:
        value.close()
        raise ProgramError(f"The environment {value} cannot be used: {error}") from error


def _by_name(name: str, seed: int | None) -> dm_env.Environment:
    if name in _BUILT_IN:
        return _BUILT_IN[name](seed=seed)
    if name.startswith("memory_chain:"):
        return _memory_chain(name.removeprefix("memory_chain:"), seed)
    if name.startswith(_GYMNASIUM):
        from topology.environments.gymnasium import make_gymnasium

        return make_gymnasium(name.removeprefix(_GYMNASIUM), seed)
    if name.startswith(_DM_CONTROL):
        from topology.environments.control import make_control

        return make_control(name.removeprefix(_DM_CONTROL), seed)
    if name.startswith(_PETTINGZOO):
        return _pettingzoo(name.removeprefix(_PETTINGZOO), seed)
    if ":" in name:
        return _checked(call_factory(name, find_factory(name), seed=seed), f"environment {name!r}: the function", seed)
    if name.endswith(".py"):
        raise ProgramError(f"environment {name!r} is a file: say which function makes it, {name}:FUNCTION")
    near = _near_matches(name)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    raise ProgramError(
        f"There is no environment {name!r}.{hint} Known are {', '.join(map(repr, sorted(_BUILT_IN)))}, every "
        "Gymnasium id, written 'gym:CartPole-v1', and every task of dm_control, written "
        "'dm_control:cartpole-swingup'. One of your own is written "
        "package.module:function or path/to/file.py:function."
    )


def _memory_chain(length: str, seed: int | None) -> MemoryChain:
    if not length.isdecimal() or int(length) < 1:
        raise ProgramError(f"environment 'memory_chain:{length}': {length!r} is no length; write memory_chain:10")
    return MemoryChain(int(length), seed=seed)


def _pettingzoo(name: str, seed: int | None) -> dm_env.Environment:
    try:
        from topology.environments.pettingzoo import make_pettingzoo
    except ModuleNotFoundError as error:
        raise ProgramError(
            f"The environment 'pettingzoo:{name}' needs PettingZoo, which is not installed: "
            'pip install "rl-topology[multiagent]"'
        ) from error
    return make_pettingzoo(name, seed)


def _near_matches(name: str) -> list[str]:
    import gymnasium

    known = [*_BUILT_IN, *(_GYMNASIUM + known_id for known_id in gymnasium.registry)]
    by_lower = {candidate.lower(): candidate for candidate in known}
    wanted = name.lower()
    near = difflib.get_close_matches(wanted, by_lower, n=3, cutoff=0.7)
    near += difflib.get_close_matches(_GYMNASIUM + wanted, by_lower, n=3, cutoff=0.8)
    return list(dict.fromkeys(by_lower[match] for match in near))[:3]
