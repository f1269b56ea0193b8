"""`reverb.errors`."""

from topology.errors import ReplayDeadlineExceeded as DeadlineExceededError
from topology.errors import ReplayError as ReverbError

__all__ = ["DeadlineExceededError", "ReverbError"]
