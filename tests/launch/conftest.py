"""Scripts as their users write them, in a Python of their own: for everything about signals, exits and terminals."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

DEADLINE_S = 30.0
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the runs of a test go."""
    base = tmp_path / "runs"
    monkeypatch.setenv("TOPOLOGY_RUNS", str(base))
    for name in ("LAUNCHPAD_LAUNCH_LOCAL_TERMINAL", "LAUNCHPAD_LOGGING_DIR"):
        monkeypatch.delenv(name, raising=False)
    return base


class Script:
    """A running script. `line()` blocks for its next line of output."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    @property
    def pid(self) -> int:
        return self.process.pid

    def lines(self, *containing: str) -> None:
        """Blocks until a line with each text has come, in whatever order."""
        missing = set(containing)
        while missing:
            line = self.line()
            missing = {text for text in missing if text not in line}

    def line(self, containing: str = "") -> str:
        assert self.process.stdout is not None
        seen = []
        for line in self.process.stdout:  # pytest-timeout is the deadline
            seen.append(line)
            if containing in line:
                return line.rstrip("\n")
        raise AssertionError(f"the script ended without a line containing {containing!r}; it said:\n{''.join(seen)}")

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def finish(self) -> tuple[int, str]:
        """Blocks for the end; the exit code, and the rest of the output."""
        output, _ = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, output


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Script]]:
    """`start(source, *args)` runs a script in the directory of the test; it and its session are killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def start_script(source: str, *args: str, options: tuple[str, ...] = (), **kwargs: Any) -> Script:
        path = tmp_path / "script.py"
        path.write_text("import topology as lp\n" + textwrap.dedent(source))
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **kwargs.pop("env", {})}
        process = subprocess.Popen(
            [sys.executable, *options, str(path), *args],
            stdin=subprocess.DEVNULL,
            stdout=kwargs.pop("stdout", subprocess.PIPE),
            stderr=kwargs.pop("stderr", subprocess.STDOUT),
            text=True,
            cwd=tmp_path,
            env=environment,
            start_new_session=True,
            **kwargs,
        )
        started.append(process)
        return Script(process)

    yield start_script
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def run_script(start: Callable[..., Script]) -> Callable[..., tuple[int, str]]:
    """`run_script(source, *args)` is the exit code and everything the script printed."""

    def run(source: str, *args: str, **kwargs: Any) -> tuple[int, str]:
        return start(source, *args, **kwargs).finish()

    return run


def processes_of(marker: Path) -> list[int]:
    """Every process whose working directory is `marker`: a script, its fork servers, nodes and their children."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if (entry / "cwd").resolve() == marker.resolve() and (entry / "stat").read_text().rpartition(")")[
                    2
                ].split()[0] != "Z":
                    found.append(int(entry.name))
    return found


@pytest.fixture
def left_processes(tmp_path: Path) -> Callable[[], list[int]]:
    """Processes of this test's scripts that are still there."""
    return lambda: processes_of(tmp_path)
