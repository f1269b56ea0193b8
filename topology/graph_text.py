"""A graph as text: a tree for terminals, Mermaid, Graphviz; and as a networkx graph."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from topology.graph_values import short_text
from topology.graph_view import Box, join_arguments, view

if TYPE_CHECKING:
    from topology.graph import ProgramGraph
    from topology.graph_nodes import GraphNode

__all__ = ["node_text", "to_dot", "to_mermaid", "to_networkx", "to_text"]


def node_text(node: GraphNode) -> str:
    """One line: `actor/3  CourierNode  Constructor(argument=value, ...)`."""
    arguments = ", ".join(f"{name}={short_text(value)}" for name, value in node.arguments.items())
    if node.constructor:
        return f"{node.name}  {node.kind}  {node.constructor}({arguments})"
    return f"{node.name}  {node.kind}({arguments})" if arguments else f"{node.name}  {node.kind}"


def to_text(graph: ProgramGraph, max_nodes_per_group: int | None) -> str:
    """See `ProgramGraph.to_text`."""
    lines = [f"program {graph.name}: {_count(len(graph), 'node')} in {_count(len(graph.groups), 'group')}, "]
    lines[0] += _count(len(graph.edges), "edge")
    _add_children(
        lines, "", [(_group_title(graph, group), _rows(graph, group, max_nodes_per_group)) for group in graph.groups]
    )
    return "\n".join(lines)


_Tree = tuple[str, "Sequence[_Tree]"]


def _add_children(lines: list[str], indent: str, children: Sequence[_Tree]) -> None:
    for position, (title, grandchildren) in enumerate(children):
        last = position == len(children) - 1
        lines.append(f"{indent}{'└── ' if last else '├── '}{title}")
        _add_children(lines, indent + ("    " if last else "│   "), grandchildren)


def _group_title(graph: ProgramGraph, group: str) -> str:
    size = len(graph.nodes(group))
    return group if size == 1 else f"{group} × {size}"


def _rows(graph: ProgramGraph, group: str, limit: int | None) -> list[_Tree]:
    nodes = graph.nodes(group)
    if limit is None or len(nodes) <= max(limit, 3):
        return [_node_tree(node) for node in nodes]
    shown = max(limit - 2, 1)
    skipped: _Tree = (f"... {len(nodes) - shown - 1} more ...", ())
    return [*map(_node_tree, nodes[:shown]), skipped, _node_tree(nodes[-1])]


def _node_tree(node: GraphNode) -> _Tree:
    return node_text(node), [_node_tree(part) for part in node.inner]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def to_mermaid(graph: ProgramGraph, max_nodes_per_group: int | None) -> str:
    """See `ProgramGraph.to_mermaid`."""
    seen = view(graph, max_nodes_per_group)
    lines = ["flowchart LR"]
    for position, (group, members) in enumerate(seen.groups.items()):
        boxes = [f'n{i}["{_mermaid(_caption(seen.boxes[i], "<br/>"))}"]' for i in members]
        if len(boxes) == 1:
            lines.append(f"  {boxes[0]}")
        else:
            lines += [f'  subgraph g{position}["{_mermaid(group)}"]', *(f"    {box}" for box in boxes), "  end"]
    lines += [
        f'  n{line.caller} -->|"{_mermaid(join_arguments(line.arguments))}"| n{line.target}' for line in seen.lines
    ]
    return "\n".join(lines) + "\n"


def _caption(box: Box, new_line: str) -> str:
    return new_line.join(part for part in (box.title, box.node.kind, box.node.constructor) if part)


def _mermaid(text: str) -> str:
    # Entity codes with # are Mermaid's way to show what would be syntax.
    return "<br/>".join(
        part.replace("#", "#35;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
        for part in text.split("<br/>")
    )


def to_dot(graph: ProgramGraph, max_nodes_per_group: int | None) -> str:
    """See `ProgramGraph.to_dot`."""
    seen = view(graph, max_nodes_per_group)
    lines = [
        f"digraph {_dot(graph.name)} {{",
        "  rankdir=LR;",
        '  node [shape=box, style=rounded, fontname="Helvetica"];',
    ]
    lines.append('  edge [fontname="Helvetica", fontsize=10];')
    for position, (group, members) in enumerate(seen.groups.items()):
        boxes = [f"n{i} [label={_dot(_caption(seen.boxes[i], chr(10)))}];" for i in members]
        if len(boxes) == 1:
            lines.append(f"  {boxes[0]}")
        else:
            lines += [
                f"  subgraph cluster_{position} {{",
                f"    label={_dot(group)};",
                *(f"    {b}" for b in boxes),
                "  }",
            ]
    lines += [
        f"  n{line.caller} -> n{line.target} [label={_dot(join_arguments(line.arguments))}];" for line in seen.lines
    ]
    return "\n".join([*lines, "}"]) + "\n"


def _dot(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a quoted DOT string has the same escapes for quotes and new lines


def to_networkx(graph: ProgramGraph) -> Any:
    """See `ProgramGraph.to_networkx`."""
    try:
        import networkx
    except ImportError as error:
        raise ImportError(
            "ProgramGraph.to_networkx() needs networkx, which is not installed: pip install 'rl-topology[networkx]'"
        ) from error
    result = networkx.MultiDiGraph(name=graph.name)
    for node in graph.nodes():
        for part in node.walk():
            result.add_node(
                part.name,
                group=part.group,
                index=part.index,
                kind=part.kind,
                constructor=part.constructor,
                arguments=part.arguments,
                methods=part.methods,
            )
    for edge in graph.edges:
        result.add_edge(edge.caller, edge.target, key=edge.argument, argument=edge.argument)
    return result
