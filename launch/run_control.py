"""Finds runs, reads their logs, and stops them from another process."""

from __future__ import annotations

import os
import shutil
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from launch.metrics import Tail
from launch.process_info import create_time
from launch.run_directory import ENDED_STATES, RunDirectory, default_base, list_runs, open_run
from launch.supervisor import ABANDON_S
from launch.watch import LOST, clean, read_state
from topology.clock import SYSTEM_CLOCK, Clock, Deadline
from topology.errors import LaunchError

__all__ = ["LATEST", "find_run", "follow_logs", "log_files", "old_runs", "read_logs", "remove_run", "stop_run"]

LATEST = "latest"
"""The name that always means the newest run."""

_SILENT_S = 86_400.0
_NOW_S = 2.0
_KILL_S = ABANDON_S + 3.0  # the launcher may give up on a node, and then writes how the run ended
_POLL_S = 0.1  # another process's files have no event to wait for


def find_run(name: str) -> RunDirectory:
    """The run of that path, name, beginning of one name, or `latest`. Raises LaunchError when there is none."""
    if name != LATEST:
        return open_run(name)
    runs = list_runs()
    if not runs:
        raise LaunchError(f"There are no runs in {default_base()}")
    return runs[0]


def log_files(directory: RunDirectory, node: str = "") -> dict[str, Path]:
    """Log files by `label/index`; of one node, of a group, or of all.

    Raises:
        LaunchError: there is no such node, or it has no log.
    """
    paths = [path for path in sorted(directory.logs.glob("*.log")) if path.is_file()]
    found = {"/".join(path.stem.rpartition("-")[::2]): path for path in paths}
    chosen = {name: path for name, path in found.items() if not node or node in (name, name.rpartition("/")[0])}
    if node and not chosen:
        raise LaunchError(f"The run {directory.run_id} has no log of {node!r}. It has: {', '.join(found) or 'none'}")
    return chosen


def read_logs(files: Mapping[str, Path], tail: int | None = None) -> Iterator[tuple[str, str]]:
    """Node and line, file by file; of each file the last `tail` lines, or all."""
    for node, path in files.items():
        with path.open("rb") as file:
            lines = deque(file, maxlen=tail)
        for line in lines:
            yield node, clean(line.decode(errors="replace").rstrip("\r\n"))


def follow_logs(
    directory: RunDirectory, node: str = "", *, tail: int | None = 10, clock: Clock = SYSTEM_CLOCK
) -> Iterator[tuple[str, str]]:
    """Node and line: first the last `tail` lines of each node, then what comes, until the run has ended."""
    tails: dict[str, Tail] = {}
    limit, ended = tail, False
    while True:
        for name, path in log_files(directory, node).items():
            lines = tails.setdefault(name, Tail(path)).poll()
            yield from ((name, clean(line)) for line in (lines if limit is None else deque(lines, maxlen=limit)))
        limit = None
        if ended:
            return
        ended = _has_ended(directory)  # and once more round, for what was written before the end
        if not ended:
            clock.sleep(_POLL_S)


def _has_ended(directory: RunDirectory) -> bool:
    state = read_state(directory)["state"]
    return state in ENDED_STATES or state == LOST


def stop_run(directory: RunDirectory, *, now: bool = False, timeout_s: float = 60.0) -> str:
    """Stops a run and blocks until it has ended; returns the state that it ended in.

    Args:
        directory: the run.
        now: give it 2 s to end by itself, then have its launcher kill its nodes; kill the launcher, and whatever is
            left of its nodes, if even that does not end it.
        timeout_s: how long to wait for a graceful end.

    Raises:
        LaunchError: it has not ended in time, or belongs to somebody else.
    """
    state = read_state(directory)
    if state["state"] in ENDED_STATES:
        return str(state["state"])
    if state["state"] != LOST:
        _signal(state["launcher"], signal.SIGTERM)
        ended = _wait_until(lambda: _has_ended(directory), _NOW_S if now else timeout_s)
        if not ended and now:
            _signal(state["launcher"], signal.SIGTERM)  # the second one kills the nodes
            ended = _wait_until(lambda: _has_ended(directory), _KILL_S)
        if ended:
            return str(read_state(directory)["state"])
        if not now:
            raise LaunchError(
                f"The run {directory.run_id} was asked to stop and has not ended after {timeout_s:g} s. "
                f"`topology stop {directory.run_id} --now` kills it"
            )
        _signal(state["launcher"], signal.SIGKILL)
    if now:
        _kill_nodes(directory)
    return str(read_state(directory)["state"])


def old_runs(*, keep: int = 0, older_than_s: float = 0.0, clock: Clock = SYSTEM_CLOCK) -> list[RunDirectory]:
    """The runs in the base directory that are over, but for the newest `keep` and those that began less long ago."""
    now = clock.time()
    over = [(run, started) for run in list_runs() if (started := _start_of_ended(run, now)) is not None]
    return [run for run, started in over[keep:] if now - started >= older_than_s]


def _start_of_ended(directory: RunDirectory, now: float) -> float | None:
    """When a run began that is over; None for one that goes on or may do so, and for what cannot be read."""
    try:
        state = read_state(directory)
        if state["state"] == LOST:  # or it goes on, on another machine that shares this directory
            newest = max(path.stat().st_mtime for path in directory.path.rglob("*"))
            return float(state["started"]) if now - newest >= _SILENT_S else None
    except (LaunchError, OSError):
        return None
    return float(state["started"]) if state["state"] in ENDED_STATES else None


def remove_run(directory: RunDirectory) -> None:
    """Deletes the directory of a run that is over. Raises LaunchError when it goes on, `OSError` when it cannot."""
    if not _has_ended(directory):
        raise LaunchError(f"The run {directory.run_id} goes on: `topology stop {directory.run_id}` ends it")
    if directory.logs.is_symlink():  # $LAUNCHPAD_LOGGING_DIR: the logs are of this run, too
        shutil.rmtree(directory.logs.resolve(), ignore_errors=True)
    shutil.rmtree(directory.path)


def _wait_until(condition: Callable[[], bool], timeout_s: float, clock: Clock = SYSTEM_CLOCK) -> bool:
    deadline = Deadline(timeout_s, clock)
    while not condition():
        if deadline.expired:
            return False
        clock.sleep(_POLL_S)
    return True


def _kill_nodes(directory: RunDirectory) -> None:
    """Kills the nodes that outlived their launcher.

    A node's process began after its run and before `run.json` was last written; a later one with its id did not.
    """
    state = read_state(directory)
    first, last = float(state["started"]) - 1.0, (directory.path / "run.json").stat().st_mtime + 1.0
    pids = [node["pid"] for node in state.get("nodes", ()) if isinstance(node.get("pid"), int)]
    left = [pid for pid in pids if (born := create_time(pid)) is not None and first <= born <= last]
    for pid in left:
        _kill(pid, signal.SIGKILL)
    _wait_until(lambda: not any(map(create_time, left)), 5.0)


def _signal(launcher: Mapping[str, Any], number: signal.Signals) -> None:
    born = create_time(launcher["pid"])
    if born is not None and abs(born - float(launcher["create_time"])) < 1.0:  # an id alone may be a later process's
        _kill(launcher["pid"], number)


def _kill(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it ended in between, which is what was wanted
    except PermissionError:
        raise LaunchError(f"The process {pid} of this run belongs to another user: it cannot be stopped") from None
