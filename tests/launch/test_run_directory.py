"""What runs leave on disk."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from launch import run_directory
from launch.run_directory import create, list_runs, open_run
from topology.errors import LaunchError
from topology.testing import ManualClock


def test_layout(tmp_path: Path) -> None:
    run = create(tmp_path, "my program", clock=ManualClock(1_700_000_000.0))
    assert run.run_id.startswith("my_program-2023111")
    assert len(run.run_id.rpartition("-")[2]) == 4
    assert sorted(path.name for path in run.path.iterdir()) == ["checkpoints", "logs", "metrics", "run.json"]
    assert run.log_path("actor", 3) == run.path / "logs" / "actor-3.log"
    assert run.metrics_path("a/b c", 0) == run.path / "metrics" / "a_b_c-0.jsonl"
    state = run.read_state()
    assert (state["run_id"], state["program"], state["state"]) == (run.run_id, "my program", "starting")
    assert state["launcher"]["pid"] == os.getpid()


def test_two_runs_of_one_second_have_two_names(tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000.0)
    assert len({create(tmp_path, "p", clock=clock).run_id for _ in range(5)}) == 5


@pytest.mark.parametrize("name", ["../../etc", "/abs", ".hidden", "", "ü/ß", "a" * 40])
def test_no_name_leads_elsewhere(tmp_path: Path, name: str) -> None:
    run = create(tmp_path, name)
    assert run.path.parent == tmp_path
    assert run.log_path(name, 0).parent == run.logs


def test_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOLOGY_RUNS", str(tmp_path / "a"))
    assert run_directory.default_base() == tmp_path / "a"
    monkeypatch.delenv("TOPOLOGY_RUNS")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "b"))
    assert run_directory.default_base() == tmp_path / "b" / "topology" / "runs"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run_directory.default_base() == tmp_path / ".local" / "state" / "topology" / "runs"


def test_updates_are_whole_and_leave_nothing_else(tmp_path: Path) -> None:
    run = create(tmp_path, "p")
    run.update_state(state="running", nodes=[{"label": "a", "index": 0, "state": "running"}])
    state = run.read_state()
    assert state["state"] == "running"
    assert state["program"] == "p"
    assert [path.name for path in run.path.iterdir() if path.is_file()] == ["run.json"]


def test_a_run_whose_launcher_is_gone_has_failed(tmp_path: Path) -> None:
    run = create(tmp_path, "p")
    run.update_state(state="running", launcher={"pid": os.getpid(), "create_time": 1.0})  # a later process of that id
    assert run.read_state()["state"] == "failed"
    assert "killed" in run.read_state()["error"]
    run.update_state(state="finished")
    assert run.read_state()["state"] == "finished"


def test_opening(tmp_path: Path) -> None:
    first, second = create(tmp_path, "dqn"), create(tmp_path, "impala")
    assert open_run(first.path).path == first.path
    assert open_run(first.run_id, tmp_path).path == first.path
    assert open_run("imp", tmp_path).path == second.path
    with pytest.raises(LaunchError, match="No run is called 'ppo'"):
        open_run("ppo", tmp_path)
    create(tmp_path, "dqn")
    with pytest.raises(LaunchError, match="2 runs begin with 'dqn'"):
        open_run("dqn", tmp_path)
    with pytest.raises(LaunchError, match="The newest there: none"):
        open_run("x", tmp_path / "nowhere")


def test_the_newest_run_comes_first(tmp_path: Path) -> None:
    runs = [create(tmp_path, "p") for _ in range(3)]
    for run, started in zip(runs, (2.0, 3.0, 1.0), strict=True):
        run.update_state(started=started)
    (tmp_path / "junk").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    assert [run.run_id for run in list_runs(tmp_path)][:3] == [runs[1].run_id, runs[0].run_id, runs[2].run_id]


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LaunchError, match=r"cannot be written: .*TOPOLOGY_RUNS"):
        create(tmp_path / "file", "p")


def test_something_else_is_not_a_run(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps([1])[:-1])
    with pytest.raises(LaunchError, match="is not the directory of a run"):
        run_directory.RunDirectory(tmp_path).read_state()


GOOD: dict[str, Any] = {"state": "finished", "started": 1.0, "launcher": {"pid": 1, "create_time": 1.0}}


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        "text",
        {},
        {"state": "finished"},
        {**GOOD, "state": 3},
        {**GOOD, "started": "yesterday"},
        {**GOOD, "started": float("inf")},
        {**GOOD, "ended": True},
        {**GOOD, "launcher": []},
        {**GOOD, "launcher": {"pid": -1}},
        {**GOOD, "nodes": 7},
        {**GOOD, "nodes": [None]},
        {**GOOD, "nodes": [{"index": 0, "state": "running"}]},
        {**GOOD, "nodes": [{"label": "a", "index": 0, "state": "running", "pid": "x"}]},
    ],
)
def test_a_state_that_no_launcher_wrote(tmp_path: Path, content: object) -> None:
    directory = run_directory.RunDirectory(tmp_path)
    directory.write_json("run.json", content)
    with pytest.raises(LaunchError, match="is not the directory of a run"):
        directory.read_state()
    directory.write_json("run.json", {**GOOD, "unknown": 1})
    assert directory.read_state()["state"] == "finished"


@pytest.mark.parametrize("length", [1, 10_000])
def test_a_full_disk_keeps_the_state_true_in_its_old_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    def no_room(_path: Path, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    directory = run_directory.RunDirectory(tmp_path)
    directory.write_state({**GOOD, "state": "running", "note": "x" * 100})
    monkeypatch.setattr(Path, "write_bytes", no_room)
    after = {**GOOD, "state": "failed", "error": "x" * length}
    if length == 1:
        directory.write_state(after)
        assert directory.read_state() == after
    else:  # more than the blocks that it has
        with pytest.raises(OSError, match="No space"):
            directory.write_state(after)
        assert json.loads((tmp_path / "run.json").read_text())["state"] == "running"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
