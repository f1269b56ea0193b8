"""`reverb.trajectory_writer`."""

from topology.compat.reverb.writers import TrajectoryWriter
from topology.nodes.replay.history import TrajectoryColumn

__all__ = ["TrajectoryColumn", "TrajectoryWriter"]
