"""The latest rows of experience, in columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ring"]


@final
class Ring:
    """Keeps the latest rows; draws from them with equal chances. For one thread.

    Args:
        size: rows kept.

    Example:
        >>> ring = Ring(3)
        >>> ring.add({"x": np.arange(2)})
        >>> ring.add({"x": np.arange(2, 4)})
        >>> ring.columns()["x"]
        array([1, 2, 3])
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"a ring keeps at least 1 row, got size={size}")
        self._size = size
        self._columns: dict[str, NDArray[Any]] = {}
        self._next = self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Adds rows, as copies; the oldest leave.

        Raises:
            ValueError: other columns than before, or columns of different lengths.
        """
        lengths = {len(column) for column in columns.values()}
        if len(lengths) != 1 or (self._columns and self._columns.keys() != columns.keys()):
            shapes = {name: column.shape for name, column in columns.items()}
            raise ValueError(f"rows of {sorted(self._columns) or 'columns of one length'} were expected, got {shapes}")
        if not self._columns:
            self._columns = {
                name: np.zeros((self._size, *column.shape[1:]), column.dtype) for name, column in columns.items()
            }
        (length,) = lengths
        rows = min(length, self._size)
        at = (self._next + np.arange(length - rows, length)) % self._size
        for name, column in columns.items():
            self._columns[name][at] = column[length - rows :]
        self._next = (self._next + length) % self._size
        self._count = min(self._size, self._count + rows)

    def draw(self, rows: int, random: np.random.Generator) -> dict[str, NDArray[Any]]:
        """So many rows, drawn with replacement.

        Raises:
            IndexError: there are none.
        """
        if not self._count:
            raise IndexError("nothing can be drawn from a ring without rows")
        at = random.integers(self._count, size=rows)
        return {name: column[at] for name, column in self._columns.items()}

    def columns(self) -> dict[str, NDArray[Any]]:
        """All rows, the oldest first, as copies."""
        start = self._next if self._count == self._size else 0
        at = (start + np.arange(self._count)) % self._size
        return {name: column[at] for name, column in self._columns.items()}
