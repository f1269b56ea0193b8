"""Ends a run and gives back all that it had: one of this process, of another, or one whose launcher has been killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from launch.process_info import create_time
from launch.rollback import UndeployFailed
from launch.run import Run, run_in
from launch.run_control import find_run
from launch.run_directory import ENDED_STATES, RunDirectory
from launch.supervisor import ABANDON_S
from launch.sweep import Sweep
from launch.watch import LOST, read_state
from topology.clock import SYSTEM_CLOCK, Clock, Deadline
from topology.errors import LaunchError

__all__ = ["Undeployed", "undeploy"]

_NOW_S = 2.0
_KILL_S = ABANDON_S + 3.0  # the launcher may give up on a node, and then writes how the run ended
_POLL_S = 0.1  # another process's files have no event to wait for


@final
@dataclass(frozen=True, kw_only=True)
class Undeployed:
    """How a run has ended, and what was found of it although its launcher was gone.

    Attributes:
        state: finished, failed, stopped; or lost when its launcher was killed.
        processes: how many were left, and have been ended.
        removed: directories and shared memory that were left, and have been removed.
    """

    state: str
    processes: int = 0
    removed: tuple[str, ...] = ()

    def __str__(self) -> str:
        left = [f"{self.processes} processes that were left have been ended"] if self.processes else []
        left += [f"removed {path}" for path in self.removed]
        return "; ".join([self.state, *left])


def undeploy(
    run: Run | RunDirectory | Path | str,
    *,
    now: bool = False,
    timeout_s: float = 60.0,
    reclaim: Callable[[Mapping[str, Any]], object],
    clock: Clock = SYSTEM_CLOCK,
) -> Undeployed:
    """Does what `Launcher.undeploy` says.

    Args:
        run: of this process; or the directory of any run, its path, its name, or `latest`.
        now: give it 2 s to end by itself, then kill it.
        timeout_s: how long to wait for a graceful end.
        reclaim: gives back one resource of a kind that only the launcher of the run knows.
        clock: where the time comes from.

    Raises:
        LaunchError: it has not ended in time, belongs to another user, or runs on another machine.
        UndeployFailed: it has ended, and some of what it had is left: all of that is listed.
    """
    own = run if isinstance(run, Run) else None
    if isinstance(run, Run):
        directory = RunDirectory(run.run_directory)
    else:
        directory = run if isinstance(run, RunDirectory) else find_run(str(run))
        own = run_in(directory.path)
    if own is not None:
        _stop_own(own, now=now, timeout_s=timeout_s)
        if not own.problems:
            return Undeployed(state=own.state)
    done = _Elsewhere(directory, reclaim, clock).undeploy(now=now, timeout_s=timeout_s)
    if own is not None:
        own.problems.clear()
    return done


def _stop_own(run: Run, *, now: bool, timeout_s: float) -> None:
    if run.stop("the run was undeployed", timeout=_NOW_S if now else timeout_s):
        return
    if now:
        run.interrupt("the run was undeployed", now=True)
    if not (now and run.wait(timeout=_KILL_S, raise_error=False)):
        raise _has_not_ended(run.run_id, _KILL_S if now else timeout_s)


@final
class _Elsewhere:
    """A run of which this process has only the directory."""

    def __init__(self, directory: RunDirectory, reclaim: Callable[[Mapping[str, Any]], object], clock: Clock) -> None:
        self._directory = directory
        self._reclaim = reclaim
        self._clock = clock

    def _read(self) -> dict[str, Any]:
        try:
            return read_state(self._directory)
        except LaunchError:
            if self._directory.path.exists():
                raise
            return {"state": "stopped"}  # a test's run has ended, and its directory went with it

    def undeploy(self, *, now: bool, timeout_s: float) -> Undeployed:
        state = read_state(self._directory)
        if state["state"] not in {*ENDED_STATES, LOST}:
            self._stop_launcher(state["launcher"], now=now, timeout_s=timeout_s)
            state = self._read()
        if state["state"] != LOST and not state.get("resources"):
            return Undeployed(state=state["state"])
        return self._sweep(state, now=now)

    def _stop_launcher(self, launcher: Mapping[str, Any], *, now: bool, timeout_s: float) -> None:
        _signal(launcher, signal.SIGTERM)
        _signal(launcher, signal.SIGCONT)  # it may be halted, by Ctrl-Z
        if self._wait_for_end(_NOW_S if now else timeout_s):
            return
        if not now:
            raise _has_not_ended(self._directory.run_id, timeout_s)
        _signal(launcher, signal.SIGTERM)  # the second one kills the nodes
        if not self._wait_for_end(_KILL_S):
            _signal(launcher, signal.SIGKILL)
            self._wait_for_end(_KILL_S)

    def _wait_for_end(self, timeout_s: float) -> bool:
        deadline = Deadline(timeout_s, self._clock)
        while self._read()["state"] not in {*ENDED_STATES, LOST}:
            if deadline.expired:
                return False
            self._clock.sleep(_POLL_S)
        return True

    def _sweep(self, state: Mapping[str, Any], *, now: bool) -> Undeployed:
        host = state["launcher"].get("host")
        if host not in (None, os.uname().nodename):
            raise LaunchError(
                f"The run {self._directory.run_id} was launched on the machine {host!r}, and this is "
                f"{os.uname().nodename!r}: run `topology stop {self._directory.path}` there"
            )
        sweep = Sweep(self._directory, state, self._reclaim, self._clock)
        sweep.run(now=now)
        _raise(self._directory.run_id, sweep.problems)
        if state.get("resources") and self._directory.path.exists():
            self._directory.update_state(resources=[])
        return Undeployed(state=state["state"], processes=sweep.ended, removed=tuple(sweep.removed))


def _has_not_ended(run_id: str, timeout_s: float) -> LaunchError:
    return LaunchError(
        f"The run {run_id} was asked to stop and has not ended after {timeout_s:g} s. `topology stop {run_id} --now` "
        "kills it"
    )


def _raise(run_id: str, problems: list[str]) -> None:
    if problems:
        lines = "".join(f"\n  - {problem}" for problem in problems)
        text = f"The run {run_id} has ended, and not all that it had could be given back:{lines}"
        raise UndeployFailed(f"{text}\n`topology stop {run_id}` tries again", errors=problems)


def _signal(launcher: Mapping[str, Any], number: signal.Signals) -> None:
    born = create_time(launcher["pid"])
    if born is None or abs(born - float(launcher["create_time"])) >= 1.0:  # an id alone may be a later process's
        return
    try:
        os.kill(launcher["pid"], number)
    except ProcessLookupError:
        return  # it ended in between, which is what was wanted
    except PermissionError:
        raise LaunchError(
            f"The process {launcher['pid']} of this run belongs to another user: it cannot be stopped"
        ) from None
