"""Whether the values of settings are of the types that their class declares."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import numbers
import types
import typing
from collections.abc import Collection, Hashable, Mapping
from typing import Any

__all__ = ["type_faults", "with_defaults"]

_UNIONS = (typing.Union, types.UnionType)


def type_faults(settings: Any) -> dict[str, str]:
    """A fault for each field of a dataclass whose value is not of the field's type, by the field's name.

    Numbers, texts, truth values, tuples of them, and what may also be None are looked at; fields of other types are
    left to their owner. A float may be given as an int, and must be finite: there is always a large number for "no
    limit", and nothing can be computed with one that is not a number.
    """
    annotations = _annotations(typing.cast("Hashable", type(settings)))
    return {
        name: f"{name}={getattr(settings, name)!r}: {_description(annotation)}"
        for name, annotation in annotations.items()
        if not _fits(getattr(settings, name), annotation)
    }


def with_defaults(settings: Any, names: Collection[str]) -> Any | None:
    """A copy of a dataclass with these fields at their defaults, not checked; None where one of them has no default."""
    other = copy.copy(settings)
    for field in dataclasses.fields(settings):
        if field.name in names:
            if field.default is dataclasses.MISSING:
                return None
            object.__setattr__(other, field.name, field.default)
    return other


@functools.lru_cache(maxsize=64)
def _annotations(owner: Any) -> Mapping[str, Any]:
    try:
        hints = typing.get_type_hints(owner)
    except (NameError, TypeError, AttributeError):
        return {}  # written for type checkers only, with names that are not there when the program runs
    return {field.name: hints[field.name] for field in dataclasses.fields(owner) if field.name in hints}


def _fits(value: Any, annotation: Any) -> bool:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in _UNIONS:
        return any(_fits(value, argument) for argument in arguments)
    if annotation is type(None):
        return value is None
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return isinstance(value, tuple) and all(_fits(item, arguments[0]) for item in value)
    if annotation is bool or annotation is str:
        return isinstance(value, annotation)
    if annotation is int or annotation is float:
        if isinstance(value, bool):  # an int to Python
            return False
        return isinstance(value, numbers.Integral) if annotation is int else _is_finite(value)
    return True


def _is_finite(value: Any) -> bool:
    try:
        return isinstance(value, numbers.Real) and math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False


_WORDS = {int: "a whole number", float: "a finite number", str: "a text", bool: "True or False", type(None): "None"}
_PLURALS = {int: "whole numbers", float: "finite numbers", str: "texts"}


def _description(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in _UNIONS:
        return " or ".join(_description(argument) for argument in arguments)
    if origin is tuple:
        return f"a tuple of {_PLURALS.get(arguments[0], 'values')}; one of them is written (1,)"
    return _WORDS.get(annotation, str(annotation))
