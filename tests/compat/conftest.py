"""The modules of other projects, there while a file of this folder is imported and its tests run, and not for others.

A test file imports them as programs do, at its top, inside `with provided():`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from topology import compat

TIMEOUT_S = 100
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def provided() -> Iterator[None]:
    """For test files that use the modules: `pytestmark = pytest.mark.usefixtures("provided")`."""
    with compat.provided():
        yield


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the runs of a test go."""
    monkeypatch.setenv("TOPOLOGY_RUNS", str(tmp_path / "runs"))
    for name in ("LAUNCHPAD_LAUNCH_LOCAL_TERMINAL", "LAUNCHPAD_LOGGING_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts a script as its user would, with the modules provided."""

    def start_script(source: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(source))
        return subprocess.Popen(
            [sys.executable, "-m", "topology.compat", str(script), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        )

    return start_script


@pytest.fixture
def run(start: Callable[..., subprocess.Popen[str]]) -> Callable[..., tuple[int, str]]:
    """Exit code and output of a script."""

    def run_script(source: str, *arguments: str, **environment: str) -> tuple[int, str]:
        process = start(source, *arguments, **environment)
        output, _ = process.communicate(timeout=TIMEOUT_S)
        return process.returncode, output

    return run_script


@pytest.fixture
def serve() -> Iterator[Callable[..., Any]]:
    """Starts a server of the given tables, and gives a client of it."""
    import reverb  # type: ignore[import-not-found]  # the one that is provided

    running: list[Any] = []

    def start(*tables: Any) -> Any:
        server = reverb.Server(list(tables), port=None)
        client = reverb.Client(f"localhost:{server.port}")
        running.append((client, server))
        return client

    yield start
    for client, server in running:
        client.close()
        server.stop()
