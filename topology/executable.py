"""What a launcher runs: nodes turn themselves into these, launchers translate them to their platform."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

from topology.address import Address

__all__ = ["Executable"]


@final
@dataclass(frozen=True, kw_only=True)
class Executable:
    """One thing to run.

    Attributes:
        label: group of the node.
        index: its place in the group.
        group_size: number of nodes in the group.
        entry: called without arguments in the node's context; blocks until the node ends. Pickled by cloudpickle
            when it runs in another process.
        addresses: what the node listens at; the launcher gives each an endpoint.
        max_restarts: how often a failed entry is run again before the failure counts.
    """

    label: str
    index: int
    group_size: int
    entry: Callable[[], None]
    addresses: tuple[Address, ...] = field(default=())
    max_restarts: int = 0

    @property
    def name(self) -> str:
        """`label/index`."""
        return f"{self.label}/{self.index}"
