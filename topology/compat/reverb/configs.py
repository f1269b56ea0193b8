"""Configs of structured writers with the fields that they have as protocol buffers of the original."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, final

from topology.nodes.replay.conditions import Condition as OurCondition
from topology.nodes.replay.conditions import ConditionBuilder
from topology.nodes.replay.patterns import Config as OurConfig
from topology.nodes.replay.patterns import PatternNode as OurNode
from topology.nodes.replay.structure import Shape, flatten, unflatten

__all__ = ["Condition", "Config", "PatternNode", "PatternStructure", "has_field", "node_has_field", "pattern_structure"]


@final
class PatternStructure:
    """The structure of a pattern, without its leaves. Two of them are equal when the structures are.

    Args:
        shape: of the pattern.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PatternStructure) and self.shape == other.shape

    def __hash__(self) -> int:
        return hash(self.shape)

    def __repr__(self) -> str:
        return f"<pattern_structure {unflatten(self.shape, [None] * _leaf_count(self.shape))}>"


def _leaf_count(shape: Shape) -> int:
    return 1 if shape is None else sum(map(_leaf_count, shape[2]))


class _OursAre(type):
    """Objects of ours count as instances.

    Attributes:
        ours: their class.
    """

    ours: type

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.ours)


class PatternNode(metaclass=_OursAre):
    """Cells of one column: makes a node of patterns of the fields of the original's.

    Args:
        flat_source_index: which leaf of the step.
        start: first cell of a slice; None for a single cell.
        stop: end of a slice, or the single cell.
        step: of a slice.
    """

    ours = OurNode

    def __new__(
        cls, flat_source_index: int = 0, start: int | None = None, stop: int | None = None, step: int | None = None
    ) -> Any:
        return OurNode(flat_source_index, start, stop or 0, step or 1)


class _ModuloEq(NamedTuple):
    """The rest of the division by `mod` is `eq`."""

    mod: int
    eq: int = 0


class Condition(metaclass=_OursAre):
    """Makes a condition of the fields of the original's: what is looked at, one comparison, and its inverse.

    Args:
        step_index: the number of the step in its episode is looked at.
        steps_since_applied: how many steps ago the config last made an item.
        is_end_episode: whether the episode ends.
        flat_source_index: this leaf of the step.
        eq: it equals this.
        ge: it is at least this.
        mod_eq: the rest of its division, as `Condition.ModuloEq(mod, eq)`.
        inverse: whether the contrary is meant.

    Raises:
        ValueError: not exactly one thing is looked at, or there is more than one comparison.
    """

    ours = OurCondition
    ModuloEq = _ModuloEq

    def __new__(
        cls,
        step_index: bool = False,
        steps_since_applied: bool = False,
        is_end_episode: bool = False,
        flat_source_index: int | None = None,
        eq: int | None = None,
        ge: int | None = None,
        mod_eq: _ModuloEq | None = None,
        inverse: bool = False,
    ) -> Any:
        subjects = {
            "step_index": step_index,
            "steps_since_applied": steps_since_applied,
            "ends_episode": is_end_episode,
            "data": flat_source_index is not None,
        }
        chosen = [name for name, is_meant in subjects.items() if is_meant]
        if len(chosen) != 1 or sum(each is not None for each in (eq, ge, mod_eq)) > 1:
            raise ValueError(
                f"a condition looks at one thing and makes one comparison, got {', '.join(chosen) or 'nothing'} with "
                f"eq={eq}, ge={ge}, mod_eq={mod_eq}"
            )
        left = ConditionBuilder(chosen[0], column=flat_source_index, modulus=mod_eq and mod_eq.mod)
        if ge is not None:
            return left < ge if inverse else left >= ge
        value = mod_eq.eq if mod_eq else eq or 0
        return left != value if inverse else left == value


class Config(metaclass=_OursAre):
    """Makes a config of the fields of the original's. Prefer `create_config`.

    Args:
        flat: the leaves of the pattern.
        pattern_structure: that of another config; None for a list of the leaves.
        table: name of the table.
        priority: of the items.
        conditions: all must hold.

    Raises:
        ValueError: a field makes no sense.
    """

    ours = OurConfig

    def __new__(
        cls,
        flat: Sequence[OurNode] = (),
        pattern_structure: PatternStructure | None = None,
        table: str = "",
        priority: float = 0.0,
        conditions: Sequence[OurCondition] = (),
    ) -> Any:
        pattern = list(flat) if pattern_structure is None else unflatten(pattern_structure.shape, list(flat))
        return OurConfig(pattern, table, tuple(conditions), priority)


def pattern_structure(config: OurConfig) -> PatternStructure:
    """The structure of the config's pattern."""
    return PatternStructure(flatten(config.pattern)[1])


def has_field(config: OurConfig, name: str) -> bool:
    """Whether the config's field with this name is set: "pattern_structure" always is."""
    if name != "pattern_structure":
        raise ValueError(f"the field of a config that may be unset is 'pattern_structure', not {name!r}")
    del config
    return True


def node_has_field(node: OurNode, name: str) -> bool:
    """Whether "start", "stop" or "step" of a node are set: all others than Python's own when there are none."""
    unset = {"start": None, "stop": None if node.start is None else 0, "step": 1}
    if name not in unset:
        raise ValueError(f"the fields of a node that may be unset are {', '.join(unset)}, not {name!r}")
    found: Any = getattr(node, name)
    return bool(found != unset[name])
