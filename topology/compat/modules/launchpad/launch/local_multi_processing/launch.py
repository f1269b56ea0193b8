"""`launchpad.launch.local_multi_processing.launch`."""

from typing import Any

from launch.launch_types import LaunchType
from launchpad.launch import worker_manager
from topology.compat.serialization import launch as _launch

__all__ = ["launch", "worker_manager"]


def launch(program: Any, local_resources: Any = None, terminal: str | None = None, **options: Any) -> Any:
    """Launches with this launch type; see `launchpad.launch`."""
    return _launch(
        program, LaunchType.LOCAL_MULTI_PROCESSING, local_resources=local_resources, terminal=terminal, **options
    )
