"""`reverb.pybind`: names of the original's C++ classes, for annotations, `isinstance` and settings."""

from topology.compat.reverb.client import Client
from topology.compat.reverb.internals import (
    AutoTunedChunkerOptions,
    ChunkerOptions,
    ConstantChunkerOptions,
    HeapSelector,
    TableExtension,
    create_default_checkpointer,
    selector_from_proto,
)
from topology.compat.reverb.missing import lazily
from topology.compat.reverb.server import Server, Table
from topology.compat.reverb.writers import StructuredWriter, TrajectoryWriter
from topology.nodes.replay.checkpointers import CheckpointerBase as Checkpointer
from topology.nodes.replay.history import TrajectoryColumn as WeakCellRef
from topology.nodes.replay.legacy_writer import Writer
from topology.nodes.replay.rate_limiters import RateLimiter
from topology.nodes.replay.selectors import Fifo as FifoSelector
from topology.nodes.replay.selectors import Lifo as LifoSelector
from topology.nodes.replay.selectors import Prioritized as PrioritizedSelector
from topology.nodes.replay.selectors import Selector as ItemSelector
from topology.nodes.replay.selectors import Uniform as UniformSelector

__getattr__ = lazily("reverb.pybind", {}, {"Sampler": "use reverb.Client.sample, or a dataset"})
