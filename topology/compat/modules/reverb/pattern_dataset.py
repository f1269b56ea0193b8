"""`reverb.pattern_dataset`."""

from topology.compat.reverb.missing import need_tensorflow

need_tensorflow("reverb.PatternDataset", "client.structured_writer(configs) and reverb.TrajectoryDataset")

from topology.compat.tensorflow.patterns import (  # noqa: E402 - they import TensorFlow
    PatternDataset,
    pattern_dataset_with_info,
)

__all__ = ["PatternDataset", "pattern_dataset_with_info"]
