"""What Reverb keeps in its C++ module, and programs name in annotations, in `isinstance`, and to copy a selector."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any, final

from topology.nodes.replay import selectors
from topology.nodes.replay.checkpointers import CheckpointerBase, DefaultCheckpointer
from topology.nodes.replay.info import HeapOptions, PrioritizedOptions, SelectorOptions

__all__ = [
    "AutoTunedChunkerOptions",
    "ChunkerOptions",
    "ConstantChunkerOptions",
    "HeapSelector",
    "TableExtension",
    "create_default_checkpointer",
    "selector_from_proto",
    "serialized",
    "which_one",
]


class _HeapsToo(type):
    """Both heaps count as instances."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, selectors.MinHeap | selectors.MaxHeap)


class HeapSelector(metaclass=_HeapsToo):
    """The selector of least priority, or of greatest.

    Args:
        min_heap: whether of least.
    """

    def __new__(cls, min_heap: bool) -> Any:
        return selectors.MinHeap() if min_heap else selectors.MaxHeap()


class TableExtension:
    """Extensions of tables are C++ code there, and there are none here. For annotations."""


class ChunkerOptions:
    """How the original stores columns; without effect here."""


@final
@dataclasses.dataclass(frozen=True)
class ConstantChunkerOptions(ChunkerOptions):
    """Chunks of one length. See `ChunkerOptions`."""

    max_chunk_length: int
    num_keep_alive_refs: int


@final
@dataclasses.dataclass(frozen=True)
class AutoTunedChunkerOptions(ChunkerOptions):
    """Chunks of a length that follows the data. See `ChunkerOptions`."""

    num_keep_alive_refs: int
    throughput_weight: float = 1.0


def create_default_checkpointer(
    name: str, group: str = "", fallback_checkpoint_path: str | None = None
) -> CheckpointerBase:
    """See `DefaultCheckpointer`, whose `path` is the name."""
    return DefaultCheckpointer(name, group, fallback_checkpoint_path)


def which_one(options: SelectorOptions, oneof: str) -> str | None:
    """Which selector the options are of: "fifo", "uniform", "prioritized", "heap" or "lifo".

    Raises:
        ValueError: `oneof` is not "distribution", the only choice that there is.
    """
    if oneof != "distribution":
        raise ValueError(f"the options of a selector have the choice 'distribution', not {oneof!r}")
    names = (field.name for field in dataclasses.fields(options) if field.name != "is_deterministic")
    return next(filter(options.HasField, names), None)


def serialized(options: SelectorOptions) -> bytes:
    """The options as bytes, for `selector_from_proto`; not those of the original."""
    return json.dumps(dataclasses.asdict(options)).encode()


def selector_from_proto(options: bytes) -> selectors.Selector:
    """The selector with these options.

    Args:
        options: what `SerializeToString()` of options gave.

    Raises:
        ValueError: they are no such bytes, or of no selector.
    """
    try:
        fields = json.loads(options)
        heap, prioritized = fields.pop("heap"), fields.pop("prioritized")
        found = SelectorOptions(
            heap=heap and HeapOptions(**heap), prioritized=prioritized and PrioritizedOptions(**prioritized), **fields
        )
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(f"these bytes are not the options of a selector: {options[:100]!r}") from error
    return _selector(found)


def _selector(options: SelectorOptions) -> selectors.Selector:
    if options.prioritized is not None:
        return selectors.Prioritized(options.prioritized.priority_exponent)
    if options.heap is not None:
        return selectors.MinHeap() if options.heap.min_heap else selectors.MaxHeap()
    plain: dict[str, Callable[[], selectors.Selector]] = {
        "fifo": selectors.Fifo,
        "lifo": selectors.Lifo,
        "uniform": selectors.Uniform,
    }
    name = which_one(options, "distribution")
    if name is None:
        raise ValueError(f"the options are of no selector: {options}")
    return plain[name]()
