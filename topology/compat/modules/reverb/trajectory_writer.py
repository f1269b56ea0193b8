"""`reverb.trajectory_writer`."""

from topology.compat.reverb.columns import TrajectoryColumn
from topology.compat.reverb.writers import TrajectoryWriter

__all__ = ["TrajectoryColumn", "TrajectoryWriter"]
