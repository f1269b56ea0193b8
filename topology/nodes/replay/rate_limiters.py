"""Rate limiters: how far samples and inserts of a table may run apart.

The model is Reverb's. With I inserts, S samples and D deletes so far, and the error E = I * samples_per_insert - S:

1. While the table holds fewer than `min_size_to_sample` items (I - D), every insert passes and every sample waits.
2. Otherwise a sample passes while E stays at least `min_diff` after it, and an insert while E stays at most `max_diff`
   after it.

A limiter here is a setting without state, so one object may serve several tables; `LimiterState` counts for one table.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import final

from topology.nodes.replay.checks import check_positive

__all__ = ["LimiterState", "MaxSteps", "MinSize", "Queue", "RateLimiter", "SampleToInsertRatio", "Stack"]

_UNBOUNDED = sys.float_info.max


class RateLimiter:
    """The general limiter; the subclasses are the usual ways to choose its four numbers.

    Attributes:
        max_steps: most steps in the table at a time; None for any number.

    Args:
        samples_per_insert: samples that one insert pays for; above 0.
        min_size_to_sample: items that must be in the table before the first sample; at least 1.
        min_diff: the error must not go below it through a sample.
        max_diff: the error must not go above it through an insert.

    Raises:
        ValueError: the numbers contradict one another.
    """

    max_steps: int | None = None

    def __init__(self, samples_per_insert: float, min_size_to_sample: int, min_diff: float, max_diff: float) -> None:
        _check_ratio(samples_per_insert)
        size = check_positive("min_size_to_sample", min_size_to_sample)
        if not min_diff <= max_diff:
            raise ValueError(f"min_diff ({min_diff}) must not be above max_diff ({max_diff})")
        self.samples_per_insert = float(samples_per_insert)
        self.min_size_to_sample = size
        self.min_diff = float(min_diff)
        self.max_diff = float(max_diff)

    def _numbers(self) -> tuple[float, int, float, float]:
        return self.samples_per_insert, self.min_size_to_sample, self.min_diff, self.max_diff

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RateLimiter):
            return False
        return self._numbers() == other._numbers() and self.max_steps == other.max_steps

    def __hash__(self) -> int:
        return hash((self._numbers(), self.max_steps))

    def __repr__(self) -> str:
        ratio, size, low, high = self._numbers()
        return (
            f"{type(self).__name__}(samples_per_insert={ratio}, min_size_to_sample={size}, "
            f"min_diff={low}, max_diff={high})"
        )


def _check_ratio(samples_per_insert: float) -> None:
    if not 0 < samples_per_insert < math.inf:
        raise ValueError(f"samples_per_insert must be above 0 and finite, got {samples_per_insert}")


@final
class MinSize(RateLimiter):
    """Samples wait until the table holds `min_size_to_sample` items; inserts never wait."""

    def __init__(self, min_size_to_sample: int) -> None:
        super().__init__(1.0, min_size_to_sample, -_UNBOUNDED, _UNBOUNDED)


@final
class MaxSteps(RateLimiter):
    """Inserts wait while the table would hold more than `max_steps` steps; samples wait for the first item.

    Only items that are removed make room, by whoever is done with them. The steps of an item are those of its longest
    leaf. One that is longer than `max_steps` is refused.
    """

    def __init__(self, max_steps: int) -> None:
        super().__init__(1.0, 1, -_UNBOUNDED, _UNBOUNDED)
        self.max_steps = check_positive("max_steps", max_steps)

    def __repr__(self) -> str:
        return f"MaxSteps({self.max_steps})"


@final
class SampleToInsertRatio(RateLimiter):
    """Keeps the number of samples an insert near `samples_per_insert`.

    Args:
        samples_per_insert: how often an item is sampled on average.
        min_size_to_sample: items in the table before the first sample.
        error_buffer: how far the error may be from `samples_per_insert * min_size_to_sample`, up or down; or the range
            (min_diff, max_diff) itself. It must leave room for one insert and for one sample.

    Raises:
        ValueError: the buffer is so narrow, or so high, that both sides could wait for ever.
    """

    def __init__(
        self, samples_per_insert: float, min_size_to_sample: int, error_buffer: float | tuple[float, float]
    ) -> None:
        _check_ratio(samples_per_insert)
        offset = samples_per_insert * min_size_to_sample
        if isinstance(error_buffer, int | float):
            low, high, span = offset - error_buffer, offset + error_buffer, 2 * error_buffer
        else:
            low, high = error_buffer
            span = high - low
        needed = 2 * max(1.0, samples_per_insert)
        if span < needed:
            raise ValueError(
                f"error_buffer spans {span}, from {low} to {high}; it must span at least "
                f"2 * max(1, samples_per_insert) = {needed}, or inserts and samples can block each other for ever"
            )
        if low > offset:
            raise ValueError(
                f"error_buffer begins at {low}, above samples_per_insert * min_size_to_sample = {offset}: samples "
                "would wait for ever once the table holds min_size_to_sample items"
            )
        super().__init__(samples_per_insert, min_size_to_sample, low, high)


@final
class Queue(RateLimiter):
    """Every item is sampled once and at most `size` wait. Made for `Table.queue`."""

    def __init__(self, size: int) -> None:
        super().__init__(1.0, 1, 0.0, float(size))


@final
class Stack(RateLimiter):
    """Every item is sampled once and at most `size` wait. Made for `Table.stack`."""

    def __init__(self, size: int) -> None:
        super().__init__(1.0, 1, 0.0, float(size))


@final
class LimiterState:
    """The counts of one table, and what its limiter makes of them. Not thread-safe; knows nothing of waiting."""

    __slots__ = ("deletes", "inserts", "limiter", "samples")

    def __init__(self, limiter: RateLimiter) -> None:
        self.limiter = limiter
        self.inserts = 0
        self.samples = 0
        self.deletes = 0

    @property
    def size(self) -> int:
        """Items in the table."""
        return self.inserts - self.deletes

    def reset(self) -> None:
        """Forgets every count."""
        self.inserts = self.samples = self.deletes = 0

    def can_insert(self, count: int) -> bool:
        """Whether `count` inserts could pass now."""
        if self.size + count <= self.limiter.min_size_to_sample:
            return True
        error = (self.inserts + count) * self.limiter.samples_per_insert - self.samples
        return error <= self.limiter.max_diff

    def can_sample(self, count: int) -> bool:
        """Whether `count` samples could pass now."""
        if self.size < self.limiter.min_size_to_sample:
            return False
        error = self.inserts * self.limiter.samples_per_insert - self.samples - count
        return error >= self.limiter.min_diff

    def insertable(self, wanted: int) -> int:
        """The most inserts, up to `wanted`, that could pass now one after the other."""
        if self.can_insert(wanted):
            return wanted
        limiter = self.limiter
        fit = math.floor((limiter.max_diff + self.samples) / limiter.samples_per_insert) - self.inserts
        fit = max(fit, limiter.min_size_to_sample - self.size)
        return _exact(fit, wanted, self.can_insert)

    def samplable(self, wanted: int) -> int:
        """The most samples, up to `wanted`, that could pass now one after the other."""
        if self.can_sample(wanted):
            return wanted
        if self.size < self.limiter.min_size_to_sample:
            return 0
        error = self.inserts * self.limiter.samples_per_insert - self.samples
        return _exact(math.floor(error - self.limiter.min_diff), wanted, self.can_sample)


def _exact(guess: int, wanted: int, allowed: Callable[[int], bool]) -> int:
    """The largest count up to `wanted` that is allowed, from a guess that rounding may have put off by one."""
    count = min(max(guess + 1, 0), wanted)
    while count > 0 and not allowed(count):
        count -= 1
    return count
