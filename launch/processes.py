"""Runs every node as a process of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

from launch.checked import checked_names
from launch.deployment import Deployment
from launch.engine import Backend
from launch.launch_types import LaunchType
from launch.launcher import Launcher
from launch.output import OutputPump
from launch.plan import LaunchOptions, Plan, PlannedNode
from launch.process_backend import ProcessBackend
from topology.program import Program

__all__ = ["Processes"]


@final
@dataclass(frozen=True, kw_only=True)
class Processes(Launcher):
    """Launches every node as a process of its own.

    Args:
        preload: modules that are imported once and shared by all nodes, e.g. ("numpy",). They must not start threads
            when they are imported. None: the modules of the node kinds in the program.
    """

    launch_type: ClassVar[str] = LaunchType.LOCAL_MULTI_PROCESSING.value

    preload: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.preload is not None:
            object.__setattr__(self, "preload", checked_names("Processes(preload=...)", self.preload))

    def plan(self, program: Program, options: LaunchOptions | None = None) -> Plan:
        plan = super().plan(program, options)
        return replace(plan, preload=_modules_of(plan.nodes) if self.preload is None else self.preload)

    def open_backend(self, deployment: Deployment) -> Backend:
        return ProcessBackend(
            deployment,
            OutputPump(deployment.terminal),
            deployment.post,
            deployment.request_stop,
            deployment.cancelled,
        )


def _modules_of(nodes: Sequence[PlannedNode]) -> tuple[str, ...]:
    kinds = {type(getattr(node.executable.entry, "__self__", None)).__module__ for node in nodes}
    return tuple(sorted(kinds - {"builtins", "__main__"}))
