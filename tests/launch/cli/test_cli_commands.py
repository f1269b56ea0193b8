"""The command: what it prints and how it exits, without launching anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from launch.cli import app
from launch.run_control import remove_run
from launch.run_directory import RunDirectory
from launch.run_settings import RunSettings
from topology import __version__
from topology.errors import LaunchError

STARTED = 1_700_000_000.0


@pytest.fixture
def call(agents: Path, runs: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("TOPOLOGY_DEBUG", raising=False)
    runner = CliRunner()
    return lambda *arguments: runner.invoke(app, list(arguments))


def test_help_and_version(call: Callable[..., Result]) -> None:
    assert f"topology {__version__}" in call("--version").stdout
    text = call("--help").stdout
    for command in ("list", "graph", "launch", "status", "logs", "stop", "prune"):
        assert command in text


def test_list_shows_agents_and_the_settings_of_one(call: Callable[..., Result]) -> None:
    lines = call("list").stdout.splitlines()
    assert any(line.split()[:2] == ["toy", "Counts"] for line in lines)
    text = call("list", "toy").stdout
    assert "what to play." in text
    assert "how many actors play at once." in text
    assert "64,64" in text
    assert "one of 'end', 'wait', 'fail'" in text
    assert {"name": "steps", "type": "int", "default": "20"} in json.loads(call("list", "toy", "--json").stdout)[
        "settings"
    ]
    assert "toy" in [agent["name"] for agent in json.loads(call("list", "--json").stdout)]


def test_graph_in_every_format(call: Callable[..., Result], tmp_path: Path) -> None:
    assert "actor × 3" in call("graph", "toy", "--num-actors", "3").stdout
    assert json.loads(call("graph", "toy", "--format", "json").stdout)
    assert call("graph", "toy", "-f", "mermaid").stdout.startswith("flowchart")
    assert "digraph" in call("graph", "toy", "-f", "dot").stdout
    path = tmp_path / "graph.svg"
    result = call("graph", "toy", "-f", "svg", "--output", str(path))
    assert (result.exit_code, result.stdout) == (0, "")
    assert "<svg" in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["graph", "tyo"], 2, "error: unknown agent 'tyo' (did you mean 'toy'?)"),
        (["launch", "tyo"], 2, "error: unknown agent 'tyo' (did you mean 'toy'?)"),
        (["launch", "sick"], 2, "No module named 'no_such_module_anywhere'"),
        (["launch", "toy", "-e", "doom"], 2, "error: agent 'toy': unknown environment 'doom': there is catch"),
        (["launch", "toy", "--set", "stepz=3"], 2, "error: unknown setting 'stepz' (did you mean 'steps'?)"),
        (["launch", "toy", "--set", "steps=many"], 2, "error: setting steps: expected int, got 'many'"),
        (["launch", "toy", "--set", "steps"], 2, "error: --set takes key=value, got 'steps'"),
        (
            ["launch", "toy", "--set", "xyz=1"],
            2,
            "error: unknown setting 'xyz'. `topology list toy` shows all settings",
        ),
        (["launch", "toy", "--set", "stepz=3", "-e", "doom"], 2, "2 settings are wrong:"),
        (["launch", "toy_agents.agent:exits"], 2, "called sys.exit(3) ("),
        (["launch", "toy_agents.agent:nothing"], 2, "returned 3, not a topology Program"),
        (["launch", "toy", "--num-actors", "0"], 2, "--num-actors"),
        (["launch", "toy", "--speed", "9"], 2, "error: no such option: --speed"),
        (["launch", "toy", "--launch-type", "local_xx"], 2, "local_mp"),
        (
            ["launch", "toy", "--run-directory", "/proc/no/run"],
            1,
            "error: The run directory /proc/no/run cannot be written",
        ),
        (["launch", "toy", "--run-directory", __file__], 1, "is a file: give a new or an empty directory"),
        (
            ["launch", "toy", "--run-directory", "/usr"],
            1,
            "/usr exists and is not empty: give a new or an empty directory",
        ),
        (["launch", "toy", "--resume"], 2, "--resume goes on with an earlier run: say which, --run-directory RUN"),
        (["launch", "toy", "--resume", "-d", "/usr"], 1, "No run is called '/usr'"),
        (["launch", "toy", "--terminal", "teletype"], 2, "'teletype' is not one of current_terminal"),
        (["graph", "toy", "--output", "/no/such/directory/x"], 2, "No such file or directory"),
        (["frobnicate"], 2, "No such command"),
        (["status", "nothing"], 1, "error: No run is called 'nothing'"),
        (["stop", "latest"], 1, "error: There are no runs in"),
        (["logs", "nothing"], 1, "error: No run is called 'nothing'"),
    ],
)
def test_bad_input_is_one_message_without_a_traceback(
    call: Callable[..., Result], arguments: list[str], code: int, message: str
) -> None:
    result = call(*arguments)
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_debugging_shows_the_traceback(call: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOLOGY_DEBUG", "1")
    result = call("graph", "toy_agents.agent:broken")
    assert 'return {}["key"]' in result.stderr
    assert "error: agent 'toy_agents.agent:broken' raised KeyError: 'key'" in result.stderr.splitlines()[-1]


def test_status_lists_runs_and_shows_one(call: Callable[..., Result], make_run: Callable[..., RunDirectory]) -> None:
    assert "There are no runs" in call("status").stdout
    make_run("toy-a", state="finished", ended=STARTED + 65)
    make_run("toy-b", started=STARTED + 9, pid=2**22 + 1)
    rows = [line.split() for line in call("status").stdout.splitlines()]
    assert [row[:2] for row in rows[1:]] == [["toy-b", "lost"], ["toy-a", "finished"]]
    assert "1:05" in rows[2]
    assert "● finished" in call("status", "toy-a").stdout
    assert "was killed" in call("status", "latest").stdout
    assert json.loads(call("status", "toy-a", "--json").stdout)["elapsed_s"] == 65
    assert [run["state"] for run in json.loads(call("status", "--json").stdout)] == ["lost", "finished"]


def test_logs_of_all_of_a_group_and_of_one(call: Callable[..., Result], make_run: Callable[..., RunDirectory]) -> None:
    logs = {"actor-0": "one\ntwo\n", "actor-1": "three\n", "learner-0": "\x1b[31mfour\n"}
    make_run("toy-a", state="finished", ended=STARTED, logs=logs)
    assert call("logs", "toy-a").stdout == "actor/0 | one\nactor/0 | two\nactor/1 | three\nlearner/0 | four\n"
    assert call("logs", "toy", "actor", "--tail", "1").stdout == "actor/0 | two\nactor/1 | three\n"
    assert call("logs", "latest", "actor/0").stdout == "one\ntwo\n"
    assert (
        call("logs", "toy-a", "--follow", "--tail", "1").stdout == "actor/0 | two\nactor/1 | three\nlearner/0 | four\n"
    )
    result = call("logs", "toy-a", "critic")
    assert result.exit_code == 1
    assert "has no log of 'critic'. It has: actor/0, actor/1, learner/0" in result.stderr


def test_stopping_what_has_ended_says_so(call: Callable[..., Result], make_run: Callable[..., RunDirectory]) -> None:
    make_run("toy-a", state="failed", ended=STARTED)
    make_run("toy-b", pid=2**22 + 1)
    assert call("stop", "toy-a").stdout == "toy-a: failed\n"
    assert call("stop", "toy-b", "--now").stdout == "toy-b: lost\n"


def test_the_command_starts_at_once_and_loads_nothing_heavy(agents: Path) -> None:
    heavy = ("jax", "numpy", "matplotlib", "toy_agents", "hypothesis")
    script = (
        "import sys; from launch.cli import app\n"
        "try: app(sys.argv[1:])\n"
        f"finally: print([name for name in {heavy} if name in sys.modules])"
    )
    for arguments in (["--help"], ["list"], ["status"]):
        begin = time.perf_counter()
        result = subprocess.run(
            [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=20, check=True
        )
        assert result.stdout.splitlines()[-1] == "[]"
        assert time.perf_counter() - begin < 10  # 0.2 s here; a loaded CI machine is not what is tested


@pytest.fixture
def all_runs(make_run: Callable[..., RunDirectory]) -> dict[str, RunDirectory]:
    """From old to new: two that are over, one that is lost, one on another machine, one that runs, one that is over."""
    now, day = time.time(), 86_400.0
    runs = {
        "oldest": make_run("toy-oldest", state="finished", started=now - 9 * day, ended=now - 8 * day),
        "failed": make_run("toy-failed", state="failed", started=now - 7 * day, ended=now - 7 * day),
        "lost": make_run("toy-lost", pid=2**22 + 1, started=now - 5 * day),
        "elsewhere": make_run("toy-elsewhere", pid=2**22 + 1, started=now - 5 * day, logs={"actor-0": "just now"}),
        "running": make_run("toy-running", started=now - 4 * day),
        "newest": make_run("toy-newest", state="stopped", started=now - day, ended=now - day),
    }
    for path in [*runs["lost"].path.rglob("*"), *runs["oldest"].path.rglob("*")]:
        os.utime(path, (now - 5 * day, now - 5 * day))
    return runs


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (["--keep", "1"], {"newest"}),
        (["--keep", "2"], {"lost", "newest"}),
        (["--older-than", "6"], {"lost", "newest"}),
        (["--older-than", "6", "--keep", "3"], {"failed", "lost", "newest"}),
        (["--older-than", "20"], {"oldest", "failed", "lost", "newest"}),
    ],
)
def test_pruning_deletes_old_runs_that_are_over(
    call: Callable[..., Result], all_runs: dict[str, RunDirectory], options: list[str], left: set[str]
) -> None:
    result = call("prune", "--yes", *options)
    assert result.exit_code == 0, result.output
    assert {name for name, run in all_runs.items() if run.path.exists()} == left | {"running", "elsewhere"}


def test_pruning_asks(call: Callable[..., Result], all_runs: dict[str, RunDirectory]) -> None:
    result = call("prune", "--keep", "3")  # nobody answers
    assert result.exit_code == 1
    assert str(all_runs["oldest"].path) in result.stdout
    assert "Delete these 1 runs?" in result.stdout
    assert all_runs["oldest"].path.exists()
    assert call("prune", "--yes").exit_code == 2  # not everything by mistake


def test_a_run_that_goes_on_is_not_removed(make_run: Callable[..., RunDirectory]) -> None:
    with pytest.raises(LaunchError, match="goes on"):
        remove_run(make_run())


def test_the_run_of_another_program_is_not_gone_on_with(
    call: Callable[..., Result], make_run: Callable[..., RunDirectory]
) -> None:
    make_run(state="finished", ended=STARTED + 1)
    result = call("launch", "toy_agents.agent:plain", "--resume", "-d", "toy-1")
    assert result.exit_code == 1
    assert "is one of 'toy', and this is 'plain'" in result.stderr


def test_a_run_that_goes_on_is_not_gone_on_with(
    call: Callable[..., Result], make_run: Callable[..., RunDirectory]
) -> None:
    make_run()
    result = call("launch", "toy", "--resume", "-d", "toy-1")
    assert result.exit_code == 1
    assert "A run of 'toy' goes on in" in result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read from"),
        ("{}", "cannot be read from"),
        ("[]", "cannot be read from"),
        ('{"settings": {"steps": 3}, "seed": null, "launch_type": "local_mt"}', "its settings are {'steps': 3}"),
        ('{"settings": {}, "seed": "3"}', "its seed is '3'"),
        (
            '{"agent": "other", "settings": {"rounds": "3"}, "seed": 1, "launch_type": "local_mt", "directory": "/"}',
            "was launched as 'other', and 'toy' has not the settings that it was given (rounds): name the agent",
        ),
    ],
)
def test_settings_that_cannot_be_gone_on_with(
    call: Callable[..., Result], make_run: Callable[..., RunDirectory], text: str, message: str
) -> None:
    directory = make_run(state="finished", ended=STARTED + 1)
    (directory.path / "settings.json").write_text(text)
    result = call("launch", "toy", "--resume", "-d", "toy-1")
    assert result.exit_code == 1
    assert message in result.stderr


def test_a_run_whose_settings_nobody_kept_is_gone_on_with_and_that_is_told(
    call: Callable[..., Result], make_run: Callable[..., RunDirectory]
) -> None:
    make_run(state="finished", ended=STARTED + 1)
    result = call("launch", "toy", "--resume", "-d", "toy-1", "-t", "local_mt", "--no-live")
    assert result.exit_code == 0, result.output
    assert "nobody kept its settings: the agent's defaults hold where you give none" in result.stdout


def test_passwords_of_urls_are_not_shown() -> None:
    texts = {"memory_backend": "redis://user:sesame@host:1/0", "data_store": "s3://bucket/@place:1", "n": "3"}
    settings = RunSettings(agent="a", settings=texts, seed=None, launch_type="local_mt", directory="/")
    said = settings.describe()
    assert (
        said == "memory_backend=redis://user:***@host:1/0, data_store=s3://bucket/@place:1, n=3, launch_type=local_mt"
    )


def test_the_list_of_runs_leaves_columns_out_rather_than_cut_them(
    call: Callable[..., Result], make_run: Callable[..., RunDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "flow-impala-20261130-014931-527b"
    make_run(name, state="finished", ended=STARTED + 41)
    for width, last in (("80", "nodes"), ("70", "took"), ("44", "state")):
        monkeypatch.setenv("COLUMNS", width)
        heading, row = call("status").stdout.splitlines()
        assert heading.split()[-1] == last
        assert row.startswith(f"{name}   finished")
