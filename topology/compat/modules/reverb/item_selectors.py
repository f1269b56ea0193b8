"""`reverb.item_selectors`, which is `reverb.selectors`."""

from topology.nodes.replay.selectors import Fifo, Lifo, MaxHeap, MinHeap, Prioritized, Uniform

__all__ = ["Fifo", "Lifo", "MaxHeap", "MinHeap", "Prioritized", "Uniform"]
