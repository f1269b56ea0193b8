"""What Reverb's classes have besides what ours have, added to ours when `reverb` is imported.

To ours, not to subclasses, where ours are what programs get: samples, columns, clients of handles.
"""

from __future__ import annotations

import functools
from typing import Any

from topology.compat.reverb.client import Client
from topology.nodes.replay import SampleInfo
from topology.nodes.replay.history import ColumnHistory, TrajectoryColumn
from topology.nodes.replay.node import ReverbHandle

__all__ = ["add_members"]


@functools.cache
def add_members() -> None:
    """Adds them, once in a process."""
    members: list[tuple[type, str, Any]] = [
        (SampleInfo, "tf_dtypes", classmethod(_tf_dtypes)),
        (SampleInfo, "tf_shapes", classmethod(_tf_shapes)),
        (ColumnHistory, "_path", ColumnHistory.path),
        (TrajectoryColumn, "_path", TrajectoryColumn.path),
        (ReverbHandle, "dereference", _dereference),
    ]
    for kind, name, member in members:
        setattr(kind, name, member)


def _tf_dtypes(kind: type[SampleInfo]) -> SampleInfo:
    """Dtypes of the fields in datasets of TensorFlow."""
    import tensorflow as tf

    return kind(tf.uint64, tf.double, tf.int64, tf.double, tf.int32)


def _tf_shapes(kind: type[SampleInfo]) -> SampleInfo:
    """Shapes of the fields of a single sample."""
    import tensorflow as tf

    return kind(*[tf.TensorShape([]) for _ in kind._fields])


def _dereference(handle: ReverbHandle) -> Client:
    return Client(handle.address.resolve(), secret=handle.address.secret())
