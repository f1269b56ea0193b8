"""Settings of a table, checked."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from topology.nodes.replay.checks import check_count
from topology.nodes.replay.rate_limiters import RateLimiter
from topology.nodes.replay.selectors import Selector

_MOST_ITEMS = (1 << 31) - 1  # slots are numbered in 31 bits

__all__ = ["TableOptions", "check_column_settings", "check_priorities"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Settings of a table, as the arguments of `Table`.

    Raises:
        ValueError: they make no sense.
    """

    name: str
    sampler: Selector
    remover: Selector
    max_size: int
    rate_limiter: RateLimiter
    max_times_sampled: int
    signature: Any
    seed: int | None

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise ValueError(f"a table needs a name, got {self.name!r}")
        check_count(f"table {self.name!r}: max_size", self.max_size, most=_MOST_ITEMS)
        if check_count(f"table {self.name!r}: max_times_sampled", self.max_times_sampled, least=-1) < 0:
            raise ValueError(
                f"table {self.name!r}: max_times_sampled must be at least 1, or 0 for no limit, "
                f"got {self.max_times_sampled}"
            )
        if self.seed is not None:
            check_count(f"table {self.name!r}: seed", self.seed, least=0)
        for role, selector in (("sampler", self.sampler), ("remover", self.remover)):
            if not isinstance(selector, Selector):
                raise ValueError(  # noqa: TRY004  (as for any other bad setting)
                    f"table {self.name!r}: {role} must be a selector, e.g. Fifo(), got {selector!r}"
                )
        if not isinstance(self.rate_limiter, RateLimiter):
            raise ValueError(  # noqa: TRY004  (as for any other bad setting)
                f"table {self.name!r}: rate_limiter must be one, e.g. MinSize(1), got {self.rate_limiter!r}"
            )
        if self.rate_limiter.min_size_to_sample > self.max_size:
            raise ValueError(
                f"table {self.name!r}: min_size_to_sample ({self.rate_limiter.min_size_to_sample}) is above max_size "
                f"({self.max_size}), so that nothing could ever be sampled"
            )


def check_priorities(table: str, priorities: npt.NDArray[np.float64]) -> None:
    """Refuses priorities that are negative or not finite.

    Raises:
        ValueError: names the table and the first such priority.
    """
    wrong = ~(np.isfinite(priorities) & (priorities >= 0))
    if wrong.any():
        first = int(wrong.argmax())
        raise ValueError(
            f"table {table!r}: priorities must be finite and not negative, got {priorities[first]} at position {first}"
        )


def check_column_settings(column: str, num_keep_alive_refs: int, max_chunk_length: int | None) -> None:
    """Refuses settings of a writer's column that make no sense.

    Raises:
        ValueError: names the column and the setting.
    """
    if num_keep_alive_refs < 1:
        raise ValueError(f"column {column}: num_keep_alive_refs ({num_keep_alive_refs}) must be >= 1")
    if max_chunk_length is not None and not 1 <= max_chunk_length <= num_keep_alive_refs:
        raise ValueError(
            f"column {column}: max_chunk_length ({max_chunk_length}) must be between 1 and num_keep_alive_refs "
            f"({num_keep_alive_refs})"
        )
