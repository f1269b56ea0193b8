"""Mean and variance of numbers that come in batches, from many places, in any order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self, final

import numpy as np
import numpy.typing as npt

from topology.nodes.store.codec import Array

__all__ = ["Moments"]

_FIELDS = ("count", "mean", "m2")


@final
@dataclass(frozen=True, eq=False)
class Moments:
    """A value: how many numbers there were, their mean, and the sum of squares about it.

    Two of them merge into that of all numbers together (Chan, Golub and LeVeque, 1979), without loss but for the last
    bits: whether a number came in this batch or in another, here or elsewhere, makes no difference.

    Attributes:
        count: of numbers, for each place of the shape the same.
        mean: [...], float64.
        m2: [...], float64: sum of squares of the differences from the mean.

    Example:
        >>> merged = Moments.of([[1.0], [2.0]]).merge(Moments.of([[6.0]]))
        >>> merged.count, merged.mean.tolist(), merged.variance.round(3).tolist()
        (3, [3.0], [4.667])
    """

    count: int
    mean: npt.NDArray[np.float64]
    m2: npt.NDArray[np.float64]

    @classmethod
    def empty(cls, shape: tuple[int, ...] = ()) -> Self:
        """Of no numbers."""
        return cls(0, np.zeros(shape), np.zeros(shape))

    @classmethod
    def of(cls, batch: npt.ArrayLike) -> Self:
        """Of a batch [N, ...].

        Raises:
            ValueError: no batch, or there are numbers in it that are not finite: they would stay for ever.
        """
        numbers = np.asarray(batch, np.float64)
        if numbers.ndim == 0:
            raise ValueError(f"a batch has a first axis, [N, ...]; got the single number {numbers}")
        if not len(numbers):
            return cls.empty(numbers.shape[1:])
        if not np.isfinite(numbers).all():
            raise ValueError("a batch has numbers that are not finite; its mean, and all that follow, would not be")
        mean = numbers.mean(0)
        return cls(len(numbers), mean, np.square(numbers - mean).sum(0))

    def merge(self, other: Moments) -> Moments:
        """Of the numbers of both.

        Raises:
            ValueError: they are of other shapes.
        """
        if self.mean.shape != other.mean.shape:
            raise ValueError(f"moments of shape {self.mean.shape} and {other.mean.shape} are of different things")
        count = self.count + other.count
        if not count:
            return self
        share = other.count / count
        difference = other.mean - self.mean
        return Moments(
            count,
            self.mean + difference * share,
            self.m2 + other.m2 + np.square(difference) * (self.count * share),
        )

    @property
    def variance(self) -> npt.NDArray[np.float64]:
        """[...]; of the numbers that there were. 1 while there are fewer than two."""
        return self.m2 / self.count if self.count > 1 else np.ones_like(self.m2)

    def normalise(
        self, values: npt.ArrayLike, *, clip: float | None = None, epsilon: float = 1e-8
    ) -> npt.NDArray[np.float32]:
        """`values`, [...] or [N, ...], less the mean, over the deviation.

        Args:
            values: what to normalise.
            clip: the result is at least -clip and at most clip.
            epsilon: added to the variance, so that what never changes does not become large.
        """
        mean = self.mean if self.count > 1 else 0.0
        return _clipped((np.asarray(values, np.float64) - mean) / np.sqrt(self.variance + epsilon), clip)

    def scale(
        self, values: npt.ArrayLike, *, clip: float | None = None, epsilon: float = 1e-8
    ) -> npt.NDArray[np.float32]:
        """As `normalise`, but the mean stays: signs do not change."""
        return _clipped(np.asarray(values, np.float64) / np.sqrt(self.variance + epsilon), clip)

    def to_arrays(self, prefix: str = "") -> dict[str, Array]:
        """As arrays by name, to be saved: `{prefix}count`, `{prefix}mean`, `{prefix}m2`."""
        return {f"{prefix}{field}": np.asarray(getattr(self, field)) for field in _FIELDS}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], prefix: str = "") -> Self:
        """Back again; other arrays do not matter.

        Raises:
            ValueError: they are not there, or do not belong together.
        """
        if missing := [prefix + field for field in _FIELDS if prefix + field not in arrays]:
            raise ValueError(f"moments need the arrays {missing}; there are {sorted(arrays)}")
        count, mean, m2 = (np.asarray(arrays[prefix + field]) for field in _FIELDS)
        if count.shape != () or mean.shape != m2.shape or count < 0:
            raise ValueError(f"{prefix}count, mean and m2 of shapes {count.shape}, {mean.shape}, {m2.shape} are none")
        return cls(int(count), mean.astype(np.float64), m2.astype(np.float64))


def _clipped(values: npt.NDArray[np.float64], clip: float | None) -> npt.NDArray[np.float32]:
    bounded = values if clip is None else np.clip(values, -clip, clip)
    return bounded.astype(np.float32)
