"""`reverb.pattern_dataset`."""

from topology.compat.tensorflow.patterns import PatternDataset, pattern_dataset_with_info

__all__ = ["PatternDataset", "pattern_dataset_with_info"]
