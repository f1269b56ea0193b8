"""Conditions of structured writers: comparisons of a number with what it is after a step."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, final

import numpy as np

from topology.nodes.replay.structure import flatten, unflatten

__all__ = ["Condition", "ConditionBuilder", "Situation"]

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
}


class Situation(NamedTuple):
    """What conditions look at: the newest step.

    Attributes:
        step_index: its number in the episode, from 0.
        steps_since_applied: steps since the config last made an item, this one included.
        ends_episode: whether the episode ends with it.
        values: its leaves, by number, as far as they are there.
    """

    step_index: int
    steps_since_applied: int
    ends_episode: bool
    values: Mapping[int, Any]


@final
@dataclasses.dataclass(frozen=True)
class Condition:
    """A comparison that holds or not after a step. Made from `step_index()` and the others with ==, !=, <, <=, >, >=.

    Attributes:
        subject: what is compared.
        comparison: with which operator.
        value: with which number.
        modulus: if any, the subject is first divided by it, and the rest compared.
        column: the leaf of the step, when that is what is compared.
    """

    subject: str
    comparison: str
    value: float
    modulus: int | None = None
    column: int | None = None

    def holds(self, situation: Situation) -> bool:
        """Whether it holds. A leaf that the step does not have satisfies nothing."""
        if self.column is None:
            number: Any = getattr(situation, self.subject)
        else:
            if self.column not in situation.values:
                return False
            array = np.asarray(situation.values[self.column])
            if array.size != 1 or array.dtype.kind not in "biuf":
                raise ValueError(
                    f"a condition on data needs a single number, leaf {self.column} of the step is "
                    f"{array.dtype}{list(array.shape)}"
                )
            number = array.item()
        if self.modulus is not None:
            number %= self.modulus
        return _COMPARE[self.comparison](number, self.value)

    @staticmethod
    def step_index() -> ConditionBuilder:
        """Number of the newest step in its episode, from 0."""
        return ConditionBuilder("step_index")

    @staticmethod
    def steps_since_applied() -> ConditionBuilder:
        """How many steps ago the config last made an item, or how many steps there were."""
        return ConditionBuilder("steps_since_applied")

    @staticmethod
    def is_end_episode() -> Condition:
        """Holds only when `end_episode` is called."""
        return Condition("ends_episode", "==", True)

    @staticmethod
    def data(step_structure: Any) -> Any:
        """Values of the newest step: a structure like it, whose leaves are compared. They must be single numbers."""
        leaves, shape = flatten(step_structure)
        return unflatten(shape, [ConditionBuilder("data", column=i) for i in range(len(leaves))])


@final
class ConditionBuilder:
    """What stands on the left of a comparison; comparing it gives a `Condition`."""

    __slots__ = ("_column", "_modulus", "_subject")
    __hash__ = None  # type: ignore[assignment]  # (== makes a condition)

    def __init__(self, subject: str, *, column: int | None = None, modulus: int | None = None) -> None:
        self._subject = subject
        self._column = column
        self._modulus = modulus

    def __mod__(self, modulus: int) -> ConditionBuilder:
        if modulus <= 0:
            raise ValueError(f"the modulus of a condition must be above 0, got {modulus}")
        return ConditionBuilder(self._subject, column=self._column, modulus=modulus)

    def _compare(self, comparison: str, value: float) -> Condition:
        return Condition(self._subject, comparison, value, self._modulus, self._column)

    def __eq__(self, value: object) -> Condition:  # type: ignore[override]
        return self._compare("==", value)  # type: ignore[arg-type]

    def __ne__(self, value: object) -> Condition:  # type: ignore[override]
        return self._compare("!=", value)  # type: ignore[arg-type]

    def __gt__(self, value: float) -> Condition:
        return self._compare(">", value)

    def __ge__(self, value: float) -> Condition:
        return self._compare(">=", value)

    def __lt__(self, value: float) -> Condition:
        return self._compare("<", value)

    def __le__(self, value: float) -> Condition:
        return self._compare("<=", value)
