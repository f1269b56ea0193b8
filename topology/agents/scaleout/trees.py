"""Trees of arrays as flat, named arrays, which is what data stores keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from topology.errors import ProgramError

__all__ = ["flatten", "named_leaves", "part", "unflatten"]

Arrays = Mapping[str, NDArray[Any]]


def flatten(tree: Any, prefix: str) -> dict[str, NDArray[Any]]:
    """The leaves by `prefix/path`, e.g. `params/params/Dense_0/bias`, as numpy arrays."""
    return {f"{prefix}/{path}": np.asarray(jax.device_get(leaf)) for path, leaf in named_leaves(tree)}


def unflatten(like: Any, arrays: Arrays, prefix: str) -> Any:
    """The tree of `flatten` again, with the structure, shapes and types of `like`.

    Raises:
        ProgramError: arrays are missing, too many, or of other shapes: they are those of another network.
    """
    found = part(arrays, prefix)
    wanted = dict(named_leaves(like))
    faults = tuple(
        f"{prefix}/{path}: {_shape(found.get(path))} there, {_shape(wanted.get(path))} here"
        for path in sorted({*found, *wanted})
        if _shape(found.get(path)) != _shape(wanted.get(path))
    )
    if faults:
        raise ProgramError(
            "The policy in the data store does not fit this program:\n"
            + "".join(f"  - {fault}\n" for fault in faults)
            + "Go on with the settings it was made with (environment, network), or give the run another data_store.",
            faults=faults,
        )
    leaves = [found[path].astype(np.asarray(leaf).dtype, copy=False) for path, leaf in wanted.items()]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def part(arrays: Arrays, prefix: str) -> dict[str, NDArray[Any]]:
    """Those whose names begin with `prefix/`, without it."""
    start = f"{prefix}/"
    return {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """The leaves, in order, with their paths."""
    return [
        (jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def _shape(leaf: Any) -> Any:
    return "nothing" if leaf is None else np.shape(leaf)
