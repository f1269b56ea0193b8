"""`launchpad.launch.xm_docker.launch`."""

from typing import Any

from topology.compat.serialization import launch as _launch

__all__ = ["launch"]


def launch(program: Any, launch_type: Any = "vertex_ai", xm_resources: Any = None) -> Any:
    """Refuses, as `launchpad.launch` does these launch types, and says what to use."""
    return _launch(program, launch_type, xm_resources)
