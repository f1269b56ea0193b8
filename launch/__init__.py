"""Deploys programs: as threads, as processes, on clusters.

    import launch
    run = launch.launch(program, "local_mp")   # also reached as topology.launch
    run.wait()

This package knows the kernel (`topology.*`) only: never a node kind, never an agent. What it exports is loaded when it
is asked for: the processes of nodes import one small part of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launch.accelerators import gpu_map
    from launch.api import launch
    from launch.launch_types import LaunchType
    from launch.launcher import Launcher
    from launch.monitor import Monitor
    from launch.plan import LaunchOptions, Plan
    from launch.processes import Processes
    from launch.python_process import PythonProcess
    from launch.rollback import UndeployFailed
    from launch.run import Run
    from launch.threads import Threads

__all__ = [
    "LaunchOptions",
    "LaunchType",
    "Launcher",
    "Monitor",
    "Plan",
    "Processes",
    "PythonProcess",
    "Run",
    "Threads",
    "UndeployFailed",
    "gpu_map",
    "launch",
]

_HOMES = {
    "LaunchOptions": "launch.plan",
    "LaunchType": "launch.launch_types",
    "Launcher": "launch.launcher",
    "Monitor": "launch.monitor",
    "Plan": "launch.plan",
    "Processes": "launch.processes",
    "PythonProcess": "launch.python_process",
    "Run": "launch.run",
    "Threads": "launch.threads",
    "UndeployFailed": "launch.rollback",
    "gpu_map": "launch.accelerators",
    "launch": "launch.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'launch' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
