"""Checks of what callers give: numbers that are counts, and seconds to wait."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from topology.clock import FOR_EVER_S

__all__ = ["check_count", "check_keys", "check_positive", "check_priority", "check_timeout"]


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


def check_positive(name: str, value: Any) -> int:
    """An integer of any type, at least 1, as an int.

    Raises:
        ValueError: it is something else; the text names it.
    """
    try:
        count = operator.index(value)
    except TypeError:
        count = 0
    if count < 1:
        raise ValueError(f"{name} ({value}) must be a positive integer")
    return count


def check_priority(table: str, priority: Any) -> float:
    """A priority as a float, finite and not negative.

    Raises:
        TypeError, ValueError: it is not a number, or not such a one.
    """
    try:
        value = float(priority)
    except (TypeError, ValueError) as error:
        raise type(error)(f"table {table!r}: a priority is a number, got {priority!r}") from None
    if not 0 <= value < math.inf:
        raise ValueError(f"table {table!r}: priorities must be finite and not negative, got {value}")
    return value


def check_keys(table: str, keys: Any) -> npt.NDArray[np.uint64]:
    """Keys of items, [n].

    Raises:
        ValueError: they are no integers of 64 bits.
    """
    if not hasattr(keys, "dtype"):
        return _keys_of_list(table, keys)
    array = np.asarray(keys)
    if not array.size:
        return array.astype(np.uint64)
    if array.dtype.kind not in "iu" or array.dtype.itemsize < 8:
        raise ValueError(
            f"table {table!r}: keys are integers of 64 bits, as SampleInfo.key gives them, got {array.dtype}"
            f"{list(array.shape)}. (jax makes 32 bits of them: keep them in numpy)"
        )
    if (array < 0).any():
        raise ValueError(f"table {table!r}: keys are not negative, got {array.min()}")
    return array.astype(np.uint64)


def _keys_of_list(table: str, keys: Iterable[Any]) -> npt.NDArray[np.uint64]:
    try:
        return np.fromiter(map(operator.index, keys), np.uint64)
    except (TypeError, OverflowError) as error:
        raise ValueError(
            f"table {table!r}: keys are integers of 64 bits, as SampleInfo.key gives them, got {keys!r}"
        ) from error
