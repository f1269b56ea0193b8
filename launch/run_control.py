"""Finds runs, reads their logs, and removes those that are over."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path

from launch.run_directory import ELSEWHERE, ENDED_STATES, RunDirectory, default_base, list_runs, open_run
from launch.watch import LOST, clean, read_state
from topology.clock import SYSTEM_CLOCK, Clock
from topology.errors import LaunchError

__all__ = ["LATEST", "find_run", "log_files", "old_runs", "read_logs", "remove_run"]

LATEST = "latest"
"""The name that always means the newest run."""

_SILENT_S = 86_400.0


def find_run(name: str) -> RunDirectory:
    """The run of that path, name, beginning of one name, or `latest`. Raises LaunchError when there is none."""
    if name != LATEST:
        return open_run(name)
    runs = list_runs()
    if not runs:
        raise LaunchError(f"There are no runs in {default_base()}. {ELSEWHERE}")
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


def _has_ended(directory: RunDirectory) -> bool:
    state = read_state(directory)["state"]
    return state in ENDED_STATES or state == LOST


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
