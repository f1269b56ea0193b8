"""Experience: what a worker sends and a trainer gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topology.nodes.store.codec import Array, Plain
from topology.nodes.store.dtypes import text_of

__all__ = ["Experience", "check_columns", "common_length"]


class Experience(NamedTuple):
    """Consecutive steps of one worker, or a whole episode.

    Attributes:
        columns: by name, arrays [T, ...] of the same T >= 1. They may be read-only: copy what is to be changed.
        meta: what the worker says of them: policy, worker, round, episode, ...
        whole_episode: whether it was stored as an episode.
        id: given by the backend. Equal ids are the same experience, delivered again.
    """

    columns: Mapping[str, Array]
    meta: Mapping[str, Plain]
    whole_episode: bool
    id: str

    @property
    def steps(self) -> int:
        """T."""
        return len(next(iter(self.columns.values())))


def check_columns(columns: Mapping[str, npt.ArrayLike]) -> tuple[dict[str, Array], int]:
    """The columns as arrays, and their common T.

    Raises:
        TypeError: a column has a dtype that would have to be pickled.
        ValueError: there is none, one has no leading axis, or they differ in length, or have length 0.
    """
    arrays = {name: np.asarray(column) for name, column in columns.items()}
    for name, array in arrays.items():
        if not isinstance(name, str) or not name:
            raise ValueError(f"names of columns are text, got {name!r}")
        text_of(array.dtype, name)
    return arrays, common_length(arrays)


def common_length(arrays: Mapping[str, Array]) -> int:
    """T of arrays [T, ...].

    Raises:
        ValueError: there is none, one has no leading axis, or they differ in length, or have length 0.
    """
    lengths = {array.shape[:1] for array in arrays.values()}
    if len(lengths) != 1 or lengths & {(), (0,)}:
        found = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items()) or "none"
        raise ValueError(f"experience needs columns [T, ...] of one T above 0, got {found}")
    return int(lengths.pop()[0])
