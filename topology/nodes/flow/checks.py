"""Checks of what operators are given, at the moment they are given it."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, SupportsIndex

__all__ = ["check_callable", "check_seconds", "check_whole", "setting"]


def check_whole(name: str, value: SupportsIndex, at_least: int) -> int:
    """The number, as an int.

    Raises:
        ValueError: it is no whole number, or a smaller one.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = at_least - 1
    if number < at_least:
        raise ValueError(f"{name} must be a whole number and at least {at_least}, got {value!r}")
    return number


def check_seconds(name: str, value: float | None) -> float | None:
    """The time, or None.

    Raises:
        ValueError: it is no number, or a negative one.
    """
    if value is not None and not (isinstance(value, int | float) and value >= 0):
        raise ValueError(f"{name} must be a number of seconds and at least 0, or None, got {value!r}")
    return value


def setting(config: Mapping[str, Any], name: str) -> Any:
    """A setting of a plan.

    Raises:
        KeyError: there is none of that name.
    """
    if name not in config:
        raise KeyError(f"the plan's config has no {name!r}; it has {sorted(config)}")
    return config[name]


def check_callable(name: str, value: Any) -> Any:
    """The function.

    Raises:
        TypeError: it cannot be called.
    """
    if not callable(value):
        raise TypeError(f"{name} takes a function, or an object that can be called, got {value!r}")
    return value
