"""`reverb.trajectory_dataset`: of TensorFlow where that is installed; elsewhere ours, with the same methods."""

from topology.compat.reverb.missing import has_tensorflow

__all__ = ["TrajectoryDataset"]

if has_tensorflow():
    from topology.compat.tensorflow.datasets import TrajectoryDataset
else:
    from topology.nodes.replay import TrajectoryDataset
