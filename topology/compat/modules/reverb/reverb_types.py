"""`reverb.reverb_types`."""

from typing import Any, TypeAlias

from topology.nodes.replay.info import TableInfo
from topology.nodes.replay.selectors import Fifo, Lifo, MaxHeap, MinHeap, Prioritized, Selector, Uniform

__all__ = ["Fifo", "Heap", "Lifo", "Prioritized", "SelectorType", "SpecNest", "TableInfo", "Uniform"]

Heap: TypeAlias = MaxHeap | MinHeap
SelectorType: TypeAlias = Selector
SpecNest: TypeAlias = Any
