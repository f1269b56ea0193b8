"""Values from the text of a command line, by the type that is wanted: `3e-4`, `none`, `256,256`, `fast`."""

from __future__ import annotations

import ast
import enum
import pathlib
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["convert", "describe_type"]

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


def convert(text: str, annotation: Any) -> Any:
    """`text` as a value of the annotated type.

    Example:
        >>> convert("256,256", tuple[int, ...]), convert("none", int | None), convert("1e6", int)
        ((256, 256), None, 1000000)

    Raises:
        ValueError: it is none; the message says what was expected.
    """
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return convert(text, typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return _convert_union(text, annotation)
    if origin is typing.Literal:
        return _choose(text, annotation, {str(value): value for value in typing.get_args(annotation)})
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        members = {name.lower(): member for name, member in annotation.__members__.items()}
        return _choose(text, annotation, {**members, **{str(member.value): member for member in annotation}})
    if (origin or annotation) in (tuple, list, Sequence, frozenset, set):
        return _convert_sequence(text, annotation)
    if annotation in _SCALARS:
        return _SCALARS[annotation](text)
    if annotation is Any or annotation is object or isinstance(annotation, str):
        return _literal(text)
    raise ValueError(f"{describe_type(annotation)}, which cannot be written on a command line")


def _choose(text: str, annotation: Any, values: Mapping[str, Any]) -> Any:
    if text in values:
        return values[text]
    if text.lower() in values:
        return values[text.lower()]
    raise ValueError(describe_type(annotation))


def _convert_union(text: str, annotation: Any) -> Any:
    # str takes any text, so it comes last: `int | str` reads "3" as a number.
    for member in sorted(typing.get_args(annotation), key=lambda member: member is str):
        try:
            return convert(text, member)
        except ValueError:
            continue
    raise ValueError(describe_type(annotation))


def _convert_sequence(text: str, annotation: Any) -> Any:
    origin = typing.get_origin(annotation) or annotation
    make: Callable[[list[Any]], Any] = tuple if origin is Sequence else origin
    parts = [part.strip() for part in text.strip().strip("()[]{}").split(",") if part.strip()]
    kinds = [kind for kind in typing.get_args(annotation) if kind is not Ellipsis]
    fixed = origin is tuple and kinds and Ellipsis not in typing.get_args(annotation)
    if fixed and len(parts) != len(kinds):
        raise ValueError(f"{describe_type(annotation)} ({len(kinds)} values, comma-separated)")
    each = kinds if fixed else (kinds or [Any]) * len(parts)
    try:
        return make([convert(part, kind) for part, kind in zip(parts, each, strict=True)])
    except ValueError:
        raise ValueError(f"{describe_type(annotation)} (values separated by commas)") from None


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = _float(text) if re.fullmatch(r"[+-]?[\d.]+[eE]\+?\d+", text) else 0.5  # 1e6 is an int to people
    if not number.is_integer():
        raise ValueError("int")
    return int(number)


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("float") from None


def _bool(text: str) -> bool:
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    raise ValueError("bool (true or false)")


def _none(text: str) -> None:
    if text.lower() not in ("none", "null", ""):
        raise ValueError("None")


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


_SCALARS: dict[Any, Callable[[str], Any]] = {
    int: _int,
    float: _float,
    bool: _bool,
    str: str,
    type(None): _none,
    pathlib.Path: pathlib.Path,
}


def describe_type(annotation: Any) -> str:
    """A type as people write it: `int`, `float | None`, `tuple[int, ...]`, `one of 'a', 'b'`."""
    if typing.get_origin(annotation) is typing.Literal:
        return "one of " + ", ".join(map(repr, typing.get_args(annotation)))
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return "one of " + ", ".join(repr(member.value) for member in annotation)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " | ".join(describe_type(member) for member in typing.get_args(annotation))
    if annotation is type(None):
        return "None"
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation.__name__
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", str(annotation))
