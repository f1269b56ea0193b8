"""`launchpad.nodes.python.xm_docker`."""

from topology.compat.docker import DockerConfig, to_docker_executables

__all__ = ["DockerConfig", "to_docker_executables"]
