"""What one run leaves on disk: its state, its graph, logs, metrics and checkpoints.

    <base>/<program>-<YYYYmmdd-HHMMSS>-<4 hex>/
        run.json                      state of the run and of every node; replaced as a whole, never half written
        graph.json                    the program
        settings.json                 what the command `topology launch` was told
        logs/<label>-<index>.log      what the node printed
        metrics/<label>-<index>.jsonl written by nodes
        checkpoints/                  written by nodes

The base is $TOPOLOGY_RUNS, else $XDG_STATE_HOME/topology/runs, else ~/.local/state/topology/runs.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from launch.process_info import create_time
from topology.clock import SYSTEM_CLOCK, Clock
from topology.errors import LaunchError

__all__ = ["RunDirectory", "create", "default_base", "list_runs", "open_run"]

ENDED_STATES = frozenset({"finished", "failed", "stopped"})
"""States of a run that is over. The others are starting, running and stopping."""

ELSEWHERE = "A run that was given a directory of its own (--run-directory) goes by its path."

_LAST_TIME = 1e11  # of what can be a time: dates end before


def default_base() -> Path:
    """Where runs go when nothing is said."""
    if runs := os.environ.get("TOPOLOGY_RUNS"):
        return Path(runs).expanduser()
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "topology" / "runs"


@final
class RunDirectory:
    """One run's directory. Only the launcher of the run writes `run.json`; anybody may read it at any time.

    Args:
        path: of the directory.
        made: what was made for a run that has not begun; see `unmake`.
    """

    def __init__(self, path: Path, made: Sequence[Path] = ()) -> None:
        self.path = path
        self._made = made

    def __repr__(self) -> str:
        return f"<RunDirectory {self.path}>"

    @property
    def run_id(self) -> str:
        """Its name, unique in its base."""
        return self.path.name

    @property
    def is_new(self) -> bool:
        """Whether it was made, or was empty, for a run that has not begun."""
        return bool(self._made)

    @property
    def logs(self) -> Path:
        """Directory of the nodes' logs."""
        return self.path / "logs"

    @property
    def metrics(self) -> Path:
        """Directory of the nodes' metrics."""
        return self.path / "metrics"

    @property
    def checkpoints(self) -> Path:
        """Directory of the nodes' checkpoints."""
        return self.path / "checkpoints"

    def log_path(self, label: str, index: int) -> Path:
        """The log file of one node."""
        return self.logs / f"{file_name(label)}-{index}.log"

    def metrics_path(self, label: str, index: int) -> Path:
        """The metrics file of one node."""
        return self.metrics / f"{file_name(label)}-{index}.jsonl"

    def read_state(self) -> dict[str, Any]:
        """The content of `run.json`.

        A run whose launcher died without a word reads as "failed", with an error that says so.

        Raises:
            LaunchError: there is no readable `run.json`.
        """
        try:
            state = _checked(json.loads((self.path / "run.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise LaunchError(
                f"{self.path} is not the directory of a run: its run.json cannot be read ({error})"
            ) from None
        if state["state"] not in ENDED_STATES and not _is_alive(state.get("launcher", {})):
            state["state"] = "failed"
            state["error"] = (
                "the launcher of this run was killed, or its machine restarted, before it could say how it ended"
            )
        return state

    def write_state(self, state: Mapping[str, Any]) -> None:
        """Replaces `run.json`. Atomic: a reader sees the old or the new one. Raises `OSError`."""
        self.write_json("run.json", state)

    def update_state(self, **changes: object) -> None:
        """Replaces some top-level entries of `run.json`. For the launcher only. Raises `OSError`."""
        state = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
        self.write_state({**state, **changes})

    def write_json(self, name: str, value: object, *, mode: int = 0o666) -> None:
        """Writes one JSON file of the run, atomically; on a full disk, in place of the old. Raises `OSError`.

        `mode` is who may read and write it, but for what the umask forbids.
        """
        data = (json.dumps(value, indent=1) + "\n").encode()
        temporary = self.path / f".{name}.{os.getpid()}"
        try:
            temporary.touch(mode)
            temporary.write_bytes(data)
            temporary.replace(self.path / name)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not _overwrite(self.path / name, data):
                raise

    def unmake(self) -> None:
        """Takes away what was made for a run that did not begin; nothing of an earlier run, and no error."""
        with contextlib.suppress(OSError):
            if self._made and self.logs.is_symlink():
                self.logs.resolve().rmdir()
        for path in self._made:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)


def _overwrite(path: Path, data: bytes) -> bool:
    """Puts `data` into the blocks that a file has already, if it fits: that works on a full disk."""
    try:
        with path.open("r+b", buffering=0) as file:
            found = os.fstat(file.fileno())
            if len(data) > found.st_blocks * 512:
                return False
            return file.write(data.ljust(found.st_size)) == max(len(data), found.st_size)  # spaces do no harm to JSON
    except OSError:
        return False


def create(base: Path | None, program_name: str, *, clock: Clock = SYSTEM_CLOCK) -> RunDirectory:
    """Makes the directory of a new run.

    Raises:
        LaunchError: it cannot be made or written, e.g. on a full disk.
    """
    base = default_base() if base is None else base
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(clock.time()))
    path = base / f"{file_name(program_name)}-{stamp}-{secrets.token_hex(2)}"
    return prepare(path, program_name)


def prepare(path: Path, program_name: str) -> RunDirectory:
    """Makes `path` the directory of a new run; see `create`. It may be that of a run that has ended.

    Raises:
        LaunchError: as `create`, which leaves nothing behind; or a run goes on there.
    """
    directory = RunDirectory(path)
    try:
        directory = RunDirectory(path, _what_is_made(path))
        path.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            _refuse_if_it_goes_on(directory)
            for part in (directory.logs, directory.metrics, directory.checkpoints):
                part.mkdir(exist_ok=True)
            directory.write_state(initial_state(directory.run_id, program_name))
    except OSError as error:
        directory.unmake()
        raise LaunchError(
            f"The run directory {path} cannot be written: {error.strerror or error}. Give another one "
            "(run_directory=..., or the environment variable TOPOLOGY_RUNS), or make room there."
        ) from error
    return directory


def _what_is_made(path: Path) -> Sequence[Path]:
    """What a run adds at `path`; nothing where there is something."""
    if not path.exists():
        return (path,)
    if not path.is_dir() or any(path.iterdir()):
        return ()
    return tuple(path / name for name in ("logs", "metrics", "checkpoints", "run.json", "graph.json", "settings.json"))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keeps out others that prepare this directory now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _refuse_if_it_goes_on(directory: RunDirectory) -> None:
    try:
        state = directory.read_state()
    except LaunchError:
        return  # no run was here, or what it left cannot be read
    if state["state"] not in ENDED_STATES:
        raise LaunchError(
            f"A run of {state.get('program')!r} goes on in {directory.path}, launched by the process "
            f"{state['launcher']['pid']}: two runs in one directory would overwrite one another. Give another one, or "
            f"end it first: `topology stop {directory.path}`"
        )


def initial_state(run_id: str, program_name: str, clock: Clock = SYSTEM_CLOCK) -> dict[str, Any]:
    """The `run.json` of a run that begins in this process."""
    return {
        "run_id": run_id,
        "program": program_name,
        "launch_type": "",
        "state": "starting",
        "started": clock.time(),
        "ended": None,
        "launcher": {"pid": os.getpid(), "create_time": create_time(os.getpid()), "host": os.uname().nodename},
        "nodes": [],
        "error": None,
    }


def open_run(path_or_name: str | Path, base: Path | None = None) -> RunDirectory:
    """The directory of an existing run: its path, its name in `base`, or the beginning of exactly one name there.

    Raises:
        LaunchError: there is no such run, or several.
    """
    as_path = Path(path_or_name)
    if (as_path / "run.json").exists():
        return RunDirectory(as_path.resolve())
    runs = list_runs(base)
    matches = [run for run in runs if run.run_id.startswith(str(path_or_name))]
    exact = [run for run in matches if run.run_id == str(path_or_name)]
    if len(exact or matches) == 1:
        return (exact or matches)[0]
    known = ", ".join(run.run_id for run in (matches or runs)[:5]) or "none"
    what = f"{len(matches)} runs begin with" if matches else "No run is called"
    raise LaunchError(
        f"{what} {str(path_or_name)!r} in {base or default_base()}. The newest there: {known}. {ELSEWHERE}"
    )


def list_runs(base: Path | None = None) -> list[RunDirectory]:
    """All runs in `base`, the newest first."""
    base = default_base() if base is None else base
    paths = base.glob("*/run.json") if base.is_dir() else iter(())
    dated = [(_started(path), path.parent) for path in paths]
    return [RunDirectory(path) for _, path in sorted(dated, reverse=True)]


def _started(path: Path) -> float:
    try:
        return float(json.loads(path.read_text(encoding="utf-8"))["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


def file_name(text: str) -> str:
    """`text` as a part of a file name: everything unusual becomes "_"."""
    return re.sub(r"[^A-Za-z0-9._=+-]+", "_", text).lstrip(".") or "_"


def _checked(state: Any) -> dict[str, Any]:
    """`state` as everybody may rely on it: what a launcher writes. Raises `ValueError` or `TypeError` for others."""
    if not isinstance(state, dict):
        raise TypeError(f"it holds {type(state).__name__}, not an object")
    optional = {"ended": float, "nodes": list, "error": str, "resources": list}
    _check("", state, {"state": str, "started": float, "launcher": dict}, optional)
    _check("launcher.", state["launcher"], {"pid": int}, {"create_time": float, "host": str})
    _check_each("nodes", state, {"label": str, "index": int, "state": str}, {"pid": int})
    _check_each("resources", state, {"kind": str}, {"pid": int, "create_time": float, "path": str, "inode": int})
    return state


def _check_each(name: str, state: Mapping[str, Any], needed: Mapping[str, type], optional: Mapping[str, type]) -> None:
    for number, entry in enumerate(state.get(name) or ()):
        if not isinstance(entry, dict):
            raise TypeError(f"{name}[{number}] is {entry!r}")
        _check(f"{name}[{number}].", entry, needed, optional)


def _check(where: str, found: Mapping[str, Any], needed: Mapping[str, type], optional: Mapping[str, type]) -> None:
    """`optional` may be missing or null. Integers are process ids or indices, floats are times."""
    for name, kind in {**needed, **optional}.items():
        value = found.get(name)
        if not (_is_good(value, kind) or (value is None and name in optional)):
            raise ValueError(f"{where}{name} is {value!r}")


def _is_good(value: object, kind: type) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LAST_TIME
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return isinstance(value, kind)


def _is_alive(launcher: Mapping[str, Any]) -> bool:
    pid = launcher.get("pid")
    if not isinstance(pid, int):
        return False
    found = create_time(pid)
    expected = launcher.get("create_time")
    return found is not None and (expected is None or abs(found - expected) < 1.0)
