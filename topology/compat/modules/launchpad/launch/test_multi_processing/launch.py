"""`launchpad.launch.test_multi_processing.launch`."""

from typing import Any

from launch.launch_types import LaunchType
from launchpad.launch import worker_manager
from topology.compat.serialization import launch as _launch

__all__ = ["launch", "worker_manager"]


def launch(program: Any, test_case: Any = None, local_resources: Any = None, **options: Any) -> Any:
    """Launches with this launch type; see `launchpad.launch`."""
    return _launch(
        program, LaunchType.TEST_MULTI_PROCESSING, test_case=test_case, local_resources=local_resources, **options
    )
