"""Programs: nodes in named groups, joined by handles. Nothing runs while a program is declared."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, final

from topology.address import Address
from topology.errors import ProgramError, SerializationError
from topology.executable import Executable
from topology.handle import Handle
from topology.node import Node
from topology.serialization import find_unpicklable

if TYPE_CHECKING:
    from topology.graph import ProgramGraph

__all__ = ["Program", "make_program"]

HandleT = TypeVar("HandleT", bound=Handle[Any] | None)


@final
class Program:
    """A distributed program: nodes in groups. A launcher runs it, `graph()` shows it.

    Example:
        >>> import topology as lp
        >>> program = lp.Program("pair")
        >>> with program.group("producer"):
        ...     producer = program.add_node(lp.CourierNode(dict))
        >>> consumer = program.add_node(lp.CourierNode(list, [producer]), label="consumer")
        >>> list(program.groups)
        ['producer', 'consumer']
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._groups: dict[str, list[Node[Any]]] = {}
        self._known: set[int] = set()  # ids of the nodes
        self._current_group: str | None = None

    def __repr__(self) -> str:
        groups = ", ".join(f"{label} x{len(nodes)}" for label, nodes in self._groups.items())
        return f"<Program {self.name!r}: {groups or 'empty'}>"

    @property
    def groups(self) -> dict[str, list[Node[Any]]]:
        """The nodes by group, both in the order they were added."""
        return self._groups

    @property
    def current_group(self) -> str | None:
        """Label of the group that is open, or None."""
        return self._current_group

    def get_all_nodes(self) -> list[Node[Any]]:
        """Every node, group by group."""
        return [node for nodes in self._groups.values() for node in nodes]

    @contextlib.contextmanager
    def group(self, label: str) -> Iterator[None]:
        """Files the nodes added inside the block under `label`. A label may be used again: nodes are appended.

        Raises:
            ValueError: the label is empty, or a group is open already.
        """
        if not label:
            raise ValueError("Label should not be empty.")
        if self._current_group is not None:
            raise ValueError(f"group() cannot be nested. Asked for {label!r} inside {self._current_group!r}.")
        self._current_group = label
        try:
            yield
        finally:
            self._current_group = None

    def add_node(self, node: Node[HandleT], label: str | None = None) -> HandleT:
        """Adds a node to the group that is open, or to the group `label`; returns a handle to give to other nodes.

        Raises:
            ValueError: no label and no open group, or a label other than that of the open group, or a node that is
                in the program already.
            TypeError: not a node.
        """
        label = self._label(label)
        if not hasattr(node, "create_handle"):
            raise TypeError(f"add_node() takes a node such as CourierNode(...), got {node!r}")
        if id(node) in self._known:
            raise ValueError(f"This {type(node).__name__} is in the program already: make a new node for each place.")
        self._known.add(id(node))
        self._groups.setdefault(label, []).append(node)
        return node.create_handle()

    def _label(self, label: str | None) -> str:
        if self._current_group is not None:
            if label and label != self._current_group:
                raise ValueError(
                    f"The given label does not match the current group: {label!r} was given inside the group "
                    f"{self._current_group!r}. Leave the label out, or add the node outside the block."
                )
            return self._current_group
        if not label:
            raise ValueError("Label should not be empty. Give add_node() a label, or call it inside a group().")
        return label

    def graph(self) -> ProgramGraph:
        """What tests and people inspect: nodes, edges, exports, questions."""
        from topology.graph import ProgramGraph

        return ProgramGraph.of(self)

    def named_nodes(self) -> Iterator[tuple[str, int, Node[Any]]]:
        """Every node with its label and index, in order."""
        for label, nodes in self._groups.items():
            for index, node in enumerate(nodes):
                yield label, index, node

    def faults(self, *, serialize: bool = False, labels: Iterable[str] = ()) -> list[str]:
        """Everything wrong with the declaration, one line each; [] when there is nothing.

        Args:
            serialize: the nodes will travel to other processes, so they must pickle.
            labels: labels that launch options speak of; each must be a group.
        """
        faults = [] if self._groups else [f"the program {self.name!r} has no nodes"]
        faults += [
            f"unknown label {label!r} in the launch options{self._nearest(label)}; the groups are "
            f"{', '.join(map(repr, self._groups))}"
            for label in labels
            if label not in self._groups
        ]
        nodes = list(self._check_kinds(faults))
        faults += _placed_twice(nodes)
        owners = _owners(nodes, faults)
        for label, index, node in nodes:
            faults += [f"{label}/{index}: {fault}" for fault in node.faults()]
            faults += [
                f"{label}/{index}: the argument {path} is a handle of a node that is not in the program; add that node"
                for path, handle in _all_input_handles(node)
                if handle.address is not None and handle.address not in owners
            ]
            if serialize:
                faults += [f"{label}/{index}: {fault}" for fault in find_unpicklable(node)]
        return faults

    def _nearest(self, label: str) -> str:
        near = difflib.get_close_matches(label, self._groups, n=1)
        return f": did you mean {near[0]!r}?" if near else ""

    def _check_kinds(self, faults: list[str]) -> Iterator[tuple[str, int, Node[Any]]]:
        named: Iterable[tuple[str, int, object]] = self.named_nodes()
        for label, index, node in named:
            if isinstance(node, Node):
                yield label, index, node
            else:
                faults.append(f"{label}/{index}: {type(node).__name__} is not a kind of lp.Node, so nothing can run it")

    def validate(self, *, serialize: bool = False, labels: Iterable[str] = ()) -> None:
        """Raises one error that lists every fault; see `faults` for the arguments.

        Raises:
            SerializationError: some node cannot be pickled (and perhaps other faults).
            ProgramError: any other fault.
        """
        faults = self.faults(serialize=serialize, labels=labels)
        if faults:
            count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
            text = f"The program {self.name!r} cannot be launched, {count}:\n" + "\n".join(f"  - {f}" for f in faults)
            kind = SerializationError if any("cannot be pickled" in fault for fault in faults) else ProgramError
            raise kind(text, faults=tuple(faults))

    def executables(self) -> list[Executable]:
        """What a launcher runs: one for each node, in order."""
        return [
            Executable(
                label=label,
                index=index,
                group_size=len(self._groups[label]),
                entry=node.run,
                addresses=node.addresses,
                max_restarts=node.max_restarts,
            )
            for label, index, node in self.named_nodes()
        ]


def _placed_twice(nodes: Iterable[tuple[str, int, Node[Any]]]) -> Iterator[str]:
    """A fault for every place that a node has beside its first: it would run in both."""
    first: dict[int, str] = {}
    for label, index, node in nodes:
        for place, part in _walk(f"{label}/{index}", node):
            known = first.setdefault(id(part), place)
            if known != place:
                yield f"{place}: this {type(part).__name__} is {known} already: make a new node for each place"


def _walk(place: str, node: Node[Any]) -> Iterator[tuple[str, Node[Any]]]:
    yield place, node
    for position, inner in enumerate(node.inner_nodes):
        yield from _walk(f"{place}.nodes[{position}]", inner)


def _owners(nodes: Iterable[tuple[str, int, Node[Any]]], faults: list[str]) -> dict[Address, str]:
    owners: dict[Address, str] = {}
    for label, index, node in nodes:
        for address in node.addresses:
            name = f"{label}/{index}"
            if address in owners:
                faults.append(f"{name} and {owners[address]} both listen at {address!r}: give each its own")
            owners[address] = name
    return owners


def _all_input_handles(node: Node[Any]) -> Iterator[tuple[str, Handle[Any]]]:
    yield from node.input_handles
    for position, inner in enumerate(node.inner_nodes):
        yield from ((f"nodes[{position}].{path}", handle) for path, handle in _all_input_handles(inner))


def make_program(*nodes: Node[Any], name: str = "program") -> Program:
    """A program of nodes that each get a group of their own, named after the node's kind: `couriernode_0`, ..."""
    program = Program(name)
    for position, node in enumerate(nodes):
        program.add_node(node, label=f"{type(node).__name__.lower()}_{position}")
    return program
