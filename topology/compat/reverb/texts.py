"""Dtypes, shapes and signatures as Reverb writes them in its messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from topology.nodes.replay.specs import Spec

__all__ = ["dtype_text", "shape_text", "signature_text"]

_NAMES = {"float16": "half", "float32": "float", "float64": "double", "object": "string"}


def dtype_text(dtype: Any) -> str:
    """The dtype's name in TensorFlow's C++ code, e.g. "double"."""
    name: str = np.dtype(dtype).name
    return _NAMES.get(name, name)


def shape_text(shape: Sequence[int | None]) -> str:
    """A shape, e.g. "[?,3]"."""
    return f"[{','.join('?' if size is None else str(size) for size in shape)}]"


def signature_text(specs: Iterable[Spec], unnamed: str = "?") -> str:
    """Specs one after the other, with their names."""
    return ", ".join(
        f"{i}: Tensor<name: '{spec.name or unnamed}', dtype: {dtype_text(spec.dtype)}, shape: {shape_text(spec.shape)}>"
        for i, spec in enumerate(specs)
    )
