"""Weights with their running sums, for drawing in proportion to them.

A 16-ary tree of sums, every level one flat array, so that an update or a draw of a whole batch is a few numpy
operations a level. Levels stop at a few thousand sums: the top is searched through its cumulative sum, which is kept
until a weight changes. Up to 65,536 weights there is one level of sums below the top, up to a million there are two.

Sums are always formed anew from their parts, never adjusted by differences: rounding errors do not add up over time.
"""

from __future__ import annotations

from typing import final

import numpy as np
import numpy.typing as npt

__all__ = ["SumTree"]

_FANOUT = 16
_TOP = 4096


def _padded(size: int) -> int:
    return -(-size // _FANOUT) * _FANOUT


@final
class SumTree:
    """Non-negative weights by index, drawn with probability proportional to them. Not thread-safe.

    Example:
        >>> tree = SumTree()
        >>> tree.set(np.array([0, 2]), np.array([1.0, 3.0]))
        >>> tree.total
        4.0
        >>> tree.find(np.array([0.0, 0.3, 0.999])).tolist()
        [0, 2, 2]
    """

    __slots__ = ("_cumulative", "_levels", "_stale")

    def __init__(self, capacity: int = _FANOUT) -> None:
        self._levels: list[npt.NDArray[np.float64]] = []
        self._cumulative: npt.NDArray[np.float64] = np.zeros(0)
        self._stale = True
        self._build(np.zeros(_padded(max(capacity, 1))))

    @property
    def capacity(self) -> int:
        """Number of weights there is room for; `set` makes more room."""
        return int(self._levels[0].size)

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self._prefix_sums()[-1])

    def get(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Weights at `indices`, shape [n]."""
        return self._levels[0].take(indices)

    def set(self, indices: npt.NDArray[np.int64], weights: npt.NDArray[np.float64] | float) -> None:
        """Sets the weights at `indices` [n]; of an index given twice the last weight holds."""
        if indices.size == 0:
            return
        largest = int(indices.max())
        if largest >= self.capacity:
            self._grow(largest + 1)
        self._levels[0][indices] = weights
        for below, above in zip(self._levels, self._levels[1:], strict=False):
            parts = below.reshape(-1, _FANOUT)
            if indices.size >= len(parts):  # most of them: one for each index would be some of them many times
                above[: len(parts)] = parts.sum(1)
                indices = np.arange(len(parts))
            else:
                indices = indices // _FANOUT
                above[indices] = parts.take(indices, 0).sum(1)
        self._stale = True

    def clear(self) -> None:
        """Sets every weight to zero."""
        for level in self._levels:
            level.fill(0.0)
        self._stale = True

    def find(self, fractions: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Indices at the given fractions, in [0, 1), of the total weight: uniform fractions give a weighted draw.

        Never gives an index of weight zero. The total must not be zero.
        """
        top = self._prefix_sums()
        rest = fractions * top[-1]
        node: npt.NDArray[np.int64] = np.searchsorted(top, rest, side="right")
        if node[node.argmax()] == top.size:  # rounding reached the total itself
            node = np.minimum(node, np.searchsorted(top, top[-1]))
        rest = rest - np.where(node > 0, top[node - 1], 0.0)
        for level in self._levels[-2:0:-1]:
            weights = level.reshape(-1, _FANOUT).take(node, 0)
            sums, child = _choose(weights, rest)
            # The sum before a child is the sum up to it less its own weight; taking the column before it avoids that
            # rounding.
            rest = rest - np.where(child > 0, sums[np.arange(child.size), child - 1], 0.0)
            node = node * _FANOUT + child
        if len(self._levels) > 1:
            node = node * _FANOUT + _choose(self._levels[0].reshape(-1, _FANOUT).take(node, 0), rest)[1]
        return node

    def _prefix_sums(self) -> npt.NDArray[np.float64]:
        if self._stale:
            self._cumulative = self._levels[-1].cumsum()
            self._stale = False
        return self._cumulative

    def _grow(self, capacity: int) -> None:
        leaves = np.zeros(_padded(max(capacity, 2 * self.capacity)))
        leaves[: self.capacity] = self._levels[0]
        self._build(leaves)

    def _build(self, leaves: npt.NDArray[np.float64]) -> None:
        self._levels = [leaves]
        while self._levels[-1].size > _TOP:
            sums = self._levels[-1].reshape(-1, _FANOUT).sum(1)
            level = np.zeros(_padded(sums.size))
            level[: sums.size] = sums
            self._levels.append(level)
        self._stale = True


def _choose(
    weights: npt.NDArray[np.float64], rest: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """One step down: the running sums of the children [n, 16], and the child of each parent in which `rest` falls."""
    sums = weights.cumsum(1)
    child = (sums > rest[:, None]).argmax(1)
    beyond = sums[:, -1] <= rest  # the parent's sum was rounded up above the sum of its children
    if beyond.any():
        child = np.where(beyond, _FANOUT - 1 - (weights[:, ::-1] > 0).argmax(1), child)
    return sums, child
