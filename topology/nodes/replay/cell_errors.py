"""Errors of single cells of a step, with what they are about."""

from __future__ import annotations

from typing import Any, final

from topology.nodes.replay.specs import Spec
from topology.nodes.replay.structure import Path

__all__ = ["CellMismatch", "CellSetTwice"]


@final
class CellMismatch(ValueError):
    """A value differs from earlier ones of its column.

    Attributes:
        path: of the column in the steps.
        known: what the column holds.
        found: the value.
    """

    def __init__(self, message: str, path: Path, known: Spec, found: Spec) -> None:
        super().__init__(message)
        self.path = path
        self.known = known
        self.found = found


@final
class CellSetTwice(ValueError):
    """A value was given for a cell that an earlier partial append of the step has set.

    Attributes:
        path: of the column in the steps.
        value: the value.
    """

    def __init__(self, message: str, path: Path, value: Any) -> None:
        super().__init__(message)
        self.path = path
        self.value = value
