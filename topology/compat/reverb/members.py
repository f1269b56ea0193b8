"""What Reverb's classes have besides what ours have, added to ours while `reverb` is provided.

To ours, not to subclasses, where ours are what programs get: samples, columns, configs, infos, clients of handles.
"""

from __future__ import annotations

from typing import Any

from topology.compat.additions import add, with_additions
from topology.compat.reverb.client import Client
from topology.compat.reverb.configs import has_field, node_has_field, pattern_structure
from topology.compat.reverb.internals import serialized, which_one
from topology.compat.reverb.missing import need_tensorflow
from topology.nodes.replay import SampleInfo
from topology.nodes.replay.history import ColumnHistory, TrajectoryColumn
from topology.nodes.replay.info import SelectorOptions, TableWorkerTime
from topology.nodes.replay.node import ReverbHandle
from topology.nodes.replay.patterns import Config, PatternNode

__all__ = ["add_members"]


def add_members() -> None:
    """Adds them, now and whenever the modules are provided again."""
    with_additions(_add)


def _add() -> None:
    members: list[tuple[type, str, Any]] = [
        (SampleInfo, "tf_dtypes", classmethod(_tf_dtypes)),
        (SampleInfo, "tf_shapes", classmethod(_tf_shapes)),
        (ColumnHistory, "_path", ColumnHistory.path),
        (TrajectoryColumn, "_path", TrajectoryColumn.path),
        (TrajectoryColumn, "expired", property(_is_expired)),
        (ReverbHandle, "dereference", _dereference),
        (SelectorOptions, "WhichOneof", which_one),
        (SelectorOptions, "SerializeToString", serialized),
        (TableWorkerTime, "running_ms", property(_running_ms)),
        (Config, "flat", Config.nodes),
        (Config, "pattern_structure", property(pattern_structure)),
        (Config, "HasField", has_field),
        (PatternNode, "HasField", node_has_field),
    ]
    for kind, name, member in members:
        add(kind, **{name: member})


_SPECS = "the element_spec of a reverb.TrajectoryDataset"


def _tf_dtypes(kind: type[SampleInfo]) -> SampleInfo:
    """Dtypes of the fields in datasets of TensorFlow."""
    need_tensorflow("SampleInfo.tf_dtypes()", _SPECS)
    import tensorflow as tf

    return kind(tf.uint64, tf.double, tf.int64, tf.double, tf.int32)


def _tf_shapes(kind: type[SampleInfo]) -> SampleInfo:
    """Shapes of the fields of a single sample."""
    need_tensorflow("SampleInfo.tf_shapes()", _SPECS)
    import tensorflow as tf

    return kind(*[tf.TensorShape([]) for _ in kind._fields])


def _is_expired(column: TrajectoryColumn) -> bool:
    """Whether it has a cell that the writer keeps no more."""
    span = column.span
    return bool(span.steps) and span.first < span.buffer.first_alive


def _running_ms(time: TableWorkerTime) -> int:
    """Time in which the table worked."""
    return time.sampling_ms + time.inserting_ms


def _dereference(handle: ReverbHandle) -> Client:
    return Client(handle.address.resolve(), secret=handle.address.secret())
