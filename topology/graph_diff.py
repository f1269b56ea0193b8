"""What differs between two graphs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from topology.graph_text import node_text
from topology.graph_values import Plain, short_text

if TYPE_CHECKING:
    from topology.graph import ProgramGraph
    from topology.graph_nodes import GraphEdge, GraphNode

__all__ = ["ArgumentChange", "GraphDiff"]

_ABSENT = "(absent)"


@final
@dataclass(frozen=True)
class ArgumentChange:
    """Something of one node that differs; `old` and `new` are texts for people.

    Attributes:
        node: name of the node.
        what: name of the argument, or "kind", "constructor", "methods".
    """

    node: str
    what: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"~ {self.node} {self.what}: {self.old} -> {self.new}"


@final
@dataclass(frozen=True, kw_only=True)
class GraphDiff:
    """How to get from one graph to another. False when they are equal; `str()` has one line for each difference."""

    renamed: tuple[str, str] | None = None
    reordered: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    added_nodes: tuple[GraphNode, ...] = ()
    removed_nodes: tuple[GraphNode, ...] = ()
    changes: tuple[ArgumentChange, ...] = ()
    added_edges: tuple[GraphEdge, ...] = ()
    removed_edges: tuple[GraphEdge, ...] = ()

    @classmethod
    def between(cls, old: ProgramGraph, new: ProgramGraph) -> GraphDiff:
        """What to change in `old` to get `new`."""
        olds = {part.name: part for node in old.nodes() for part in node.walk()}
        news = {part.name: part for node in new.nodes() for part in node.walk()}
        old_edges, new_edges = set(old.edges), set(new.edges)
        orders = [name for name in olds if name in news], [name for name in news if name in olds]
        return cls(
            renamed=(old.name, new.name) if old.name != new.name else None,
            reordered=(old.groups, new.groups) if orders[0] != orders[1] else None,
            added_nodes=tuple(part for name, part in news.items() if name not in olds),
            removed_nodes=tuple(part for name, part in olds.items() if name not in news),
            changes=tuple(change for name in orders[0] for change in _changes(olds[name], news[name])),
            added_edges=tuple(edge for edge in new.edges if edge not in old_edges),
            removed_edges=tuple(edge for edge in old.edges if edge not in new_edges),
        )

    def __bool__(self) -> bool:
        return self != GraphDiff()

    def __str__(self) -> str:
        return "\n".join(self._lines()) or "no difference"

    def _lines(self) -> Iterator[str]:
        if self.renamed:
            yield f"~ program name: {self.renamed[0]} -> {self.renamed[1]}"
        if self.reordered:
            yield f"~ order of groups: {', '.join(self.reordered[0])} -> {', '.join(self.reordered[1])}"
        yield from (f"- {node_text(node)}" for node in self.removed_nodes)
        yield from (f"+ {node_text(node)}" for node in self.added_nodes)
        yield from map(str, self.changes)
        yield from (f"- edge {edge}" for edge in self.removed_edges)
        yield from (f"+ edge {edge}" for edge in self.added_edges)


def _changes(old: GraphNode, new: GraphNode) -> Iterator[ArgumentChange]:
    for what in ("kind", "constructor"):
        before, after = getattr(old, what), getattr(new, what)
        if before != after:
            yield ArgumentChange(old.name, what, before, after)
    if old.methods != new.methods:
        yield ArgumentChange(old.name, "methods", ", ".join(old.methods) or "none", ", ".join(new.methods) or "none")
    if old.arguments_json == new.arguments_json:
        return
    olds, news = old.arguments, new.arguments
    for name in {**olds, **news}:
        if name not in olds or name not in news or _differ(olds[name], news[name]):
            texts = _texts(olds, news, name)
            yield ArgumentChange(old.name, name, *texts)
    if olds == news and list(olds) != list(news):
        yield ArgumentChange(old.name, "order of arguments", ", ".join(olds), ", ".join(news))


def _differ(old: Plain, new: Plain) -> bool:
    return repr(old) != repr(new)  # tells 1 from True and from 1.0


def _texts(olds: dict[str, Plain], news: dict[str, Plain], name: str) -> tuple[str, str]:
    """Both values as short as still shows the difference."""
    for width in (60, 1000):
        texts = [short_text(values[name], width) if name in values else _ABSENT for values in (olds, news)]
        if texts[0] != texts[1]:
            return texts[0], texts[1]
    return repr(olds.get(name, _ABSENT)), repr(news.get(name, _ABSENT))
