"""What a launcher is given to make a backend of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from launch.output import Terminal
from launch.plan import Plan, PlannedNode
from launch.run_directory import RunDirectory
from launch.supervisor import Event
from launch.surroundings import Surroundings
from topology.context import NodeContext, StopToken

__all__ = ["Deployment"]


@final
@dataclass(frozen=True, kw_only=True)
class Deployment:
    """One deployment of a plan, as far as the launcher's backend goes.

    Attributes:
        surroundings: what all nodes share.
        terminal: takes what nodes print, beside their logs; None when only the logs do.
        post: takes the events of the nodes, from any thread: `Started`, and `Ended` once for every start.
        request_stop: to be called with a reason when a node asks for the stop.
        cancelled: set when the run is to be undeployed before it has been deployed.
    """

    surroundings: Surroundings
    terminal: Terminal | None
    post: Callable[[Event], None]
    request_stop: Callable[[str], None]
    cancelled: StopToken

    @property
    def plan(self) -> Plan:
        """What is deployed. Nodes go by their number in it."""
        return self.surroundings.plan

    @property
    def directory(self) -> RunDirectory:
        """Where the run keeps its files."""
        return self.surroundings.directory

    @property
    def temporary_directories(self) -> tuple[Path, ...]:
        """What must go with the run, also when this process is killed."""
        return self.surroundings.temporary_directories

    def context(self, node: PlannedNode, stop: StopToken) -> NodeContext:
        """The context of one node, in which its entry is to be called."""
        return self.surroundings.context(node, stop)

    def record(self, resource: Mapping[str, Any]) -> None:
        """Notes down something that was created outside this process, so that `undeploy` finds it after a crash.

        Best before it is created. What a backend has created it gives back itself, in `close`, which is called in any
        case; or a step of `undo` does, for what comes into being before there is a backend.

        Args:
            resource: plain data with a `kind`. A "process" has a `pid` and a `create_time`, a "directory" a `path` and
                an `inode`; any other kind is handed to `Launcher.reclaim`.
        """
        self.surroundings.record(resource)

    def undo(self, what: str, step: Callable[[], object]) -> None:
        """Adds a step that gives something back: when the run ends, or could not be deployed, the newest step first."""
        self.surroundings.undo.push(what, step)
