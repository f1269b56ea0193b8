"""Priorities that a structured writer computes from the steps of an item."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, final

import numpy as np
import numpy.typing as npt

from topology.nodes.replay.structure import flatten, unflatten

__all__ = ["TDError", "td_error"]


@final
@dataclasses.dataclass(frozen=True)
class TDError:
    """Priority of a sequence by its TD errors (Kapturowski et al., 2019, "R2D2", section 2.3).

    With their absolute values d [T]: max_priority_weight * max(d) + (1 - max_priority_weight) * mean(d).

    Attributes:
        max_priority_weight: in [0, 1]; 0.9 in the paper.
        column: the leaf of the steps that holds TD errors, a number each.

    Raises:
        ValueError: the weight is not in [0, 1].
    """

    max_priority_weight: float
    column: int

    def __post_init__(self) -> None:
        if not 0 <= self.max_priority_weight <= 1:
            raise ValueError(f"max_priority_weight must be in [0, 1], got {self.max_priority_weight}")

    def of(self, errors: npt.NDArray[Any]) -> float:
        """The priority of an item with these TD errors, [T]."""
        sizes = np.abs(errors.astype(np.float64))
        return float(self.max_priority_weight * sizes.max() + (1 - self.max_priority_weight) * sizes.mean())


def td_error(max_priority_weight: float, step_structure: Any, get_field_from_step_fn: Callable[[Any], Any]) -> TDError:
    """A priority by the TD errors that the steps carry, over the steps that an item spans.

    Args:
        max_priority_weight: see `TDError`.
        step_structure: structure of the steps.
        get_field_from_step_fn: from a step to its TD error.

    Raises:
        ValueError: the weight is not in [0, 1], or the function does not give one leaf of the step.
    """
    leaves, shape = flatten(step_structure)
    column = get_field_from_step_fn(unflatten(shape, range(len(leaves))))
    if not isinstance(column, int):
        raise ValueError(f"get_field_from_step_fn must give one leaf of the step, got {column!r}")  # noqa: TRY004
    return TDError(max_priority_weight, column)
