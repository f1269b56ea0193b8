"""How a run and its workers are, as data: of a run of this process, or read from a run directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from launch.plan import PlannedNode
from launch.supervisor import NodeRecord

__all__ = ["RunStatus", "WorkerStatus"]


@final
@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """One node as a launcher runs it.

    Attributes:
        label: group of the node.
        index: its place there.
        state: pending, running, restarting, finished, failed or stopped.
        pid: its process, or the newest of those that it had; None for a thread.
        exit_code: of its process (negative: the signal), or what it would have been; None while it runs.
        restarts: how often it was started again so far.
        failure: what it failed with last, whether it was started again or not; None while it did not.
    """

    label: str
    index: int
    state: str
    pid: int | None = None
    exit_code: int | None = None
    restarts: int = 0
    failure: str | None = None

    @classmethod
    def of(cls, node: PlannedNode, record: NodeRecord) -> WorkerStatus:
        """From what the supervisor knows."""
        return cls(
            label=node.executable.label,
            index=node.executable.index,
            state=record.state.value,
            pid=record.pid,
            exit_code=record.exit_code,
            restarts=record.restarts,
            failure=record.failure or None,
        )

    @property
    def name(self) -> str:
        """`label/index`."""
        return f"{self.label}/{self.index}"


@final
@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """A run at one moment.

    Attributes:
        run_id: name of the run.
        program: name of its program.
        launch_type: what it was launched as.
        state: starting, running or stopping; then finished, failed or stopped; lost when its launcher was killed.
        error: why it failed; None while nothing did.
        workers: in the order of the program.
    """

    run_id: str
    program: str
    launch_type: str
    state: str
    error: str | None
    workers: tuple[WorkerStatus, ...]

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> RunStatus:
        """From the content of `run.json`."""
        return cls(
            run_id=str(record.get("run_id", "")),
            program=str(record.get("program", "")),
            launch_type=str(record.get("launch_type", "")),
            state=str(record["state"]),
            error=record.get("error"),
            workers=tuple(
                WorkerStatus(
                    label=node["label"],
                    index=node["index"],
                    state=node["state"],
                    pid=node.get("pid"),
                    exit_code=node.get("exit_code"),
                    restarts=node.get("restarts", 0),
                    failure=node.get("failure"),
                )
                for node in record.get("nodes") or ()
            ),
        )

    def __getitem__(self, name: str) -> WorkerStatus:
        """The worker called `label/index`. Raises `KeyError`."""
        return next((worker for worker in self.workers if worker.name == name), None) or _no_worker(name)

    def __str__(self) -> str:
        lines = [f"{self.run_id}: {self.state}"]
        for worker in self.workers:
            ended = "" if worker.exit_code is None else f", exit code {worker.exit_code}"
            again = f", {worker.restarts} restarts" if worker.restarts else ""
            why = f" ({worker.failure})" if worker.failure else ""
            lines.append(f"  {worker.name}: {worker.state}{ended}{again}{why}")
        return "\n".join(lines)


def _no_worker(name: str) -> WorkerStatus:
    raise KeyError(name)
