"""A graph as few enough boxes to look at: nodes of small groups each for itself, larger groups as one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from topology.graph import ProgramGraph
    from topology.graph_nodes import GraphNode

__all__ = ["Box", "Line", "View", "join_arguments", "view"]


@final
@dataclass(frozen=True)
class Box:
    """What is drawn as one thing.

    Attributes:
        title: `actor/3`, or `actor × 64` for a whole group.
        node: the node, or the first one of the group.
    """

    title: str
    node: GraphNode


@final
@dataclass(frozen=True)
class Line:
    """All edges from one box to another: indices of the boxes, and the argument paths that made them."""

    caller: int
    target: int
    arguments: tuple[str, ...]


@final
@dataclass(frozen=True)
class View:
    """Boxes in the order of the program, the indices of each group's boxes, and the lines between boxes."""

    boxes: tuple[Box, ...]
    groups: dict[str, tuple[int, ...]] = dataclasses.field(hash=False)
    lines: tuple[Line, ...]


def view(graph: ProgramGraph, max_nodes_per_group: int | None) -> View:
    """The boxes and lines of a graph; with None every node has its own box."""
    boxes: list[Box] = []
    groups: dict[str, tuple[int, ...]] = {}
    box_of: dict[str, int] = {}
    for group in graph.groups:
        first = len(boxes)
        nodes = graph.nodes(group)
        parts = [part for node in nodes for part in node.walk()]
        collapse = max_nodes_per_group is not None and len(parts) > max_nodes_per_group
        box_of |= {part.name: first if collapse else first + i for i, part in enumerate(parts)}
        boxes += [Box(f"{group} × {len(nodes)}", nodes[0])] if collapse else [Box(part.name, part) for part in parts]
        groups[group] = tuple(range(first, len(boxes)))
    arguments: dict[tuple[int, int], dict[str, None]] = {}
    for edge in graph.edges:
        arguments.setdefault((box_of[edge.caller], box_of[edge.target]), {})[edge.argument] = None
    lines = tuple(Line(caller, target, tuple(paths)) for (caller, target), paths in arguments.items())
    return View(tuple(boxes), groups, lines)


def join_arguments(arguments: Iterable[str], limit: int = 3) -> str:
    """A label for a line: the first argument paths, and how many more."""
    names = list(arguments)
    return ", ".join(names[:limit]) + (f", {len(names) - limit} more" if len(names) > limit else "")
