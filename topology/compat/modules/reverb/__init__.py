"""`reverb` on rl-topology."""

from topology.nodes.replay import (
    Client,
    ReplaySample,
    SampleInfo,
    Server,
    StructuredWriter,
    Table,
    TableInfo,
    TimestepDataset,
    TrajectoryColumn,
    TrajectoryDataset,
    TrajectoryWriter,
    checkpointers,
    rate_limiters,
    selectors,
    structured_writer,
)
