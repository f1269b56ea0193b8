"""Experience replay: tables of items over shared steps, with Reverb's model and names.

May live here: tables, selectors, rate limiters, the storage of steps, writers, samplers, the server and its client.
`node.py` alone knows the graph; everything else is a library that works without one.
May not: other services except the courier, launch types, agents. Importing it imports neither jax nor TensorFlow.

    table = Table("replay", selectors.Uniform(), selectors.Fifo(), max_size=1000, rate_limiter=rate_limiters.MinSize(1))
    with Server([table]) as server:
        client = Client(server.address)
        client.insert({"reward": 1.0}, priorities={"replay": 1.0})
        batch = client.sample_batch("replay", batch_size=32)
"""

from topology.nodes.replay import checkpointers, rate_limiters, selectors, structured_writer
from topology.nodes.replay.checkpointers import CheckpointError, DefaultCheckpointer, TempDirCheckpointer
from topology.nodes.replay.client import Client
from topology.nodes.replay.dataset import BatchIterator
from topology.nodes.replay.datasets import TimestepDataset, TrajectoryDataset
from topology.nodes.replay.history import TrajectoryColumn
from topology.nodes.replay.info import ReplaySample, SampleInfo, TableInfo
from topology.nodes.replay.server import Server
from topology.nodes.replay.sharding import ShardedClient
from topology.nodes.replay.specs import Spec
from topology.nodes.replay.structured_writer import StructuredWriter
from topology.nodes.replay.table import Table
from topology.nodes.replay.writers import TrajectoryWriter

__all__ = [
    "BatchIterator",
    "CheckpointError",
    "Client",
    "DefaultCheckpointer",
    "ReplaySample",
    "SampleInfo",
    "Server",
    "ShardedClient",
    "Spec",
    "StructuredWriter",
    "Table",
    "TableInfo",
    "TempDirCheckpointer",
    "TimestepDataset",
    "TrajectoryColumn",
    "TrajectoryDataset",
    "TrajectoryWriter",
    "checkpointers",
    "rate_limiters",
    "selectors",
    "structured_writer",
]
