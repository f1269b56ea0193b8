"""Runs and agents made for the tests of the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launch.process_info import create_time
from launch.run_directory import RunDirectory

STARTED = 1_700_000_000.0

AGENT = '''
"""Agents that need nothing but the kernel's nodes."""
from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Literal

import topology as lp


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the toy.

    Attributes:
        environment: what to play.
        num_actors: how many actors
            play at once.
    """

    environment: str = "catch"
    num_actors: int = 2
    seed: int = 0
    steps: int = 20
    hidden: tuple[int, ...] = (64, 64)
    mode: Literal["end", "wait", "fail"] = "end"

    def __post_init__(self) -> None:
        if self.environment != "catch":
            raise ValueError(f"unknown environment {self.environment!r}: there is catch")


class Counter:
    def __init__(self, config):
        self._config = config

    def run(self):
        context = lp.get_context()
        path = context.run_directory / "metrics" / f"{context.label}-{context.index}.jsonl"
        with path.open("a") as file:
            for step in range(self._config.steps + 1):
                record = {"actor_steps": step, "progress": step / self._config.steps, "evaluator_return": step / 10}
                file.write(json.dumps({"time": time.time(), **record}) + "\\n")
                file.flush()
        print("counted", flush=True)
        if self._config.mode == "fail":
            raise RuntimeError("the toy broke")
        if self._config.mode == "end":
            lp.stop()
        lp.wait_for_stop()


class Actor:
    def __init__(self, config):
        print("an actor", flush=True)

    def run(self):
        lp.wait_for_stop()


def toy(config: Config = Config()) -> lp.Program:
    """Counts to a number.

    And no more.
    """
    program = lp.Program("toy")
    program.add_node(lp.PyClassNode(Counter, config), label="counter")
    with program.group("actor"):
        for _ in range(config.num_actors):
            program.add_node(lp.PyClassNode(Actor, config))
    return program


def plain(num_actors: int = 1, name="plain"):
    """Has parameters, not a config."""
    program = lp.Program(name)
    program.add_node(lp.PyClassNode(Actor, None), label="actor")
    return program


def nothing():
    return 3


def broken():
    return {}["key"]


def exits():
    import sys
    sys.exit(3)
'''


@pytest.fixture
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package with the agents `toy` and `sick` (which cannot be imported); returns where it is."""
    site = tmp_path / "site"
    package = site / "toy_agents"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "agent.py").write_text(AGENT)
    (package / "sick.py").write_text('import no_such_module_anywhere\n\ndef sick():\n    """Cannot be imported."""\n')
    info = site / "toy_agents-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-agents\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[topology.agents]\ntoy = toy_agents.agent:toy\nsick = toy_agents.sick:sick\n"
    )
    monkeypatch.syspath_prepend(str(site))
    yield site
    for name in [name for name in sys.modules if name.partition(".")[0] == "toy_agents"]:
        del sys.modules[name]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty base directory for runs, used by this process and its children."""
    base = tmp_path / "runs"
    base.mkdir()
    monkeypatch.setenv("TOPOLOGY_RUNS", str(base))
    return base


@pytest.fixture
def make_run(runs: Path) -> Callable[..., RunDirectory]:
    """Writes the directory of a run: `make_run(name, state=..., metrics={"actor-0": [{...}]}, logs={...})`."""

    def make(
        name: str = "toy-1",
        *,
        state: str = "running",
        ended: float | None = None,
        pid: int | None = None,
        started: float = STARTED,
        nodes: tuple[tuple[str, int, str], ...] = (("counter", 0, "running"), ("actor", 0, "running")),
        metrics: dict[str, list[dict[str, Any]]] | None = None,
        logs: dict[str, str] | None = None,
    ) -> RunDirectory:
        directory = RunDirectory(runs / name)
        for part in (directory.logs, directory.metrics):
            part.mkdir(parents=True)
        pid = os.getpid() if pid is None else pid
        directory.write_state(
            {
                "run_id": name,
                "program": "toy",
                "launch_type": "local_mp",
                "state": state,
                "started": started,
                "ended": ended,
                "launcher": {"pid": pid, "create_time": create_time(pid) or 1.0},
                "nodes": [{"label": label, "index": index, "state": node} for label, index, node in nodes],
                "error": None,
            }
        )
        for stem, records in (metrics or {}).items():
            text = "".join(json.dumps(record) + "\n" for record in records)
            (directory.metrics / f"{stem}.jsonl").write_text(text)
        for stem, text in (logs or {}).items():
            (directory.logs / f"{stem}.log").write_text(textwrap.dedent(text))
        return directory

    return make


@pytest.fixture
def start_command(agents: Path, runs: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the command in a process of its own, in which the toy agents are installed."""
    started: list[subprocess.Popen[str]] = []
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{agents}", "COLUMNS": "120"}

    def start(*arguments: str, stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "launch.cli", *arguments]
        process = subprocess.Popen(command, env=environment, text=True, stdout=stdout, stderr=stderr)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=20)
