"""Patterns: what the items of a structured writer are made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NewType, TypeAlias, final

from topology.nodes.replay.conditions import Condition
from topology.nodes.replay.priorities import TDError
from topology.nodes.replay.specs import Spec
from topology.nodes.replay.structure import flatten, paths, show_path, unflatten

__all__ = [
    "Config",
    "Pattern",
    "PatternNode",
    "ReferenceStep",
    "create_config",
    "create_reference_step",
    "infer_signature",
    "pattern_from_transform",
    "unpack_pattern",
]

Pattern: TypeAlias = Any
"""A structure of `PatternNode`."""

ReferenceStep = NewType("ReferenceStep", Any)  # type: ignore[valid-newtype]  # (a structure of any type)


@final
class PatternNode:
    """Cells of one column, counted backwards from the newest step.

    Attributes:
        flat_source_index: which leaf of the step.
        start: the first cell, below 0; None for a single cell without time axis.
        stop: the cell after the last, at most 0; of a single cell the cell itself.
        step: distance between cells, at least 1.

    Raises:
        ValueError: they make no sense.
    """

    __slots__ = ("flat_source_index", "start", "step", "stop")  # no dataclass: those are containers of leaves

    def __init__(self, flat_source_index: int, start: int | None, stop: int, step: int = 1) -> None:
        self.flat_source_index = flat_source_index
        self.start = start
        self.stop = stop
        self.step = step
        if self.start is None and self.stop >= 0:
            raise ValueError(f"a single cell is counted backwards from the newest step, e.g. [-1], got [{self.stop}]")
        if self.start is not None and not self.start < self.stop <= 0:
            raise ValueError(
                f"a slice of a pattern begins below 0 and ends after that, at most at the newest step, e.g. [-3:] or "
                f"[-3:-1], got [{self.start}:{self.stop or ''}]"
            )
        if self.step < 1:
            raise ValueError(f"the step of a slice must be at least 1, got {self.step}")

    def __repr__(self) -> str:
        index = f"{self.stop}" if self.start is None else f"{self.start}:{self.stop or ''}:{self.step}"
        return f"<leaf {self.flat_source_index}[{index}]>"

    @property
    def age(self) -> int:
        """How many steps it reaches back, the newest included."""
        return -(self.stop if self.start is None else self.start)

    @property
    def last(self) -> int:
        """The step after its last, counted backwards from the newest: 0 when that is included."""
        return self.stop + 1 if self.start is None else self.stop

    @property
    def length(self) -> int | None:
        """Length of its time axis; None when it has none."""
        return None if self.start is None else len(range(self.start, self.stop, self.step))

    @property
    def index(self) -> int | slice:
        """Its index into a column of a writer's history."""
        if self.start is None:
            return self.stop
        return slice(self.start, self.stop or None, self.step)


@final
class _ReferenceColumn:
    """Stands for a column of the steps; indexing it gives a `PatternNode`."""

    def __init__(self, index: int) -> None:
        self._index = index

    def __getitem__(self, key: int | slice) -> PatternNode:
        if isinstance(key, int):
            return PatternNode(self._index, None, key)
        if not isinstance(key, slice):
            raise ValueError(f"patterns are made by indexing with ints and slices, got {type(key).__name__}")  # noqa: TRY004  (as the original)
        if key.start is None:
            raise ValueError("a slice of a pattern needs a start, e.g. [-3:]")
        return PatternNode(self._index, key.start, key.stop or 0, 1 if key.step is None else key.step)


@final
@dataclasses.dataclass(frozen=True)
class Config:
    """What a structured writer does: which items, into which table, when. See `create_config`."""

    pattern: Pattern
    table: str
    conditions: tuple[Condition, ...] = ()
    priority: float | TDError = 1.0

    @property
    def nodes(self) -> list[PatternNode]:
        """The leaves of the pattern."""
        return flatten(self.pattern)[0]

    def __post_init__(self) -> None:
        if not self.table:
            raise ValueError("a config needs the name of a table, got ''")
        if not self.nodes:
            raise ValueError(f"the pattern for table {self.table!r} is empty")
        for node in self.nodes:
            if not isinstance(node, PatternNode):
                raise ValueError(  # noqa: TRY004  (as for any other bad pattern)
                    f"the leaves of the pattern for table {self.table!r} are made by indexing a reference step, "
                    f"e.g. step['reward'][-1], got {node!r}"
                )
        for condition in self.conditions:
            if not isinstance(condition, Condition):
                raise ValueError(  # noqa: TRY004  (as for any other bad condition)
                    f"conditions for table {self.table!r} are comparisons, e.g. Condition.step_index() >= 2, "
                    f"got {condition!r}"
                )
        if not isinstance(self.priority, TDError) and not (0 <= self.priority < float("inf")):
            raise ValueError(f"the priority for table {self.table!r} must be finite and >= 0, got {self.priority}")


def create_reference_step(step_structure: Any) -> ReferenceStep:
    """A structure like that of the steps, whose leaves are indexed to build patterns.

    Args:
        step_structure: structure of what will be appended; its leaves do not matter, None will do.
    """
    leaves, shape = flatten(step_structure)
    reference: ReferenceStep = unflatten(shape, [_ReferenceColumn(i) for i in range(len(leaves))])
    return reference


def pattern_from_transform(step_structure: Any, transform: Callable[[ReferenceStep], Pattern]) -> Pattern:
    """The pattern that `transform` makes of a reference step."""
    return transform(create_reference_step(step_structure))


def create_config(
    pattern: Pattern,
    table: str,
    conditions: Sequence[Condition] = (),
    priority: float | TDError = 1.0,
) -> Config:
    """A config: items of `pattern` go to `table` after every step for which all `conditions` hold.

    Args:
        pattern: structure of indexed columns of a reference step.
        table: name of the table.
        conditions: made with `Condition`; none means after every step.
        priority: a number, or `td_error(...)`.

    Raises:
        ValueError: an argument makes no sense.
    """
    return Config(pattern, table, tuple(conditions), priority)


def unpack_pattern(config: Config) -> Pattern:
    """The config's pattern."""
    return config.pattern


def infer_signature(configs: Sequence[Config], step_spec: Any) -> Any:
    """The signature of a table that gets the items of these configs.

    Args:
        configs: all the configs for the table.
        step_spec: the steps, as arrays or specs.

    Returns:
        A structure of `Spec`. Where lengths differ between configs, the first dimension is None.

    Raises:
        ValueError: there is no config; or they differ in table, structure, dtype, rank or shape of a step.
    """
    if not configs:
        raise ValueError("At least one config must be provided.")
    shapes = [flatten(config.pattern)[1] for config in configs]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError("All configs must have exactly the same pattern_structure.")
    if len({config.table for config in configs}) > 1:
        tables = ", ".join(sorted({config.table for config in configs}))
        raise ValueError(f"All configs must target the same table but provided configs included {tables}.")
    steps = [Spec.of(leaf) for leaf in flatten(step_spec)[0]]
    columns = zip(*(config.nodes for config in configs), strict=True)
    specs = [_merge(path, nodes, steps) for path, nodes in zip(paths(shapes[0]), columns, strict=True)]
    return unflatten(shapes[0], specs)


def _merge(path: tuple[str | int, ...], nodes: Sequence[PatternNode], steps: Sequence[Spec]) -> Spec:
    name = show_path(path)
    found = [steps[node.flat_source_index] for node in nodes]
    if any(spec.dtype != found[0].dtype for spec in found):
        raise ValueError(
            f"Configs produce trajectories with multiple dtypes at {path}. Got {[str(spec.dtype) for spec in found]}."
        )
    shapes = [
        spec.shape if node.length is None else (node.length, *spec.shape)
        for node, spec in zip(nodes, found, strict=True)
    ]
    if any(len(shape) != len(shapes[0]) or shape[1:] != shapes[0][1:] for shape in shapes):
        raise ValueError(f"Configs produce trajectories with incompatible shapes at {path}. Got {shapes}.")
    same = all(shape == shapes[0] for shape in shapes)
    return Spec(shapes[0] if same else (None, *shapes[0][1:]), found[0].dtype, name)
