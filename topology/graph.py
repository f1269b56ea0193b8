"""The graph of a program: a value that tests and people inspect.

    >>> import topology as lp
    >>> program = lp.Program("pair")
    >>> producer = program.add_node(lp.CourierNode(dict), label="producer")
    >>> _ = program.add_node(lp.CourierNode(list, [producer]), label="consumer")
    >>> print(program.graph())
    program pair: 2 nodes in 2 groups, 1 edge
    ├── producer
    │   └── producer/0  CourierNode  dict()
    └── consumer
        └── consumer/0  CourierNode  list(iterable=[<producer/0>])

An edge goes from the node that received a handle to the node that the handle stands for. Wherever a question takes a
name, it is the name of a node ("actor/3"), of a group ("actor": all its nodes), or of a node inside a colocation
("box/0/1": the second part of "box/0").
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, final

from topology.errors import ProgramError
from topology.graph_nodes import GraphEdge, GraphNode, listed, read_program

if TYPE_CHECKING:
    from topology.graph_diff import GraphDiff
    from topology.program import Program

__all__ = ["GraphEdge", "GraphNode", "ProgramGraph"]

_FORMAT = "topology.graph"
_VERSION = 1


@final
class ProgramGraph:
    """An immutable graph; equal to another one when names, nodes and edges are. See the module for an example."""

    def __init__(self, name: str, nodes: Iterable[GraphNode], edges: Iterable[GraphEdge]) -> None:
        self._name = name
        self._nodes = tuple(nodes)
        self._edges = tuple(edges)
        self._groups: dict[str, list[GraphNode]] = {}
        for node in self._nodes:
            self._groups.setdefault(node.group, []).append(node)
        self._by_name = {part.name: part for node in self._nodes for part in node.walk()}

    @classmethod
    def of(cls, program: Program) -> ProgramGraph:
        """The graph of a program as it is now. Calls no constructor."""
        return cls(program.name, *read_program(program))

    @property
    def name(self) -> str:
        """Name of the program."""
        return self._name

    @property
    def groups(self) -> tuple[str, ...]:
        """Labels, in the order of the program."""
        return tuple(self._groups)

    @property
    def edges(self) -> tuple[GraphEdge, ...]:
        """Every handle that a node received, in the order of the program."""
        return self._edges

    def nodes(self, group: str | None = None) -> tuple[GraphNode, ...]:
        """The nodes of a group in order, or of the whole program; for a colocation's name, the parts inside it.

        Raises:
            LookupError: there is no such group.
        """
        if group is None:
            return self._nodes
        self._check_text(group)
        if group in self._groups:
            return tuple(self._groups[group])
        return self.node(group).inner

    def node(self, name: str) -> GraphNode:
        """The node of that name, e.g. "actor/3".

        Raises:
            LookupError: there is none.
        """
        self._check_text(name)
        try:
            return self._by_name[name]
        except KeyError:
            raise self._unknown(name) from None

    def targets_of(self, name: str) -> tuple[str, ...]:
        """Names of the nodes that a node, or group, has handles of; each once, in the order of its arguments."""
        self._check(name)
        return tuple(dict.fromkeys(edge.target for edge in self._edges if _is_in(edge.caller, name)))

    def callers_of(self, name: str) -> tuple[str, ...]:
        """Names of the nodes that have a handle of a node, or of some node of a group; each once."""
        self._check(name)
        return tuple(dict.fromkeys(edge.caller for edge in self._edges if _is_in(edge.target, name)))

    def target(self, caller: str, group: str) -> str:
        """The one node of `group` that `caller` has a handle of: which cacher does actor/3 use?

        Raises:
            LookupError: it has a handle of none, or of several.
        """
        self._check(group)
        found = [target for target in self.targets_of(caller) if _is_in(target, group)]
        if len(found) != 1:
            raise LookupError(f"{caller} uses {listed(found)} of {group}, not exactly one; ask targets_of()")
        return found[0]

    def arguments_of(self, caller: str, target: str) -> tuple[str, ...]:
        """The argument paths by which `caller` (a node or group) received handles of `target`; each once."""
        self._check(caller)
        self._check(target)
        edges = (edge for edge in self._edges if _is_in(edge.caller, caller) and _is_in(edge.target, target))
        return tuple(dict.fromkeys(edge.argument for edge in edges))

    def _check_text(self, name: object) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a node or group goes by its name, such as 'actor/0' or 'actor', got {name!r}")

    def _check(self, name: str) -> None:
        self._check_text(name)
        if name not in self._by_name and name not in self._groups:
            raise self._unknown(name)

    def _unknown(self, name: str) -> LookupError:
        close = difflib.get_close_matches(name, [*self._groups, *self._by_name], n=3)
        hint = f"did you mean {' or '.join(close)}" if close else f"the groups are {listed(self._groups)}"
        return LookupError(f"the program {self._name!r} has no node or group {name!r}; {hint}")

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name or name in self._groups

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProgramGraph):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        return self._name, self._nodes, tuple(sorted(self._edges))

    def __repr__(self) -> str:
        return f"<ProgramGraph {self._name!r}: {len(self._nodes)} nodes, {len(self._edges)} edges>"

    def __str__(self) -> str:
        return self.to_text()

    def diff(self, other: ProgramGraph) -> GraphDiff:
        """What to change in this graph to get `other`; false when nothing. `str()` of it is for people."""
        from topology.graph_diff import GraphDiff

        return GraphDiff.between(self, other)

    def to_text(self, max_nodes_per_group: int | None = 8) -> str:
        """A readable tree. Of larger groups the first nodes and the last are shown; None shows all."""
        from topology.graph_text import to_text

        return to_text(self, max_nodes_per_group)

    def to_dict(self) -> dict[str, Any]:
        """JSON data, with a format version; `from_dict` reads it."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "name": self._name,
            "nodes": [node.to_dict() for node in self._nodes],
            "edges": [{"from": edge.caller, "to": edge.target, "argument": edge.argument} for edge in self._edges],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ProgramGraph:
        """The graph that `to_dict` gave.

        Raises:
            ProgramError: the data is something else, or of a version this code does not know.
        """
        found = (data.get("format"), data.get("version")) if isinstance(data, Mapping) else type(data).__name__
        if found != (_FORMAT, _VERSION):
            raise ProgramError(f"expected a graph in the format {_FORMAT!r} version {_VERSION}, found {found!r}")
        try:
            edges = [GraphEdge(edge["from"], edge["to"], edge["argument"]) for edge in data["edges"]]
            return cls(data["name"], map(GraphNode.from_dict, data["nodes"]), edges)
        except (KeyError, TypeError) as error:
            raise ProgramError(f"the graph data is damaged: {error!r}; write it again with to_dict()") from error

    def to_json(self, indent: int | None = 2) -> str:
        """`to_dict()` as text: the same for the same program, in every process."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> ProgramGraph:
        """The graph that `to_json` wrote. Raises `ProgramError` like `from_dict`."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise ProgramError(f"expected a graph as JSON text: {error}") from error
        return cls.from_dict(data)

    def to_mermaid(self, max_nodes_per_group: int | None = 8) -> str:
        """A Mermaid flowchart, as GitHub renders it. Larger groups become one box."""
        from topology.graph_text import to_mermaid

        return to_mermaid(self, max_nodes_per_group)

    def to_dot(self, max_nodes_per_group: int | None = 8) -> str:
        """A Graphviz digraph. Larger groups become one box."""
        from topology.graph_text import to_dot

        return to_dot(self, max_nodes_per_group)

    def to_svg(self, max_nodes_per_group: int = 8) -> str:
        """A picture. Larger groups become one box."""
        from topology.graph_svg import to_svg

        return to_svg(self, max_nodes_per_group)

    def to_networkx(self) -> Any:
        """A `networkx.MultiDiGraph`: nodes named `group/index`, edges from caller to target keyed by argument path.

        Raises:
            ImportError: networkx is not installed.
        """
        from topology.graph_text import to_networkx

        return to_networkx(self)


def _is_in(name: str, group: str) -> bool:
    return name == group or name.startswith(group + "/")
