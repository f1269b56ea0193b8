"""What flows through a plan: values, and where each came from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, final

if TYPE_CHECKING:
    from topology.nodes.flow.actors import Actor

__all__ = ["Item", "Origin", "merge_origins"]


class Origin(NamedTuple):
    """Who made a value, and with which weights.

    Attributes:
        actor: the worker.
        weights_version: updates that made the weights it acted with; -1 where it has none.
    """

    actor: Actor
    weights_version: int


@final
class Item:
    """A value on its way through a plan.

    Attributes:
        value: what operators see.
        origins: of all values that went into it, each once, in the order they came; () for what the driver made itself.
    """

    __slots__ = ("origins", "value")

    def __init__(self, value: Any, origins: tuple[Origin, ...] = ()) -> None:
        self.value = value
        self.origins = origins

    def __repr__(self) -> str:
        return f"Item({self.value!r}, {self.origins!r})"


def merge_origins(items: Iterable[tuple[Origin, ...]]) -> tuple[Origin, ...]:
    """The origins of a value made of several, each once."""
    return tuple(dict.fromkeys(origin for origins in items for origin in origins))
