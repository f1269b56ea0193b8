"""Ends what is left of a run whose launcher is gone, and removes what it had created.

Processes are found in three ways, so that none of them has to be right: those that `run.json` names, what descends from
them, and every process that carries the mark of the run in the environment it was started with.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, final

import psutil

from launch.process_info import create_time
from launch.run_directory import RunDirectory
from topology.clock import SYSTEM_CLOCK, Clock, Deadline

__all__ = ["MARK", "Sweep", "add_mark", "describe_directory", "describe_process"]

MARK: Final = "TOPOLOGY_RUN_MARKS"
"""Environment variable of the processes of a run: paths of the run directories that they belong to, one a line."""

_GRACE_S = 4.0  # for what has noticed the launcher's end by itself: a fork server takes 3 s to clean up
_KILL_S = 5.0
_POLL_S = 0.05  # processes that are not our children have no event to wait for on every system
_SHARED_MEMORY = "/dev/shm/psm_"  # as Python names what `multiprocessing.shared_memory` creates

_Resource = Mapping[str, Any]


def add_mark(environment: Mapping[str, str], directory: Path) -> dict[str, str]:
    """`environment` with the mark of the run in `directory`, beside those of the runs that this process belongs to."""
    marks = [*environment.get(MARK, "").splitlines(), str(directory)]
    return {**environment, MARK: "\n".join(dict.fromkeys(marks))}


def describe_directory(path: Path) -> dict[str, Any]:
    """A directory, as a resource that is recorded. Raises `OSError` when it is not there."""
    return {"kind": "directory", "path": str(path), "inode": path.stat().st_ino}


def describe_process(pid: int) -> dict[str, Any]:
    """A process, as a resource that is recorded."""
    return {"kind": "process", "pid": pid, "create_time": create_time(pid)}


@final
class Sweep:
    """One attempt to end and remove everything of a run. `run` does it.

    Attributes:
        ended: how many processes were there, and are not any more.
        removed: directories and named shared memory that were there, and are not any more.
        problems: what could not be ended or removed, a line each.

    Args:
        directory: of the run.
        state: content of its `run.json`.
        reclaim: gives back one resource of a kind that is only known to the launcher of the run.
        clock: where the time comes from.
    """

    def __init__(
        self,
        directory: RunDirectory,
        state: Mapping[str, Any],
        reclaim: Callable[[_Resource], object],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.ended = 0
        self.removed: list[str] = []
        self.problems: list[str] = []
        self._resources: list[_Resource] = list(state.get("resources") or ())
        self._nodes = [node["pid"] for node in state.get("nodes") or () if isinstance(node.get("pid"), int)]
        self._mark = str(state.get("mark") or directory.path)
        self._began = float(state["started"]) - 1.0
        self._last_seen = (directory.path / "run.json").stat().st_mtime + 1.0
        self._reclaim = reclaim
        self._clock = clock
        self._spared = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}

    def run(self, *, now: bool) -> None:
        """Ends the processes, then gives back the other resources, those recorded last first.

        Args:
            now: kill at once, rather than what has not ended by itself after 4 s.
        """
        memory = self._end_processes(now=now)
        for path in sorted(memory - _mapped_memory(psutil.process_iter()) if memory else ()):
            self._attempt(f"the shared memory {path}", functools.partial(self._remove_memory, Path(path)))
        for resource in reversed(self._resources):
            what = " ".join(str(value) for value in resource.values())
            self._attempt(f"the {what}", functools.partial(self._give_back, resource))

    def _attempt(self, what: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - of a launcher's own code, too; reported, and the next one matters
            self.problems.append(f"{what} could not be removed: {type(error).__name__}: {error}")

    def _give_back(self, resource: _Resource) -> None:
        match resource.get("kind"):
            case "process":
                return  # ended by now, or reported
            case "directory":
                self._remove_directory(Path(resource["path"]), resource["inode"])
            case _:
                self._reclaim(resource)

    def _remove_directory(self, path: Path, inode: int) -> None:
        if path.is_dir() and not path.is_symlink() and path.stat().st_ino == inode:  # else another's, of that name
            shutil.rmtree(path)
            self.removed.append(str(path))

    def _remove_memory(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):  # Python's own cleaner was quicker
            if path.stat().st_ctime >= self._began:
                path.unlink()
                self.removed.append(str(path))

    def _end_processes(self, *, now: bool) -> set[str]:
        """Returns the named shared memory that they had."""
        seen: set[psutil.Process] = set()
        memory: set[str] = set()
        if not now:
            seen |= (found := self._find())
            memory |= _mapped_memory(found)
            for process in found:
                self._signal(process, signal.SIGTERM)
                self._signal(process, signal.SIGCONT)  # a fork server that was halted now cleans up by itself
            self._wait_for(lambda: not any(map(_is_there, found)), _GRACE_S)
        deadline = Deadline(_KILL_S, self._clock)
        while found := self._find():  # those that were killed may have started others in between
            seen |= found
            memory |= _mapped_memory(found)
            if deadline.expired:
                break
            for process in found:
                self._signal(process, signal.SIGKILL)
            self._wait_for(lambda: not any(map(_is_there, found)), deadline.remaining() or 0.0)
        self.ended = len(seen - found)
        self.problems += sorted(f"the process {process.pid} could not be ended" for process in found)
        return memory

    def _wait_for(self, condition: Callable[[], bool], timeout_s: float) -> None:
        deadline = Deadline(timeout_s, self._clock)
        while not condition() and not deadline.expired:
            self._clock.sleep(_POLL_S)

    def _signal(self, process: psutil.Process, number: signal.Signals) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            try:
                process.send_signal(number)
            except psutil.AccessDenied:
                text = f"the process {process.pid} belongs to another user"
                if text not in self.problems:
                    self.problems.append(text)

    def _find(self) -> set[psutil.Process]:
        """The processes of the run that are there now."""
        roots = {process for pid in self._nodes if (process := _process(pid)) and self._is_node(process)}
        roots |= {
            process
            for resource in self._resources
            if resource.get("kind") == "process" and (process := _process(resource["pid"]))
            if abs(_create_time(process) - (resource["create_time"] or 0.0)) < 1.0
        }
        found = set(roots)
        for root in roots:
            with contextlib.suppress(psutil.NoSuchProcess):
                found |= set(root.children(recursive=True))
        found |= {process for process in psutil.process_iter() if self._is_marked(process)}
        return {process for process in found if process.pid not in self._spared and _is_there(process)}

    def _is_node(self, process: psutil.Process) -> bool:
        """A node's process began after its run, before `run.json` was last written; a later one of its id did not."""
        return self._began <= _create_time(process) <= self._last_seen

    def _is_marked(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error, OSError):
            return self._mark in process.environ().get(MARK, "").splitlines()
        return False


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except (psutil.NoSuchProcess, ValueError, OverflowError):
        return None


def _create_time(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        return process.create_time()
    return 0.0


def _is_there(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _mapped_memory(processes: Iterable[psutil.Process]) -> set[str]:
    """Named shared memory of `multiprocessing` that these processes have mapped."""
    return {path for process in processes for path in _maps(process.pid)}


def _maps(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            path = line.partition(_SHARED_MEMORY)
            if path[1] and not path[2].endswith(" (deleted)"):
                yield path[1] + path[2]
