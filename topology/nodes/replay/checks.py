"""Checks of what callers give: numbers that are counts, and seconds to wait."""

from __future__ import annotations

import math
import operator
from typing import Any

from topology.clock import FOR_EVER_S

__all__ = ["check_count", "check_timeout"]


def check_count(what: str, value: Any, *, least: int = 1, most: int | None = None) -> int:
    """An integer of any type as an int; 2.0 is none, since 1.5 is none either.

    Raises:
        ValueError: it is no integer, or out of bounds; the text begins with `what`.
    """
    try:
        count = operator.index(value)
    except TypeError:
        raise ValueError(f"{what} must be an integer, got {value!r}") from None
    if count < least:
        raise ValueError(f"{what} must be at least {least}, got {count}")
    if most is not None and count > most:
        raise ValueError(f"{what} must be at most {most:,}, got {count:,}")
    return count


def check_timeout(what: str, timeout_s: float | None) -> float | None:
    """Seconds to wait; None for no limit, as for more than any timer can count.

    Raises:
        ValueError: it is not a number.
    """
    if timeout_s is None:
        return None
    if not isinstance(timeout_s, int | float) or math.isnan(timeout_s):
        raise ValueError(f"{what} must be seconds, or None for no limit, got {timeout_s!r}")
    return timeout_s if timeout_s < FOR_EVER_S else None
