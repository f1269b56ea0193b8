"""Environments by name: what the command line and configurations use."""

from __future__ import annotations

import difflib
import inspect
from typing import Protocol

import dm_env

from topology.environments.catch import Catch
from topology.errors import ProgramError

__all__ = ["EnvironmentFactory", "make_environment"]


class EnvironmentFactory(Protocol):
    """Makes one environment; a factory without a `seed` parameter is called without."""

    def __call__(self, *, seed: int | None = None) -> dm_env.Environment: ...


_BUILT_IN = {"catch": Catch}
_GYMNASIUM = "gym:"


def make_environment(
    environment: str | dm_env.Environment | EnvironmentFactory, seed: int | None = None
) -> dm_env.Environment:
    """An environment by name, by factory, or as it is.

    Args:
        environment: "catch"; "gym:" and any Gymnasium id with discrete actions, e.g. "gym:CartPole-v1"; a function
            that returns a `dm_env` environment; or such an environment, which is returned as it is.
        seed: of its randomness; None for a different one each time. Not used for an environment that exists already.

    Raises:
        ProgramError: nothing of that name, or an environment that does not fit.

    Example:
        >>> make_environment("catch", seed=1).observation_spec().shape
        (10, 5)
    """
    if isinstance(environment, str):
        return _by_name(environment, seed)
    if isinstance(environment, dm_env.Environment):
        return environment
    if not callable(environment):
        raise ProgramError(
            f"make_environment() takes a name, a dm_env.Environment or a function that returns one, got {environment!r}"
        )
    made = environment(seed=seed) if _takes_seed(environment) else environment()
    if not isinstance(made, dm_env.Environment):
        raise ProgramError(f"The environment factory {environment!r} returned {made!r}, not a dm_env.Environment")
    return made


def _by_name(name: str, seed: int | None) -> dm_env.Environment:
    if name in _BUILT_IN:
        return _BUILT_IN[name](seed=seed)
    if name.startswith(_GYMNASIUM):
        from topology.environments.gymnasium import make_gymnasium

        return make_gymnasium(name.removeprefix(_GYMNASIUM), seed)
    near = _near_matches(name)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    raise ProgramError(
        f"There is no environment {name!r}.{hint} Known are {', '.join(map(repr, sorted(_BUILT_IN)))}, and every "
        "Gymnasium id with discrete actions, written 'gym:CartPole-v1'."
    )


def _near_matches(name: str) -> list[str]:
    import gymnasium

    known = [*_BUILT_IN, *(_GYMNASIUM + known_id for known_id in gymnasium.registry)]
    by_lower = {candidate.lower(): candidate for candidate in known}
    wanted = name.lower()
    near = difflib.get_close_matches(wanted, by_lower, n=3, cutoff=0.7)
    near += difflib.get_close_matches(_GYMNASIUM + wanted, by_lower, n=3, cutoff=0.8)
    return list(dict.fromkeys(by_lower[match] for match in near))[:3]


def _takes_seed(factory: EnvironmentFactory) -> bool:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    return any(p.name == "seed" or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
