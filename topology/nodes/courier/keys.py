"""One key for one call, whoever made it."""

from __future__ import annotations

import pickle
import sys
from typing import Any

__all__ = ["canonical_key"]


def canonical_key(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Bytes that are equal exactly when method and arguments are.

    The order of keyword arguments and of dict entries does not count; types do: 1, 1.0 and True are three keys. Two
    clients may pickle equal arguments to different bytes (what is shared is pickled once), which is why pickles are no
    keys. Objects of other types than the usual ones count as equal when their pickles are.
    """
    parts: list[bytes] = [_text(name)]
    _write(parts, args)
    _write(parts, kwargs)
    return b"".join(parts)


def _text(value: str) -> bytes:
    return _sized(b"s", value.encode("utf-8", "surrogatepass"))


def _sized(tag: bytes, content: bytes) -> bytes:
    return b"%s%d:%s" % (tag, len(content), content)


def _one(value: object) -> bytes:
    parts: list[bytes] = []
    _write(parts, value)
    return b"".join(parts)


def _write(parts: list[bytes], value: Any) -> None:
    kind = type(value)
    if kind is str:
        parts.append(_text(value))
    elif kind is bytes:
        parts.append(_sized(b"b", value))
    elif value is None or kind in {bool, int, float, complex}:
        parts.append(_sized(kind.__name__.encode(), repr(value).encode()))
    elif kind in {list, tuple}:
        parts.append(b"%s%d[" % (kind.__name__.encode(), len(value)))
        for element in value:
            _write(parts, element)
    elif kind in {set, frozenset}:
        parts.append(b"%s%d{" % (kind.__name__.encode(), len(value)))
        parts.extend(sorted(_one(element) for element in value))
    elif kind is dict:
        parts.append(b"dict%d{" % len(value))
        for key, element in sorted((_one(key), _one(element)) for key, element in value.items()):
            parts += (key, element)
    elif _is_plain_array(value):
        parts.append(_sized(b"array", repr((value.dtype.str, value.dtype.descr, value.shape)).encode()))
        parts.append(_sized(b"b", value.tobytes()))
    else:
        parts.append(_sized(b"pickle", pickle.dumps(value, 5)))


def _is_plain_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray and not bool(value.dtype.hasobject)
