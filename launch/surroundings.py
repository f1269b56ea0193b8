"""What all nodes of one run share, and how it is given back: the run directory, the endpoints, the secret."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from launch import run_directory
from launch.endpoints import Endpoints
from launch.outcome import add_note
from launch.plan import Plan, PlannedNode
from launch.recorder import Recorder
from launch.rollback import Rollback
from launch.run_directory import RunDirectory
from launch.sweep import describe_directory
from topology.context import NodeContext, StopToken
from topology.errors import LaunchError

__all__ = ["Surroundings"]


@final
class Surroundings:
    """What all nodes of one run share: the run directory, endpoints, the secret."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.undo = Rollback()
        self.secret = secrets.token_bytes(32)
        self._temporary = _make_temporary() if plan.options.temporary and plan.options.run_directory is None else None
        self.directory = self._make_directory(plan)
        self.recorder = Recorder(self.directory, plan)
        try:
            if self._temporary is not None:
                self.record(describe_directory(self._temporary))
            self.endpoints = Endpoints(node.executable for node in plan.nodes)
            self.undo.push("the sockets of the run", self.endpoints.release)
            self.record(describe_directory(self.endpoints.directory))
        except BaseException as error:
            self.abandon(error)
            raise

    def record(self, resource: Mapping[str, Any]) -> None:
        """Notes down something that was created, so that `undeploy` finds it when this process has been killed.

        Args:
            resource: plain data with a `kind`. A "process" has a `pid` and a `create_time`, a "directory" a `path` and
                an `inode`; any other kind is handed to `Launcher.reclaim`.
        """
        self.recorder.record(resource)

    def _make_directory(self, plan: Plan) -> RunDirectory:
        path = plan.options.run_directory or self._temporary
        if path is None:
            return run_directory.create(None, plan.program)
        try:
            return run_directory.prepare(path, plan.program)
        except BaseException:
            self.remove_temporary()
            raise

    def context(self, node: PlannedNode, stop: StopToken) -> NodeContext:
        """The context of one node."""
        return NodeContext(
            program=self.plan.program,
            label=node.executable.label,
            index=node.executable.index,
            group_size=node.executable.group_size,
            launch_type=self.plan.options.launch_type,
            run_directory=self.directory.path,
            seed=node.seed,
            stop=stop,
            endpoints=self.endpoints.table,
            secret=self.secret,
        )

    @property
    def temporary_directories(self) -> tuple[Path, ...]:
        """What must go with the run, also when this process is killed."""
        return (self.endpoints.directory, *([] if self._temporary is None else [self._temporary]))

    def abandon(self, error: BaseException, *, cancelled: bool = False) -> list[str]:
        """The run was never started, because of `error`, which is told what could not be given back; so is the caller.

        Everything is undone, and the directory says why. One that was asked for is left as it was found, so that the
        same launch can be tried again.
        """
        problems = self.undo.run(failed=True)
        for problem in problems:
            add_note(error, problem)
        if self.plan.options.run_directory is not None and self.directory.is_new and not problems:
            self.directory.unmake()
            return problems
        interrupted = cancelled or isinstance(error, KeyboardInterrupt | SystemExit)
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        self.recorder.ended(
            "it was interrupted while it was starting" if interrupted else text,
            problems,
            state="stopped" if interrupted else "failed",
        )
        self.remove_temporary(problems)
        return problems

    def remove_temporary(self, problems: Sequence[str] = ()) -> None:
        """The directory of a test's run goes with it, unless it is needed for another try at `problems`."""
        if self._temporary is not None and not problems:
            shutil.rmtree(self._temporary, ignore_errors=True)


def _make_temporary() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="topology-run-"))
    except OSError as error:
        raise LaunchError(f"No directory for the run could be made: {error}. Make room, or set TMPDIR.") from error
