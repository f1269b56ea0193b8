"""Runs every node as a process of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from launch.checked import checked_names
from launch.output import OutputPump
from launch.plan import LaunchOptions, Plan, PlannedNode, make_plan
from launch.process_backend import ProcessBackend
from launch.run import Run
from launch.surroundings import Surroundings
from launch.terminals import open_terminal
from topology.program import Program

__all__ = ["Processes"]


@final
@dataclass(frozen=True, kw_only=True)
class Processes:
    """Launches every node as a process of its own.

    Args:
        preload: modules that are imported once and shared by all nodes, e.g. ("numpy",). They must not start threads
            when they are imported. None: the modules of the node kinds in the program.
    """

    preload: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.preload is not None:
            object.__setattr__(self, "preload", checked_names("Processes(preload=...)", self.preload))

    def plan(self, program: Program, options: LaunchOptions) -> Plan:
        plan = make_plan(program, options, serialize=True)
        return replace(plan, preload=_modules_of(plan.nodes) if self.preload is None else self.preload)

    def deploy(self, plan: Plan) -> Run:
        surroundings = Surroundings(plan)
        try:
            run = Run(surroundings)
            terminal = open_terminal(plan.options.terminal, surroundings.directory, plan)
            backend = ProcessBackend(surroundings, OutputPump(terminal), run.engine.post, run.post_stop)
        except BaseException as error:
            surroundings.abandon(error)
            raise
        return run.start(backend)


def _modules_of(nodes: Sequence[PlannedNode]) -> tuple[str, ...]:
    kinds = {type(getattr(node.executable.entry, "__self__", None)).__module__ for node in nodes}
    return tuple(sorted(kinds - {"builtins", "__main__"}))
