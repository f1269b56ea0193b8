"""The orchestrator of programs: what every platform's launcher does, and what makes it a launcher of its platform."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from launch.deployment import Deployment
from launch.engine import Backend
from launch.monitor import Monitor
from launch.plan import LaunchOptions, Plan, make_plan
from launch.run import Run
from launch.run_directory import RunDirectory
from launch.surroundings import Surroundings
from launch.terminals import open_terminal
from launch.undeploy import Undeployed, undeploy
from topology.errors import LaunchError
from topology.program import Program

__all__ = ["Launcher"]


class Launcher(abc.ABC):
    """A platform that programs run on. Its own object is its configuration.

    A launcher of a new platform says how nodes are run there (`open_backend`) and, if it creates what outlives its
    process, how that is given back (`reclaim`). Supervision, restarts, the stop, the run directory and the rollback are
    the same for all. Packages offer launchers by the entry point group `topology.launchers`; each is called without
    arguments and then selected by its name.

    Attributes:
        launch_type: what nodes see as the launch type in their context, when the launcher was not asked for by name;
            the name of the class where that says nothing.
    """

    launch_type: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.launch_type = cls.launch_type or cls.__name__

    def plan(self, program: Program, options: LaunchOptions | None = None) -> Plan:
        """Validates the program and says what would run, as data. Starts nothing; equal input gives an equal plan.

        Raises:
            ProgramError: the program or a label of the options is wrong; lists every fault.
        """
        return make_plan(program, options or LaunchOptions(launch_type=self.launch_type), serialize=True)

    def deploy(self, plan: Plan) -> Run:
        """Starts everything and returns while it runs. A plan may be deployed any number of times.

        When a part cannot be started, or this is interrupted, whatever had been created is given back, the newest
        first; what could not be is noted at the error that is raised, all of it.

        Raises:
            LaunchError: the platform refuses, or the run was undeployed meanwhile. Nothing is left running.
        """
        surroundings = Surroundings(plan)
        try:
            run = Run(surroundings)
        except BaseException as error:
            surroundings.abandon(error)
            raise
        try:
            terminal = open_terminal(plan.options.terminal, surroundings.directory, plan, surroundings.undo)
            backend = self.open_backend(run.deployment(terminal))
            surroundings.undo.push("the platform of its nodes", backend.close)
            return run.start(backend)
        except BaseException as error:
            if (instead := run.abandon(error)) is not None:
                raise instead from error
            raise

    @abc.abstractmethod
    def open_backend(self, deployment: Deployment) -> Backend:
        """Prepares the platform for the nodes of a plan; none is started yet.

        Raises:
            LaunchError: the platform refuses. What had been created by then has been given back, or is by the steps of
                `deployment.undo`.
        """

    def monitor(self, run: Run | RunDirectory | Path | str) -> Monitor:
        """Looks at a run: the state of every worker, exit codes, restarts, logs.

        Args:
            run: of this process; or the directory of any run, its path, its name, or `latest`.

        Raises:
            LaunchError: there is no such run.
        """
        return Monitor(run)

    def undeploy(
        self, run: Run | RunDirectory | Path | str, *, now: bool = False, timeout_s: float = 60.0
    ) -> Undeployed:
        """Ends a run, also one that is starting, and blocks until all that it had is given back. Idempotent.

        After a crash of the launcher it finds what is left: processes, sockets, temporary directories, shared memory,
        and what `reclaim` knows. It tries everything, and raises for all that is left in the end.

        Args:
            run: of this process; or the directory of any run, its path, its name, or `latest`.
            now: give it 2 s to end by itself, then kill it.
            timeout_s: how long to wait for a graceful end.

        Raises:
            LaunchError: there is no such run; it has not ended in time, is another user's, or is on another machine.
            UndeployFailed: it has ended, and some of what it had could not be given back.
        """
        return undeploy(run, now=now, timeout_s=timeout_s, reclaim=self.reclaim)

    def reclaim(self, resource: Mapping[str, Any]) -> None:
        """Gives back one resource that a run of this launcher had recorded. It may be gone already: then do nothing.

        Raises:
            LaunchError: it cannot be given back, or is of a kind that this launcher does not create.
        """
        raise LaunchError(
            f"{type(self).__name__} does not know what a {resource.get('kind')!r} is: undeploy the run with the "
            "launcher that created it"
        )
