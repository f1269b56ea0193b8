"""`launchpad.launch.test_multi_threading.launch`."""

from typing import Any

from launch.launch_types import LaunchType
from launchpad.launch import worker_manager
from topology.compat.serialization import launch as _launch

__all__ = ["launch", "worker_manager"]


def launch(program: Any, test_case: Any = None, serialize_py_nodes: bool | None = None, **options: Any) -> Any:
    """Launches with this launch type; see `launchpad.launch`."""
    return _launch(
        program, LaunchType.TEST_MULTI_THREADING, test_case=test_case, serialize_py_nodes=serialize_py_nodes, **options
    )
