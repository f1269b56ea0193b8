"""Nodes and edges of a graph, and how they are read from a program."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from topology.address import Address
from topology.graph_values import Plain, look_up, name_of, plain, stable
from topology.handle import Handle
from topology.node import Node

if TYPE_CHECKING:
    from topology.program import Program

__all__ = ["GraphEdge", "GraphNode", "listed", "read_program"]


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
        raise LookupError(f"{self.name} has no argument {path!r}; it has {listed(arguments)}")

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


def listed(names: Iterable[str]) -> str:
    """Names for a message."""
    return ", ".join(names) or "none"


def read_program(program: Program) -> tuple[list[GraphNode], list[GraphEdge]]:
    """The nodes of a program as it is now, and its edges. Calls no constructor."""
    owners = dict(_owners(program))
    edges: list[GraphEdge] = []
    nodes = [_read_node(label, index, node, owners, edges) for label, index, node in program.named_nodes()]
    return nodes, edges


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
