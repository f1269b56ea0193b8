"""Signatures as programs see them: structures of `tf.TensorSpec` where TensorFlow is in use, of `Spec` elsewhere."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

from topology.nodes.replay import Spec, TableInfo
from topology.nodes.replay.structure import flatten, unflatten

__all__ = ["check_signature", "shown", "shown_info"]

_BOUNDED = "tensorflow.python.framework.tensor_spec"  # it has no public name


def check_signature(signature: Any) -> None:
    """Refuses leaves that are no specs.

    Raises:
        ValueError: in Reverb's words.
    """
    if signature is None:
        return
    for leaf in flatten(signature)[0]:
        try:
            Spec.of(leaf)
        except TypeError as error:
            raise ValueError(f"Unsupported signature spec: {leaf}") from error


def shown(signature: Any) -> Any:
    """A structure of `Spec` as the program expects it. TensorFlow is not imported for it."""
    tensorflow = sys.modules.get("tensorflow")
    if signature is None or not hasattr(tensorflow, "TensorSpec"):
        return signature
    leaves, shape = flatten(signature)
    return unflatten(shape, [_tensor_spec(tensorflow, leaf) for leaf in leaves])


def shown_info(info: TableInfo) -> TableInfo:
    """The info of a table with its signature as the program expects it."""
    return dataclasses.replace(info, signature=shown(info.signature))


def _tensor_spec(tensorflow: Any, spec: Any) -> Any:
    if isinstance(spec, tensorflow.TensorSpec):
        return spec
    dtype = tensorflow.string if spec.dtype == object else tensorflow.as_dtype(spec.dtype)
    if spec.bounds is not None and hasattr(sys.modules.get(_BOUNDED), "BoundedTensorSpec"):
        return sys.modules[_BOUNDED].BoundedTensorSpec(spec.shape, dtype, *spec.bounds, name=spec.name)
    return tensorflow.TensorSpec(spec.shape, dtype, spec.name)
