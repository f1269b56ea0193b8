"""`reverb.rate_limiters`."""

from topology.nodes.replay.rate_limiters import MinSize, Queue, RateLimiter, SampleToInsertRatio, Stack

__all__ = ["MinSize", "Queue", "RateLimiter", "SampleToInsertRatio", "Stack"]
