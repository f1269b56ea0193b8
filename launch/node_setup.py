"""What the process of a node is told, made of a plan in the launcher's process."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from launch.child import Setup
from launch.debugging import terminal_for
from launch.fork_client import module_path
from launch.launch_types import flags_are_parsed
from launch.plan import Plan, PlannedNode
from launch.run_directory import RunDirectory
from topology.context import NodeContext, StopToken
from topology.serialization import dumps

__all__ = ["ProcessSurroundings", "file_with", "make_setup"]


class ProcessSurroundings(Protocol):
    """What the backend asks of a run's `Deployment`."""

    @property
    def plan(self) -> Plan: ...

    @property
    def directory(self) -> RunDirectory: ...

    @property
    def temporary_directories(self) -> tuple[Path, ...]: ...

    def context(self, node: PlannedNode, stop: StopToken) -> NodeContext: ...

    def record(self, resource: Mapping[str, Any]) -> None: ...


def make_setup(surroundings: ProcessSurroundings, node: PlannedNode) -> Setup:
    """What `launch.child.main` is told to run this node, for as many processes as it needs."""
    context = surroundings.context(node, StopToken())
    own = {"stop", "run_in_processes"}
    parsed = flags_are_parsed()
    return Setup(
        context={name: getattr(context, name) for name in NodeContext.__dataclass_fields__ if name not in own},
        payload=dumps((sys.modules["absl.flags"].FLAGS if parsed else None, node.executable.entry)),
        module_path=module_path(),
        argv=[*sys.argv, *node.process.arguments()],
        parse_flags=parsed,
        directory=_current_directory(),
        notice_s=surroundings.plan.options.termination_notice_s,
        process=node.process,
        terminal=terminal_for(node.executable.label, node.name),
    )


def _current_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "."  # it has been removed; the nodes inherit what is left of it


def file_with(setup: Setup, restarts: int) -> int:
    """An open file without a name, for `launch.child.main`.

    Args:
        setup: of the node.
        restarts: as `Backend.start` was told; see `NodeContext.seed`.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("topology-node")
    else:
        with tempfile.TemporaryFile() as temporary:
            descriptor = os.dup(temporary.fileno())
    with open(descriptor, "wb", closefd=False) as file:
        file.write(setup.after_restarts(restarts).dumps())
    return descriptor
