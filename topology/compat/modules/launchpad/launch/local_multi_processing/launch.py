"""`launchpad.launch.local_multi_processing.launch`."""

from typing import Any

import topology
from launch.launch_types import LaunchType

__all__ = ["launch"]


def launch(program: Any, **options: Any) -> Any:
    """Launches with this launch type; see `launchpad.launch`."""
    return topology.launch(program, LaunchType.LOCAL_MULTI_PROCESSING, **options)
