"""Keeps `run.json` true while a run goes on."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, final

from launch.plan import Plan
from launch.run_directory import RunDirectory, initial_state
from launch.supervisor import NodeRecord
from topology.clock import SYSTEM_CLOCK, Clock

__all__ = ["Recorder"]

_logger = logging.getLogger(__name__)


@final
class Recorder:
    """Writes the state of one run. Where that fails it warns once, and the run goes on; there may be room later."""

    def __init__(self, directory: RunDirectory, plan: Plan, clock: Clock = SYSTEM_CLOCK) -> None:
        self._directory = directory
        self._clock = clock
        self._warned = False
        self._end_state = "failed"
        self._state = initial_state(directory.run_id, plan.program, clock)
        self._state["launch_type"] = plan.options.launch_type
        self._state["seed"] = plan.options.seed
        self._state["mark"] = str(directory.path)
        self._state["resources"] = self._resources = list[dict[str, Any]]()
        self._nodes: list[dict[str, Any]] = [
            {
                "label": node.executable.label,
                "index": node.executable.index,
                "pid": None,
                "state": "pending",
                "exit_code": None,
                "restarts": 0,
                "max_restarts": node.policy.max_restarts,
                "failure": None,
            }
            for node in plan.nodes
        ]
        if plan.graph is not None:
            self._write("graph.json", plan.graph)

    def changed(self, state: str, records: Sequence[NodeRecord]) -> None:
        """Something changed in the run."""
        for entry, record in zip(self._nodes, records, strict=True):
            entry["state"] = record.state.value
            entry["exit_code"] = record.exit_code
            entry["restarts"] = record.restarts
            entry["failure"] = record.failure or None
            entry["pid"] = record.pid
        self._state["state"] = state if state in ("starting", "running") else "stopping"
        self._end_state = state
        self._save()

    def record(self, resource: Mapping[str, Any]) -> None:
        """Something was created that `undeploy` must find when this process has been killed."""
        self._resources.append(dict(resource))
        self._save()

    def ended(self, error: str | None, problems: Sequence[str] = (), *, state: str | None = None) -> None:
        """The run is over.

        Args:
            error: why it failed.
            problems: what could not be given back. Without any, the resources of the run are gone.
            state: that it ended in; None for the last that was told.
        """
        if not problems:
            self._resources.clear()
        self._state.update(state=state or self._end_state, ended=self._clock.time(), error=error)
        self._save()

    def _save(self) -> None:
        self._write("run.json", {**self._state, "nodes": self._nodes})

    def _write(self, name: str, value: object) -> None:
        try:
            self._directory.write_json(name, value)
        except OSError as error:
            if not self._warned:
                self._warned = True
                _logger.warning("%s cannot be written: %s. The program goes on.", self._directory.path / name, error)
