"""Commands run side by side as Launchpad's launchers run them: each a node, so that its lines are marked and kept."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import topology
from launch.run import Run

__all__ = ["CommandToLaunch", "run_commands_locally"]


class CommandToLaunch(NamedTuple):
    """A command line, what it changes of the environment, the name of its group and its own in it."""

    command_as_list: Sequence[str]
    env_overrides: Mapping[str, Any]
    resource_name: str
    worker_name: str

    @property
    def title(self) -> str:
        """Both names."""
        return f"{self.resource_name}_{self.worker_name}"


def run_commands_locally(commands: Sequence[CommandToLaunch], terminal: str | None = None) -> Run:
    """Runs the commands as one program. One that fails stops the others.

    Raises:
        ValueError: a file cannot be executed. Nothing was started.
    """
    for command in commands:
        if not os.access(command.command_as_list[0], os.X_OK):
            raise ValueError(f"{command.command_as_list[0]!r} of {command.title} cannot be executed")
    program = topology.Program("commands")
    for command in commands:
        arguments = [str(part) for part in command.command_as_list]
        environment = {name: str(value) for name, value in command.env_overrides.items()}
        program.add_node(topology.PyNode(_run, arguments, environment), label=command.title)
    run: Run = topology.launch(program, "local_mp", terminal=terminal)
    return run


def _run(command: Sequence[str], environment: Mapping[str, str]) -> None:
    sys.exit(subprocess.run(command, env={**os.environ, **environment}, check=False).returncode)
