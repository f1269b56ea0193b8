"""What a launcher is about to do, as data: the same program and options give an equal plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from launch.checked import checked_count, checked_mapping, checked_seconds, checked_whole
from launch.python_process import PythonProcess
from launch.supervisor import RestartPolicy
from topology.context import derive_seeds
from topology.executable import Executable
from topology.program import Program

__all__ = ["DEFAULT_NOTICE_S", "LaunchOptions", "Plan", "PlannedNode", "make_plan"]

DEFAULT_NOTICE_S = 10.0


@final
@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """What `launch()` was asked for, beside the program and the launcher.

    Attributes:
        launch_type: what nodes see in their context, e.g. "local_mp".
        resources: how the processes of a group are started, by label.
        restarts: how often a failed node of a group is started again, by label; adds to what the node itself says.
        seed: seed of the run; every node's own seed derives from it.
        termination_notice_s: how long nodes may take to end after a stop.
        run_directory: where the run keeps its files; None for a new directory under the default base.
        temporary: the run directory goes when the run ends.
        terminal: where output goes: one of `launch.terminals.TERMINALS`; None for the environment's choice.
        check_serializable: refuse nodes that cannot travel, also where they need not.
    """

    launch_type: str
    resources: Mapping[str, PythonProcess] = field(default_factory=dict)
    restarts: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    termination_notice_s: float = DEFAULT_NOTICE_S
    run_directory: Path | None = None
    temporary: bool = False
    terminal: str | None = None
    check_serializable: bool = False

    def __post_init__(self) -> None:
        restarts = checked_mapping("restarts", self.restarts, "labels and whole numbers")
        counts = {label: checked_count(f"restarts[{label!r}]", count) for label, count in restarts.items()}
        object.__setattr__(self, "restarts", counts)
        object.__setattr__(self, "seed", checked_whole("seed", self.seed))
        notice_s = checked_seconds("termination_notice_s", self.termination_notice_s)
        object.__setattr__(self, "termination_notice_s", notice_s)


@final
@dataclass(frozen=True, kw_only=True)
class PlannedNode:
    """One node: what to run, how to start it, and its seed."""

    executable: Executable
    process: PythonProcess = field(default_factory=PythonProcess)
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    seed: int = 0

    @property
    def name(self) -> str:
        """`label/index`."""
        return self.executable.name

    def to_dict(self) -> dict[str, Any]:
        """Everything but the node's code as plain data."""
        return {
            "name": self.name,
            "seed": self.seed,
            "max_restarts": self.policy.max_restarts,
            "listens_at": [address.service for address in self.executable.addresses],
            "args": self.process.arguments(),
            "interpreter_args": self.process.interpreter_options(),
            "env": dict(self.process.env),
        }

    def __str__(self) -> str:
        data = self.to_dict()
        told = [f"{key} {data[key]}" for key in ("args", "interpreter_args", "env") if data[key]]
        if self.policy.max_restarts:
            told.append(f"at most {self.policy.max_restarts} restarts")
        return ", ".join([self.name, f"seed {self.seed}", *told])


@final
@dataclass(frozen=True, kw_only=True)
class Plan:
    """All nodes of one run.

    Attributes:
        program: its name.
        options: what was asked for.
        nodes: in the order of the program.
        preload: modules that the nodes' processes share.
        graph: what the run directory keeps of the program.
    """

    program: str
    options: LaunchOptions
    nodes: tuple[PlannedNode, ...]
    preload: tuple[str, ...] = ()
    graph: Mapping[str, Any] | None = field(default=None, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the nodes' code as plain data, e.g. for JSON."""
        options = self.options
        return {
            "program": self.program,
            "launch_type": options.launch_type,
            "seed": options.seed,
            "termination_notice_s": options.termination_notice_s,
            "run_directory": None if options.run_directory is None else str(options.run_directory),
            "terminal": options.terminal,
            "preload": list(self.preload),
            "nodes": [node.to_dict() for node in self.nodes],
        }

    def __str__(self) -> str:
        options = self.options
        where = "a directory that goes with it" if options.temporary else options.run_directory or "a new directory"
        lines = [
            f"plan of {self.program!r} as {options.launch_type}, in {where}",
            f"seed {options.seed}, {options.termination_notice_s:g} s of notice before a stop is forced",
            *([f"imported once for all: {', '.join(self.preload)}"] if self.preload else []),
            *(f"  {node}" for node in self.nodes),
        ]
        return "\n".join(lines)


def make_plan(program: Program, options: LaunchOptions, *, serialize: bool) -> Plan:
    """The plan of any launcher on this machine.

    Raises:
        ProgramError: the program or a label of the options is wrong; lists every fault.
    """
    program.validate(serialize=serialize, labels=[*options.resources, *options.restarts])
    executables = program.executables()
    seeds = derive_seeds(options.seed, [executable.name for executable in executables])
    return Plan(
        program=program.name,
        options=options,
        graph=program.graph().to_dict(),
        nodes=tuple(
            PlannedNode(
                executable=executable,
                process=options.resources.get(executable.label, PythonProcess()),
                policy=RestartPolicy(max_restarts=executable.max_restarts + options.restarts.get(executable.label, 0)),
                seed=seeds[executable.name],
            )
            for executable in executables
        ),
    )
