"""Reverb's TrajectoryColumn, which programs may also make themselves, of cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from topology.nodes.replay.history import TrajectoryColumn as OurColumn

__all__ = ["TrajectoryColumn"]


class _OursToo(type):
    """Columns of a writer's history count as instances."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, OurColumn) or super().__instancecheck__(instance)


class TrajectoryColumn(metaclass=_OursToo):
    """A column of cells, as indexing a writer's history gives them.

    Made of cells of a history it is a column of that writer, of which items can be created; made of anything else that
    has `shape`, `dtype` and `numpy()` it can only be looked at.

    Args:
        data_references: the cells.
        squeeze: whether it is a single cell without time axis.
        path: of the column in the steps.

    Raises:
        ValueError: a cell is None, or `squeeze` is given for another number of cells than one.
    """

    def __new__(
        cls, data_references: Sequence[Any], *, squeeze: bool = False, path: tuple[str | int | slice, ...] | None = None
    ) -> Any:
        cells = list(data_references)
        if any(cell is None for cell in cells):
            raise ValueError(
                f"TrajectoryColumns cannot contain any None data references: TrajectoryColumn at path {path} got "
                f"{cells}."
            )
        if squeeze and len(cells) != 1:
            raise ValueError(
                f"Columns must contain exactly one data reference when squeeze set, got {len(cells)}: {cells}"
            )
        if cells and all(isinstance(cell, OurColumn) for cell in cells):
            return OurColumn.of_cells(cells, squeeze=squeeze)
        column = super().__new__(cls)
        column._set_up(cells, squeeze, path)
        return column

    def _set_up(self, cells: list[Any], squeeze: bool, path: Any) -> None:
        self._cells = cells
        self.is_squeezed = squeeze
        self._path = path

    def __len__(self) -> int:
        return len(self._cells)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._cells)

    def __getitem__(self, index: int | slice) -> Any:
        path = (*(self._path or ()), index)
        if isinstance(index, slice):
            return TrajectoryColumn(self._cells[index], path=path)
        return TrajectoryColumn([self._cells[index]], squeeze=True, path=path)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of `numpy()`."""
        cell = tuple(self._cells[0].shape)
        return cell if self.is_squeezed else (len(self), *cell)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of `numpy()`."""
        dtype: np.dtype[Any] = np.dtype(self._cells[0].dtype)
        return dtype

    def numpy(self) -> npt.NDArray[Any]:
        """The cells: [n, *shape], or [*shape] of a single one."""
        if self.is_squeezed:
            return np.asarray(self._cells[0].numpy())
        return np.stack([np.asarray(cell.numpy()) for cell in self._cells])
