"""`reverb.timestep_dataset`: of TensorFlow where that is installed; elsewhere ours, with the same methods."""

from topology.compat.reverb.missing import has_tensorflow

__all__ = ["TimestepDataset"]

if has_tensorflow():
    from topology.compat.tensorflow.datasets import TimestepDataset
else:
    from topology.nodes.replay import TimestepDataset
