"""`reverb.reverb_types`."""

from typing import Any, TypeAlias

from topology.compat.reverb.internals import HeapSelector as Heap
from topology.nodes.replay.info import TableInfo
from topology.nodes.replay.selectors import Fifo, Lifo, Prioritized, Selector, Uniform

__all__ = ["Fifo", "Heap", "Lifo", "Prioritized", "SelectorType", "SpecNest", "TableInfo", "Uniform"]

SelectorType: TypeAlias = Selector
SpecNest: TypeAlias = Any
