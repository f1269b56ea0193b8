"""What all nodes of one run share: the run directory, the endpoints, the secret."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import final

from launch import run_directory
from launch.endpoints import Endpoints
from launch.plan import Plan, PlannedNode
from launch.run_directory import RunDirectory
from topology.clock import SYSTEM_CLOCK
from topology.context import NodeContext, StopToken
from topology.errors import LaunchError

__all__ = ["Surroundings"]


@final
class Surroundings:
    """What all nodes of one run share: the run directory, endpoints, the secret."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._temporary: Path | None = None
        self.directory = self._make_directory(plan)
        try:
            self.endpoints = Endpoints(node.executable for node in plan.nodes)
        except BaseException as error:
            self.abandon(error)
            raise
        self.secret = secrets.token_bytes(32)

    def _make_directory(self, plan: Plan) -> RunDirectory:
        options = plan.options
        if options.run_directory is not None:
            return run_directory.prepare(options.run_directory, plan.program)
        if not options.temporary:
            return run_directory.create(None, plan.program)
        try:
            self._temporary = Path(tempfile.mkdtemp(prefix="topology-run-"))
        except OSError as error:
            raise LaunchError(f"No directory for the run could be made: {error}. Make room, or set TMPDIR.") from error
        try:
            return run_directory.prepare(self._temporary, plan.program)
        except BaseException:
            self.release()
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

    def abandon(self, error: BaseException) -> None:
        """The run was never started, because of `error`: its directory says so, and the rest is given back.

        A directory that was asked for is left as it was found, so that the same launch can be tried again.
        """
        if self.plan.options.run_directory is not None and self.directory.is_new:
            self.directory.unmake()
            self.release()
            return
        interrupted = isinstance(error, KeyboardInterrupt | SystemExit)
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        with contextlib.suppress(OSError):  # a full disk may be why it was not started
            self.directory.update_state(
                state="stopped" if interrupted else "failed",
                ended=SYSTEM_CLOCK.time(),
                error="it was interrupted while it was starting" if interrupted else text,
            )
        self.release()

    def release(self) -> None:
        """Gives back what the run does not leave behind."""
        if hasattr(self, "endpoints"):
            self.endpoints.release()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
