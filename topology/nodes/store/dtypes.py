"""Which dtypes are kept, and their names in a frame: those whose memory is the value."""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np

from topology.errors import StoreDataError

__all__ = ["dtype_of", "text_of"]

_NUMPY = re.compile(r"[<>|](?:[biufc]\d{1,2}|[SU]\d{1,9}|[mM]8(?:\[\d{0,9}[a-zA-Zμ]{1,2}\])?)")
_EXTENSION = re.compile(r"[a-z][a-z0-9_]{2,31}")  # bfloat16, float8_e4m3fn, ...: of the package ml_dtypes


def text_of(dtype: np.dtype[Any], name: str) -> str:
    """The dtype of array `name` as text.

    Raises:
        TypeError: it is not kept.
    """
    text = _text_of(dtype)
    if text is None:
        raise TypeError(
            f"array {name!r} has dtype {dtype}, which is not kept: numbers, dates, text of fixed length and the types "
            "of ml_dtypes are. Objects would have to be pickled; give each field of a record as an array of its own"
        )
    return text


@functools.lru_cache(maxsize=256)
def _text_of(dtype: np.dtype[Any]) -> str | None:
    if dtype.kind != "V" and _NUMPY.fullmatch(dtype.str):
        return dtype.str
    if dtype.kind == "V" and dtype.fields is None and _is_extension(dtype):
        return dtype.name
    return None


@functools.lru_cache(maxsize=256)
def dtype_of(text: str) -> np.dtype[Any]:
    """The dtype that `text_of` has named.

    Raises:
        StoreDataError: it is none of those.
    """
    try:
        if _NUMPY.fullmatch(text):
            return np.dtype(text)
        if _EXTENSION.fullmatch(text):
            import ml_dtypes

            dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, text))
            return dtype
    except (TypeError, ValueError, AttributeError, ImportError):
        pass  # said below
    raise StoreDataError(f"an array has the dtype {text!r:.50}, which is not one of those kept, or needs ml_dtypes")


def _is_extension(dtype: np.dtype[Any]) -> bool:
    try:
        return dtype_of(dtype.name) == dtype
    except StoreDataError:
        return False
