"""`launch()`: the front door of this package."""

from __future__ import annotations

import math
import os
import unittest
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.checked import checked_mapping
from launch.import_guard import refuse_while_importing
from launch.launch_types import LaunchType, flag_value
from launch.launcher import Launcher
from launch.launchers import find_launcher
from launch.plan import DEFAULT_NOTICE_S, LaunchOptions
from launch.python_process import PythonProcess
from launch.run import Run
from topology.errors import LaunchError, ProgramError
from topology.program import Program

__all__ = ["launch"]

_TESTS = frozenset(kind.value for kind in LaunchType if kind.is_test)


def launch(
    programs: Program | Sequence[Program],
    launch_type: LaunchType | str | Launcher | None = None,
    xm_resources: object = None,
    local_resources: Mapping[str, PythonProcess | Mapping[str, Any]] | None = None,
    test_case: unittest.TestCase | None = None,
    terminal: str | None = None,
    *,
    serialize_py_nodes: bool | None = None,
    controller_xm_requirements: object = None,
    run_directory: str | Path | None = None,
    seed: int = 0,
    termination_notice_s: float | None = None,
    restarts: Mapping[str, int] | None = None,
) -> Run:
    """Deploys a program and returns while it runs.

    Example:
        >>> import topology as lp
        >>> program = lp.make_program(lp.PyNode(print, "hello"))
        >>> launch(program, "test_mt").wait()
        hello
        True

    Args:
        programs: the program, or a list with one.
        launch_type: `LaunchType`, its value ("local_mt", "local_mp", "test_mt", "test_mp"), the name of a launcher
            that another package offers, or a launcher such as `Processes(preload=("numpy",))`. None is the flag
            --lp_launch_type where absl has parsed its flags, else local_mt.
        xm_resources: accepted as Launchpad's programs give it; means nothing on one machine.
        local_resources: by label, how the processes of that group are started.
        test_case: stops the program when this test ends, which then fails if a node has failed and `wait` was not
            asked.
        terminal: where output goes; see `launch.terminals`. None: $LAUNCHPAD_LAUNCH_LOCAL_TERMINAL, else this terminal.
        serialize_py_nodes: True refuses nodes that could not travel to another process, also where they need not.
            None: for test_mt.
        controller_xm_requirements: as xm_resources.
        run_directory: where the run keeps its files; None for a new directory. One of a run that has ended is gone on
            with, as far as the program's nodes do so.
        seed: of the run. Every node's own seed derives from it.
        termination_notice_s: how long nodes may take to end after a stop; None: --lp_termination_notice_secs, else 10.
        restarts: by label, how often a failed node is started again before the failure counts.

    Raises:
        ProgramError: the program or a label is wrong; lists every fault. Nothing was started.
        LaunchError: the platform refused. Nothing is left running.
    """
    del xm_resources, controller_xm_requirements
    refuse_while_importing()
    launcher, kind = find_launcher(launch_type)
    if termination_notice_s is None:
        notice = flag_value("lp_termination_notice_secs")
        termination_notice_s = math.inf if notice is not None and notice < 0 else notice
    if test_case is not None and not hasattr(test_case, "addCleanup"):
        raise LaunchError(f"test_case is a unittest.TestCase, which stops the program at its end; got {test_case!r}")
    resources = checked_mapping("local_resources", local_resources, "labels and PythonProcess(...)")
    options = LaunchOptions(
        launch_type=kind,
        resources={label: PythonProcess.of(value) for label, value in resources.items()},
        restarts=checked_mapping("restarts", restarts, "labels and whole numbers"),
        seed=seed,
        termination_notice_s=DEFAULT_NOTICE_S if termination_notice_s is None else termination_notice_s,
        run_directory=_directory(run_directory),
        temporary=kind in _TESTS,
        terminal=terminal,
        check_serializable=kind == LaunchType.TEST_MULTI_THREADING
        if serialize_py_nodes is None
        else serialize_py_nodes,
    )
    run = launcher.deploy(launcher.plan(_one_program(programs), options))
    if test_case is not None:
        test_case.addCleanup(_end_with_test, run)
    return run


def _end_with_test(run: Run) -> None:
    """Stops the program; a failure of a node that nobody has been told of fails the test."""
    run.stop("the test ended")
    run.wait()


def _directory(path: str | Path | None) -> Path | None:
    if path is None:
        return None
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise LaunchError(f"run_directory is the path of a directory, or None for a new one; got {path!r}")
    return Path(path).expanduser().absolute()


def _one_program(programs: Program | Sequence[Program]) -> Program:
    if isinstance(programs, Program):
        return programs
    found = list(programs) if isinstance(programs, Iterable) else [programs]
    if len(found) == 1 and isinstance(found[0], Program):
        return found[0]
    raise ProgramError(
        f"launch() takes one program, or a list with one, got {programs!r}: call launch() once for each; "
        "programs in one process do not disturb one another"
    )
