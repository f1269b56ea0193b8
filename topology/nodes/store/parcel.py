"""What a memory backend is given to store, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, final

import numpy.typing as npt

from topology.nodes.store.codec import Array, Plain, check_meta
from topology.nodes.store.experience import check_columns

__all__ = ["Parcel", "make_parcel"]


@final
class Parcel(NamedTuple):
    """Experience on its way into a backend."""

    columns: dict[str, Array]
    meta: dict[str, Plain]
    whole_episode: bool
    steps: int


def make_parcel(
    columns: Mapping[str, npt.ArrayLike], meta: Mapping[str, Plain] | None, *, whole_episode: bool
) -> Parcel:
    """Checks what is to be stored.

    Raises:
        TypeError, ValueError: it is no experience.
    """
    arrays, steps = check_columns(columns)
    return Parcel(arrays, check_meta(meta), whole_episode, steps)
