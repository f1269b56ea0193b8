"""Launchpad's settings for containers in the cloud: programs make them whatever they launch as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from topology.errors import LaunchError

__all__ = ["DockerConfig", "to_docker_executables"]


@dataclass
class DockerConfig:
    """What `xm_resources` maps a label to. Launches on this machine take and ignore it.

    Attributes:
        code_directory: what would be copied into the image.
        docker_requirements: file of the packages in the image.
        hw_requirements: of XManager.
        python_path: PYTHONPATH in the image.
    """

    code_directory: str | None = None
    docker_requirements: str | None = None
    hw_requirements: Any = None
    python_path: Sequence[str] | None = None


def to_docker_executables(nodes: Sequence[Any], label: str, docker_config: DockerConfig) -> NoReturn:
    """Refuses.

    Raises:
        LaunchError: always; says what to use.
    """
    raise LaunchError(
        f"No container images are made here, asked for the {len(nodes)} nodes of {label!r} with {docker_config!r}. "
        "Build an image with your program in it, and launch it inside as processes: lp.launch(program, 'local_mp')"
    )
