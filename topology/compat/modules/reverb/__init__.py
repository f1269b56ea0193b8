"""`reverb` on rl-topology."""

from reverb import item_selectors as selectors
from reverb import rate_limiters
from reverb import structured_writer as structured
from reverb.client import Client, Writer
from reverb.errors import DeadlineExceededError, ReverbError
from reverb.platform.default import checkpointers
from reverb.replay_sample import ReplaySample, SampleInfo
from reverb.server import Server, Table
from reverb.trajectory_writer import TrajectoryColumn, TrajectoryWriter
from topology.compat.reverb.members import add_members
from topology.compat.reverb.missing import lazily

add_members()

__getattr__ = lazily(
    "reverb",
    {
        "PatternDataset": "reverb.pattern_dataset",
        "TFClient": "reverb.tf_client",
        "TimestepDataset": "reverb.timestep_dataset",
        "TrajectoryDataset": "reverb.trajectory_dataset",
    },
)
