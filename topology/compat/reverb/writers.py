"""Reverb's writers: ours, with the texts of Reverb's errors."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, final

from topology.compat.reverb.texts import dtype_text, shape_text
from topology.errors import ReplayDeadlineExceeded
from topology.nodes.replay import StructuredWriter as OurStructuredWriter
from topology.nodes.replay import TrajectoryWriter as OurTrajectoryWriter
from topology.nodes.replay.cell_errors import CellMismatch, CellSetTwice
from topology.nodes.replay.structure import Path, flatten, paths

__all__ = ["StructuredWriter", "TrajectoryWriter"]

_T = TypeVar("_T")


@final
class TrajectoryWriter(OurTrajectoryWriter):
    """See `reverb.Client.trajectory_writer`."""

    clips_history: ClassVar[bool] = False
    is_always_checked: ClassVar[bool] = False

    def append(self, data: Any, *, partial_step: bool = False) -> None:
        try:
            super().append(data, partial_step=partial_step)
        except CellMismatch as error:
            raise CellMismatch(_mismatch(error, f"{error.path}"), error.path, error.known, error.found) from None
        except CellSetTwice as error:
            text = (
                f"Field {error.path} has already been set in the active step by previous (partial) append call and "
                f"thus must be omitted or set to None but got: {error.value}"
            )
            raise CellSetTwice(text, error.path, error.value) from None

    def flush(self, block_until_num_items: int = 0, timeout_ms: int | None = None) -> None:
        _in_time("Flush", timeout_ms, lambda: OurTrajectoryWriter.flush(self, block_until_num_items, timeout_ms))

    def end_episode(self, clear_buffers: bool = True, timeout_ms: int | None = None) -> None:
        _in_time("End episode", timeout_ms, lambda: OurTrajectoryWriter.end_episode(self, clear_buffers, timeout_ms))


@final
class StructuredWriter(OurStructuredWriter):
    """See `reverb.Client.structured_writer`."""

    def append(self, data: Any, *, partial_step: bool = False) -> None:
        leaves, shape = flatten(data)
        if self._num_leaves not in {None, len(leaves)}:
            raise ValueError(
                f"Flattened data has an unexpected length, got {len(leaves)} but wanted {self._num_leaves}."
            )
        try:
            super().append(data, partial_step=partial_step)
        except CellMismatch as error:
            raise ValueError(_mismatch(error, _place(error.path, paths(shape)))) from None


def _place(path: Path, all_paths: list[Path]) -> str:
    number = int(path[0])  # the leaves of a step are written as a tuple
    return f"{number} (path={all_paths[number]})"


def _mismatch(error: CellMismatch, column: str) -> str:
    found, known = error.found, error.known
    if found.dtype != known.dtype:
        return (
            f"Tensor of wrong dtype provided for column {column}. Got {dtype_text(found.dtype)} but expected "
            f"{dtype_text(known.dtype)}."
        )
    return (
        f"Tensor of incompatible shape provided for column {column}. Got {shape_text(found.shape)} which is "
        f"incompatible with {shape_text(known.shape)}."
    )


def _in_time(call: str, timeout_ms: int | None, function: Callable[[], _T]) -> _T:
    try:
        return function()
    except ReplayDeadlineExceeded as error:
        if timeout_ms is None:
            raise
        limit = datetime.timedelta(milliseconds=timeout_ms)
        raise ReplayDeadlineExceeded(f"{call} call did not complete within provided timeout of {limit}") from error
