"""`reverb.cc.patterns_pb2`."""

from topology.compat.reverb.configs import Condition, PatternNode
from topology.compat.reverb.configs import Config as StructuredWriterConfig

__all__ = ["Condition", "PatternNode", "StructuredWriterConfig"]
