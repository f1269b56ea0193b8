"""Names of callables and plain data of arguments, as a graph shows them.

The result depends on the program only: not on memory addresses, hash seeds or the order of dicts and sets. It is JSON
data. What is not data appears as text in angle brackets: `<learner/0>` for a handle of that node, `<Network>` for an
object of that type.
"""

from __future__ import annotations

import enum
import functools
import inspect
import math
import numbers
import re
import sys
import types
import zlib
from collections.abc import Callable, Iterator
from datetime import date, time, timedelta
from pathlib import PurePath
from typing import Any, TypeAlias

from topology.address import Address
from topology.handle import Deferred, Handle, iterate_parts

__all__ = ["Plain", "look_up", "name_of", "plain", "short_text", "stable", "structure_of"]

Plain: TypeAlias = bool | int | float | str | list["Plain"] | dict[str, "Plain"] | None
_NameOfHandle: TypeAlias = Callable[[Handle[Any] | Address], str]

_REPR_IS_DATA = (numbers.Number, bytes, bytearray, range, slice, timedelta, date, time)
_MAX_ARRAY_ITEMS = 64
_MAX_TEXT = 200
_MEMORY_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def stable(text: str) -> str:
    """`text` without the memory addresses that the default repr of objects contains."""
    return _MEMORY_ADDRESS.sub("", text)


def name_of(value: Any) -> str:
    """A readable name of a callable or a type: `Class.method` for a bound method, never a memory address."""
    if value is None:
        return ""
    if isinstance(value, functools.partial):
        return f"partial({name_of(value.func)})"
    if inspect.ismethod(value):
        owner = value.__self__ if isinstance(value.__self__, type) else type(value.__self__)
        return f"{name_of(owner)}.{value.__name__}"
    qualname = getattr(value, "__qualname__", None)
    if not isinstance(qualname, str):  # an object with __call__
        return name_of(type(value))
    name = qualname.rpartition("<locals>.")[2]
    return "lambda" if name == "<lambda>" else name


def plain(value: object, name_of_handle: _NameOfHandle) -> Plain:
    """`value` as JSON data.

    Args:
        value: an argument of a node.
        name_of_handle: gives the name of the node that a handle, or an address, belongs to.
    """
    return _Reader(name_of_handle).read(value)


class _Reader:
    def __init__(self, name_of_handle: _NameOfHandle) -> None:
        self._name_of_handle = name_of_handle
        self._open: set[int] = set()

    def read(self, value: object) -> Plain:
        if isinstance(value, enum.Enum):
            return f"<{name_of(type(value))}.{value.name}>"
        if value is None or isinstance(value, bool | int | float | str):
            return _scalar(value)
        if isinstance(value, Handle):
            return f"<{self._name_of_handle(value)}>"
        if isinstance(value, Address):
            return f"<address of {self._name_of_handle(value)}>"
        array = _from_numpy(value)
        return array if array is not None else self._read_container(value)

    def _read_container(self, value: object) -> Plain:
        if id(value) in self._open:
            return "<cycle>"
        self._open.add(id(value))
        try:
            if isinstance(value, dict):
                parts = {key if isinstance(key, str) else stable(repr(key)): part for key, part in value.items()}
                return {key: self.read(parts[key]) for key in sorted(parts)}
            if isinstance(value, set | frozenset):
                return sorted((self.read(part) for part in value), key=repr)
            steps = list(iterate_parts(value))
            structure = _structure_name(value)
            if structure:
                return {f"<{structure}>": {step[1:]: self.read(part) for step, part in steps}}
            if isinstance(value, list | tuple):
                return [self.read(part) for _, part in steps]
        finally:
            self._open.discard(id(value))
        return _opaque(value)


def _structure_name(value: object) -> str:
    """The type to show in front of named parts; "" for what has no named parts."""
    if isinstance(value, Deferred):
        return f"Deferred({name_of(value.constructor)})"
    if isinstance(value, functools.partial):
        return name_of(value)
    if isinstance(value, type) or not (hasattr(type(value), "__dataclass_fields__") or _is_named_tuple(value)):
        return ""
    return name_of(type(value))


def _is_named_tuple(value: object) -> bool:
    return isinstance(value, tuple) and hasattr(type(value), "_fields")


def _scalar(value: object) -> Plain:
    """A number, flag, text or None, as exactly the built-in type: subclasses of them do not survive JSON."""
    if isinstance(value, float):
        # JSON has no nan and no inf, and nan would make a graph differ from itself.
        return float(value) if math.isfinite(value) else f"<{float(value)}>"
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return None if value is None else bool(value)


def _from_numpy(value: object) -> Plain:
    """Plain data of a numpy array or scalar; None for anything else. Does not import numpy: no array exists without."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray | numpy.generic):
        return None
    if value.size <= _MAX_ARRAY_ITEMS and value.dtype.kind in "biufU":
        return _read_numbers(value.tolist())
    shape = ", ".join(map(str, value.shape))
    checksum = "" if value.dtype.hasobject else f" crc32={zlib.crc32(value.tobytes()):08x}"
    return f"<{value.dtype}[{shape}]{checksum}>"


def _read_numbers(value: Any) -> Plain:
    return [_read_numbers(part) for part in value] if isinstance(value, list) else _scalar(value)


def _opaque(value: object) -> Plain:
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, types.ModuleType):
        return f"<module {value.__name__}>"
    if isinstance(value, _REPR_IS_DATA):
        text = stable(repr(value))
        return f"<{text}>" if len(text) <= _MAX_TEXT else f"<{name_of(type(value))} of {len(text)} characters>"
    return f"<{name_of(value if isinstance(value, type) or inspect.isroutine(value) else type(value))}>"


def structure_of(value: Plain) -> tuple[str, dict[str, Plain]] | None:
    """Type name and named parts of a value that was a dataclass, named tuple, partial or `Deferred`; else None."""
    if isinstance(value, dict) and len(value) == 1:
        [(key, parts)] = value.items()
        if isinstance(parts, dict) and key.startswith("<") and key.endswith(">"):
            return key[1:-1], parts
    return None


def _steps(value: Plain) -> Iterator[tuple[str, Plain]]:
    structure = structure_of(value)
    if structure:
        yield from ((f".{name}", part) for name, part in structure[1].items())
    elif isinstance(value, dict):
        for key, part in value.items():
            yield f"[{key!r}]", part
            yield f"[{key}]", part
    elif isinstance(value, list):
        yield from ((f"[{i}]", part) for i, part in enumerate(value))


def look_up(value: Plain, path: str) -> Plain:
    """The part of `value` at an argument path such as `[2].learner`.

    Raises:
        LookupError: there is none.
    """
    if not path:
        return value
    for step, part in _steps(value):
        rest = path.removeprefix(step)
        if path.startswith(step) and (not rest or rest[0] in ".["):
            return look_up(part, rest)
    raise LookupError(path)


def short_text(value: Plain, width: int = 60) -> str:
    """One line for people, at most `width` characters: numbers to six digits, objects as `Type(field=...)`."""
    text = _text(value)
    if len(text) <= width:
        return text
    structure = structure_of(value)
    if structure:
        return f"{structure[0]}(...)"
    if isinstance(value, list):
        return f"[{len(value)} items]"
    if isinstance(value, dict):
        return f"{{{len(value)} items}}"
    return text[: width - 3] + "..."


def _text(value: Plain) -> str:
    structure = structure_of(value)
    if structure:
        return f"{structure[0]}({', '.join(f'{name}={_text(part)}' for name, part in structure[1].items())})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{repr(key)[1:-1]}: {_text(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str) and not (value.startswith("<") and value.endswith(">")):
        return repr(value)
    return str(value)
