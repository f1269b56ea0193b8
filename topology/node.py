"""What every node kind implements."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, final

from topology.address import Address
from topology.handle import Handle, find_handles, find_instances

__all__ = ["Node", "NodeDescription"]

HandleT_co = TypeVar("HandleT_co", bound=Handle[Any] | None, covariant=True)


@final
@dataclass(frozen=True, kw_only=True)
class NodeDescription:
    """What a node tells the graph of itself.

    Attributes:
        constructor: the callable that makes the node's object, or None.
        arguments: its arguments by display name, in order: "0", "1" ... for positional ones of unknown name.
        methods: names callable by clients; () when unknown or none.
    """

    constructor: Any = None
    arguments: Mapping[str, Any]
    methods: tuple[str, ...] = ()


class Node(abc.ABC, Generic[HandleT_co]):
    """One unit of a program. Declaring it starts nothing; `run` is called by a launcher, in the node's own place."""

    def __init__(self) -> None:
        self._addresses: list[Address] = []

    @abc.abstractmethod
    def create_handle(self) -> HandleT_co:
        """A handle to give to other nodes; None for a node that cannot be called."""

    @abc.abstractmethod
    def run(self) -> None:
        """Runs the node in the current context; blocks until it ends. An exception means the node failed."""

    @abc.abstractmethod
    def describe(self) -> NodeDescription:
        """What the graph shows of this node."""

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Everything this node, or a node inside it, listens at."""
        inner = (address for node in self.inner_nodes for address in node.addresses)
        return (*self._addresses, *inner)

    def allocate_address(self, address: Address) -> None:
        """Says that this node will listen at `address`, so the launcher gives it an endpoint."""
        if address not in self._addresses:
            self._addresses.append(address)

    @property
    def inner_nodes(self) -> Sequence[Node[Any]]:
        """Nodes that this one runs inside itself (colocation)."""
        return ()

    @property
    def max_restarts(self) -> int:
        """How often a launcher runs this node again after a failure before the failure counts."""
        return 0

    def faults(self) -> list[str]:
        """What is wrong with the declaration of this node, and those inside it, one line each."""
        own = [
            f"the argument {path} is a node: give its handle, which add_node() or create_handle() returns"
            for name, value in self.describe().arguments.items()
            for path, _ in find_instances(value, Node, path=name)  # type: ignore[type-abstract]  # only compared with
        ]
        return own + [f"nodes[{i}]: {fault}" for i, node in enumerate(self.inner_nodes) for fault in node.faults()]

    @property
    def input_handles(self) -> tuple[tuple[str, Handle[Any]], ...]:
        """Every handle this node receives, with its argument path."""
        return tuple(
            found for name, value in self.describe().arguments.items() for found in find_handles(value, path=name)
        )
