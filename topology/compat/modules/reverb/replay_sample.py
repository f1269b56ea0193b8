"""`reverb.replay_sample`."""

from topology.nodes.replay.info import ReplaySample, SampleInfo

__all__ = ["ReplaySample", "SampleInfo"]
