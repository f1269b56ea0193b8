"""`launchpad.context`: launch types, and what a node knows of its launch."""

from typing import Any

from launch.launch_types import LaunchType
from topology.compat.launch_context import LaunchContext, get_context, set_context

__all__ = ["LaunchContext", "LaunchType", "get_context", "is_local_launch", "is_local_launch_or_test", "set_context"]

_TESTS = {LaunchType.TEST_MULTI_THREADING, LaunchType.TEST_MULTI_PROCESSING}
_LOCAL = {LaunchType.LOCAL_MULTI_THREADING, LaunchType.LOCAL_MULTI_PROCESSING}


def is_local_launch(launch_type: Any) -> bool:
    """Whether it deploys on this machine, tests apart."""
    return LaunchType(getattr(launch_type, "value", launch_type)) in _LOCAL


def is_local_launch_or_test(launch_type: Any) -> bool:
    """Whether it deploys on this machine, tests included."""
    return LaunchType(getattr(launch_type, "value", launch_type)) in _LOCAL | _TESTS
