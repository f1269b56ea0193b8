"""Numbers that are not finite, and where they come from."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

__all__ = ["what_is_not_finite"]


def what_is_not_finite(data: Any) -> str | None:
    """What to do about the numbers of a batch that are not finite; None where all are."""
    items = {
        jax.tree_util.keystr(path, simple=True, separator="."): int(np.sum(~_finite_rows(leaf)))
        for path, leaf in jax.tree_util.tree_leaves_with_path(data)
        if np.issubdtype(np.asarray(leaf).dtype, np.floating)
    }
    found = ", ".join(f"{name} of {count}" for name, count in items.items() if count)
    if not found:
        return None
    return f"items of the batch have numbers that are not finite ({found}): see to it in the environment"


def _finite_rows(leaf: Any) -> NDArray[np.bool_]:
    array = np.asarray(leaf)
    return np.asarray(np.isfinite(array.reshape(len(array), -1)).all(axis=1))
