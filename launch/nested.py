"""Processes inside a node: what `NodeContext.run_in_processes` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from launch.engine import Engine
from launch.outcome import node_failed
from launch.output import OutputPump, Terminal
from launch.plan import LaunchOptions, Plan, PlannedNode
from launch.process_backend import ProcessBackend
from launch.python_process import PythonProcess
from launch.run_directory import RunDirectory
from launch.supervisor import RestartPolicy, StopRequested
from topology.context import NodeContext, StopToken, derive_seeds
from topology.errors import CourierError, ProgramError
from topology.executable import Executable

__all__ = ["run_nested"]

_NOTICE_SHARE = 0.8  # of the node's own notice: the rest is for the node to end after its processes


@final
@dataclass(frozen=True)
class _Inside:
    """The surroundings of processes inside a node: those of the node."""

    plan: Plan
    parent: NodeContext

    @property
    def directory(self) -> RunDirectory:
        if self.parent.run_directory is None:
            raise ProgramError(f"the node {self.parent.name} has no run directory for what it runs in processes")
        return RunDirectory(self.parent.run_directory)

    @property
    def temporary_directories(self) -> tuple[Path, ...]:
        return ()  # they are the run's

    def record(self, resource: Mapping[str, Any]) -> None:
        """Nothing: they carry the mark of the run, and descend from its nodes."""

    def context(self, node: PlannedNode, stop: StopToken) -> NodeContext:
        return NodeContext(
            program=self.parent.program,
            label=node.executable.label,
            index=node.executable.index,
            group_size=node.executable.group_size,
            launch_type=self.parent.launch_type,
            run_directory=self.parent.run_directory,
            seed=node.seed,
            stop=stop,
            endpoints=self.parent.endpoints,
            secret=self.parent.secret,
        )


def run_nested(executables: Sequence[Executable], parent: NodeContext, process: PythonProcess, notice_s: float) -> None:
    """Runs executables as processes of a node and blocks until all have ended; the program's stop ends them.

    Raises:
        NodeFailed: one failed more often than its `max_restarts`; the others have been stopped.
    """
    plan = _plan(executables, parent, process, notice_s)
    engine = Engine(
        [node.policy for node in plan.nodes],
        plan.options.termination_notice_s,
        on_stop=_ignore,
        on_change=lambda: None,
    )
    backend = ProcessBackend(
        _Inside(plan, parent), OutputPump(Terminal()), engine.post, parent.stop.request, StopToken()
    )
    forget = parent.stop.on_stop(lambda: engine.post(StopRequested("the program stops")))
    try:
        engine.run(backend)
    finally:
        forget()
        backend.close()
    for number, outcome in engine.supervisor.reported_failures():
        executable = plan.nodes[number].executable
        # So that the node's own failure counts as secondary when this one does.
        cause = CourierError(outcome.message) if outcome.secondary else None
        raise node_failed(executable.label, executable.index, outcome) from cause


def _ignore(reason: str) -> None:
    del reason


def _plan(executables: Sequence[Executable], parent: NodeContext, process: PythonProcess, notice_s: float) -> Plan:
    seeds = derive_seeds(parent.seed, [executable.name for executable in executables])
    return Plan(
        program=parent.program,
        options=LaunchOptions(launch_type=parent.launch_type, termination_notice_s=notice_s * _NOTICE_SHARE),
        nodes=tuple(
            PlannedNode(
                executable=executable,
                process=process,
                policy=RestartPolicy(max_restarts=executable.max_restarts),
                seed=seeds[executable.name],
            )
            for executable in executables
        ),
    )
