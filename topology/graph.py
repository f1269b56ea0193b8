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
import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from topology.address import Address
from topology.errors import ProgramError
from topology.graph_values import Plain, look_up, name_of, plain, stable
from topology.handle import Handle
from topology.node import Node

if TYPE_CHECKING:
    from topology.graph_diff import GraphDiff
    from topology.program import Program

__all__ = ["GraphEdge", "GraphNode", "ProgramGraph"]

_FORMAT = "topology.graph"
_VERSION = 1


@final
@dataclass(frozen=True, kw_only=True)
class GraphNode:
    """One node of a graph.

    Attributes:
        group: its group; for a part of a colocation, the name of the node around it.
        index: its place in the group.
        kind: class of the node, e.g. "CourierNode".
        constructor: name of what it calls to make its object; "" when there is none.
        arguments_json: its arguments as JSON text; see `arguments`.
        methods: what clients may call; () when unknown or none.
        inner: the parts of a colocation.
    """

    group: str
    index: int
    kind: str
    constructor: str = ""
    arguments_json: str = "{}"
    methods: tuple[str, ...] = ()
    inner: tuple[GraphNode, ...] = ()

    @property
    def name(self) -> str:
        """`group/index`."""
        return f"{self.group}/{self.index}"

    @property
    def arguments(self) -> dict[str, Plain]:
        """Arguments by name, as plain data (see `topology.graph_values`); a fresh copy."""
        arguments: dict[str, Plain] = json.loads(self.arguments_json)
        return arguments

    def argument(self, path: str) -> Plain:
        """One argument, or a part of it: `epsilon`, `sources[2]`, `config.batch_size`.

        Raises:
            LookupError: the node has no such argument.
        """
        arguments = self.arguments
        for name in sorted(arguments, key=len, reverse=True):
            rest = path.removeprefix(name)
            if path.startswith(name) and (not rest or rest[0] in ".["):
                try:
                    return look_up(arguments[name], rest)
                except LookupError:
                    break
        raise LookupError(f"{self.name} has no argument {path!r}; it has {_listed(arguments)}")

    def walk(self) -> Iterator[GraphNode]:
        """This node and the parts inside it."""
        yield self
        for part in self.inner:
            yield from part.walk()

    def to_dict(self) -> dict[str, Any]:
        """JSON data."""
        data: dict[str, Any] = {"group": self.group, "index": self.index, "kind": self.kind}
        data |= {"constructor": self.constructor, "arguments": self.arguments, "methods": list(self.methods)}
        return data | ({"inner": [part.to_dict() for part in self.inner]} if self.inner else {})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> GraphNode:
        """The node that `to_dict` gave."""
        return cls(
            group=data["group"],
            index=data["index"],
            kind=data["kind"],
            constructor=data["constructor"],
            arguments_json=json.dumps(data["arguments"]),
            methods=tuple(data["methods"]),
            inner=tuple(cls.from_dict(part) for part in data.get("inner", ())),
        )


@final
@dataclass(frozen=True, order=True)
class GraphEdge:
    """A handle that one node received: `caller` may call `target`.

    Attributes:
        caller: name of the node that received the handle.
        target: name of the node that the handle stands for.
        argument: where in the caller's arguments, e.g. `sources[2]`.
    """

    caller: str
    target: str
    argument: str

    def __str__(self) -> str:
        return f"{self.caller} -> {self.target} ({self.argument})"


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
        owners = dict(_owners(program))
        nodes: list[GraphNode] = []
        edges: list[GraphEdge] = []
        for label, index, node in program.named_nodes():
            nodes.append(_read_node(label, index, node, owners, edges))
        return cls(program.name, nodes, edges)

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
        if group in self._groups:
            return tuple(self._groups[group])
        return self.node(group).inner

    def node(self, name: str) -> GraphNode:
        """The node of that name, e.g. "actor/3".

        Raises:
            LookupError: there is none.
        """
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
            raise LookupError(f"{caller} uses {_listed(found)} of {group}, not exactly one; ask targets_of()")
        return found[0]

    def arguments_of(self, caller: str, target: str) -> tuple[str, ...]:
        """The argument paths by which `caller` (a node or group) received handles of `target`; each once."""
        self._check(caller)
        self._check(target)
        edges = (edge for edge in self._edges if _is_in(edge.caller, caller) and _is_in(edge.target, target))
        return tuple(dict.fromkeys(edge.argument for edge in edges))

    def _check(self, name: str) -> None:
        if name not in self._by_name and name not in self._groups:
            raise self._unknown(name)

    def _unknown(self, name: str) -> LookupError:
        close = difflib.get_close_matches(name, [*self._groups, *self._by_name], n=3)
        hint = f"did you mean {' or '.join(close)}" if close else f"the groups are {_listed(self._groups)}"
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


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _owners(program: Program) -> Iterator[tuple[Address, str]]:
    """Who listens where. The parts of a colocation come after it, so that in a dict the innermost owner stays."""

    def walk(name: str, node: Node[Any]) -> Iterator[tuple[Address, str]]:
        yield from ((address, name) for address in node.addresses)
        for position, part in enumerate(node.inner_nodes):
            yield from walk(f"{name}/{position}", part)

    named: Iterable[tuple[str, int, object]] = program.named_nodes()
    for label, index, node in named:
        if isinstance(node, Node):
            yield from walk(f"{label}/{index}", node)


def _read_node(
    group: str, index: int, node: object, owners: Mapping[Address, str], edges: list[GraphEdge]
) -> GraphNode:
    if not isinstance(node, Node):  # tests add stand-ins that only have create_handle()
        return GraphNode(group=group, index=index, kind=name_of(type(node)))
    name = f"{group}/{index}"
    edges += [
        GraphEdge(name, owners[handle.address], stable(path))
        for path, handle in node.input_handles
        if handle.address is not None and handle.address in owners
    ]
    description = node.describe()
    read = functools.partial(plain, name_of_handle=functools.partial(_name_of_handle, owners=owners))
    return GraphNode(
        group=group,
        index=index,
        kind=name_of(type(node)),
        constructor=name_of(description.constructor),
        arguments_json=json.dumps({key: read(value) for key, value in description.arguments.items()}),
        methods=tuple(description.methods),
        inner=tuple(_read_node(name, i, part, owners, edges) for i, part in enumerate(node.inner_nodes)),
    )


def _name_of_handle(handle: Handle[Any] | Address, owners: Mapping[Address, str]) -> str:
    address = handle if isinstance(handle, Address) else handle.address
    if address is None:
        return name_of(type(handle))
    return owners.get(address) or f"{name_of(type(handle))} of a node outside the program"
