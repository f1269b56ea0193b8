"""`reverb.structured_writer`, which is also `reverb.structured`."""

from collections.abc import Callable
from typing import TypeAlias

from topology.compat.reverb.configs import Config
from topology.compat.reverb.patterns import infer_signature
from topology.compat.reverb.writers import StructuredWriter
from topology.nodes.replay.structured_writer import (
    Condition,
    Pattern,
    ReferenceStep,
    create_config,
    create_reference_step,
    pattern_from_transform,
    td_error,
    unpack_pattern,
)

__all__ = [
    "Condition",
    "Config",
    "Pattern",
    "PatternTransform",
    "ReferenceStep",
    "StructuredWriter",
    "create_config",
    "create_reference_step",
    "infer_signature",
    "pattern_from_transform",
    "td_error",
    "unpack_pattern",
]

PatternTransform: TypeAlias = Callable[[ReferenceStep], Pattern]
