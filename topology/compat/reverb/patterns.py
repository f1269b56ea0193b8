"""Patterns of structured writers, as Reverb has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from topology.compat.reverb.signatures import shown
from topology.nodes.replay import structured_writer

__all__ = ["infer_signature"]


def infer_signature(configs: Sequence[structured_writer.Config], step_spec: Any) -> Any:
    """The signature of a table that gets the items of these configs; of `tf.TensorSpec` where TensorFlow is in use.

    Args:
        configs: all the configs for the table.
        step_spec: the steps, as arrays or specs.

    Raises:
        ValueError: there is no config; or they differ in table, structure, dtype, rank or shape of a step.
    """
    return shown(structured_writer.infer_signature(configs, step_spec))
