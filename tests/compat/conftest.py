"""The modules of other projects, there while a file of this folder is imported and its tests run, and not for others.

A test file imports them as programs do, at its top, inside `with provided():`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from topology import compat


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
