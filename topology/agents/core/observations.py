"""Whether what an environment shows is what its spec says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["observation_fault"]


def observation_fault(observation: Any, spec: Any, path: str = "") -> str | None:
    """What is wrong with an observation, in words; None where it is an array as its spec says.

    Args:
        observation: one, or several by name.
        spec: its spec, or specs by name, to any depth.
        path: where it stands among others.
    """
    if not isinstance(spec, Mapping):
        return _array_fault(observation, spec, path)
    names = ", ".join(map(repr, spec))
    if not isinstance(observation, Mapping):
        return f"the observation{path} is {_described(observation)}, and its spec has {names}"
    if any(name not in observation for name in spec):
        return f"the observation{path} has {', '.join(map(repr, observation))}, and its spec has {names}"
    faults = (observation_fault(observation[name], inner, f"{path}[{name!r}]") for name, inner in spec.items())
    return next(filter(None, faults), None)


def _array_fault(observation: Any, spec: Any, path: str) -> str | None:
    if isinstance(observation, bool | int | float):
        observation = np.asarray(observation)
    if getattr(observation, "shape", None) == spec.shape and getattr(observation, "dtype", None) == spec.dtype:
        return None
    return f"the observation{path} is {_described(observation)}, and its spec says {_described(spec)}"


def _described(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{np.dtype(value.dtype)}{list(value.shape)}"
    return f"a {type(value).__name__}"
