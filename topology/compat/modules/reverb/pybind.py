"""`reverb.pybind`: names of the original's C++ classes, for annotations and `isinstance`."""

from topology.compat.reverb.client import Client
from topology.compat.reverb.missing import lazily
from topology.compat.reverb.server import Server, Table
from topology.compat.reverb.writers import StructuredWriter, TrajectoryWriter
from topology.nodes.replay.checkpointers import CheckpointerBase as Checkpointer
from topology.nodes.replay.legacy_writer import Writer
from topology.nodes.replay.rate_limiters import RateLimiter
from topology.nodes.replay.selectors import Fifo as FifoSelector
from topology.nodes.replay.selectors import Lifo as LifoSelector
from topology.nodes.replay.selectors import MaxHeap, MinHeap
from topology.nodes.replay.selectors import Prioritized as PrioritizedSelector
from topology.nodes.replay.selectors import Selector as ItemSelector
from topology.nodes.replay.selectors import Uniform as UniformSelector


def HeapSelector(min_heap: bool) -> ItemSelector:  # noqa: N802  (the name of the original's class)
    """The selector of least priority, or of greatest."""
    return MinHeap() if min_heap else MaxHeap()


__getattr__ = lazily("reverb.pybind", {}, {})
