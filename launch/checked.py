"""Values of launch options, checked: the error says which option, what it takes, and what was found."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Mapping
from typing import Any

from topology.clock import FOR_EVER_S
from topology.errors import LaunchError

__all__ = ["checked_count", "checked_mapping", "checked_names", "checked_seconds", "checked_whole"]


def checked_mapping(name: str, value: object, what: str) -> Mapping[Any, Any]:
    """`value`, or an empty dict for None. Raises LaunchError when it is no mapping."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise LaunchError(f"{name} is a dict of {what}, got {value!r}")
    return value


def checked_whole(name: str, value: object) -> int:
    """`value` as an int, also of NumPy. Raises LaunchError."""
    try:
        return operator.index(value)  # type: ignore[arg-type]  # that is what is found out
    except TypeError:
        raise LaunchError(f"{name} is a whole number, got {value!r}") from None


def checked_count(name: str, value: object) -> int:
    """`value` as an int of at least 0. Raises LaunchError."""
    count = checked_whole(name, value)
    if count < 0:
        raise LaunchError(f"{name} must be at least 0, got {count}")
    return count


def checked_seconds(name: str, value: object) -> float:
    """`value` as seconds that can be waited for. Raises LaunchError."""
    if not isinstance(value, numbers.Real) or math.isnan(value):
        raise LaunchError(f"{name} is a number of seconds, got {value!r}")
    if value < 0:
        raise LaunchError(f"{name} must be at least 0, got {value}")
    return min(float(value), FOR_EVER_S)


def checked_names(name: str, value: object) -> tuple[str, ...]:
    """`value` as a tuple of texts. Raises LaunchError, also for one text, which would be read letter by letter."""
    names = None if isinstance(value, str | bytes) else _tuple(value)
    if names is None or not all(isinstance(part, str) and part for part in names):
        example = f"({value!r},)" if isinstance(value, str) else "('numpy',)"
        raise LaunchError(f"{name} is a tuple of names of modules, such as {example}; got {value!r}")
    return names


def _tuple(value: Any) -> tuple[Any, ...] | None:
    try:
        return tuple(value)
    except TypeError:
        return None
