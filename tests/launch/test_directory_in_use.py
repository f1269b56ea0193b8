"""A run directory that is given: of a run that goes on, of one that has ended, of one that never began."""

from __future__ import annotations

import errno
import json
import threading
from pathlib import Path
from typing import Any

import pytest

import topology as lp
from launch.run_directory import RunDirectory, prepare
from topology.errors import LaunchError


def launch(directory: Any, function: Any = lp.wait_for_stop, launcher: Any = "local_mt") -> lp.Run:
    return lp.launch(lp.make_program(lp.PyNode(function), name="mine"), launcher, run_directory=directory)


def test_the_directory_of_a_run_that_goes_on_is_refused(tmp_path: Path) -> None:
    with launch(tmp_path / "run") as run:
        with pytest.raises(LaunchError, match=r"A run of 'mine' goes on in .*topology stop"):
            launch(tmp_path / "run")
        record = json.loads((run.run_directory / "run.json").read_text())
        assert record["run_id"] == run.run_id
        assert record["state"] in {"starting", "running"}  # it is written behind the run's back
        assert run.state == "running"
        assert run.stop(timeout=20)


def test_a_run_that_has_ended_is_gone_on_with(tmp_path: Path) -> None:
    for text in ("first", "second"):
        run = launch(tmp_path / "run", lambda text=text: (tmp_path / "run" / "checkpoints" / text).touch())
        assert run.wait(timeout=20)
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == ["first", "second"]


def test_the_directory_of_a_run_that_was_killed_is_gone_on_with(tmp_path: Path) -> None:
    directory = prepare(tmp_path, "mine")
    directory.update_state(state="running", launcher={"pid": 1, "create_time": 1.0})
    assert launch(tmp_path, print).wait(timeout=20)


def test_of_two_launches_at_the_same_moment_one_gets_the_directory(tmp_path: Path) -> None:
    barrier = threading.Barrier(4)
    refused: list[LaunchError] = []

    def try_it() -> None:
        barrier.wait(20)
        try:
            prepare(tmp_path / "run", "mine")
        except LaunchError as error:
            refused.append(error)

    threads = [threading.Thread(target=try_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(refused) == 3


@pytest.mark.parametrize("path", ["", 5, b"", True])
def test_what_is_no_directory_is_refused(path: Any) -> None:
    with pytest.raises(LaunchError, match="run_directory is the path of a directory"):
        launch(path)


@pytest.mark.parametrize("exists", [False, True])
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool) -> None:
    place = tmp_path / "run"
    if exists:
        place.mkdir()

    def full(self: RunDirectory, name: str, value: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "write_json", full)
        with pytest.raises(LaunchError, match="No space left on device"):
            launch(place)
    assert place.exists() == exists
    assert not exists or not list(place.iterdir())
    assert launch(place, print).wait(timeout=20)


@pytest.mark.parametrize("exists", [False, True])
def test_a_launch_that_fails_leaves_a_given_directory_as_it_was(tmp_path: Path, exists: bool) -> None:
    place = tmp_path / "run"
    if exists:
        place.mkdir()
    with pytest.raises(LaunchError, match="no_such_module"):
        launch(place, print, lp.Processes(preload=("no_such_module",)))
    assert place.exists() == exists
    assert not exists or not list(place.iterdir())


def test_a_launch_that_fails_takes_nothing_from_an_earlier_run(tmp_path: Path) -> None:
    assert launch(tmp_path, (tmp_path / "checkpoints" / "state").touch).wait(timeout=20)
    with pytest.raises(LaunchError, match="no_such_module"):
        launch(tmp_path, print, lp.Processes(preload=("no_such_module",)))
    assert (tmp_path / "checkpoints" / "state").exists()
    assert json.loads((tmp_path / "run.json").read_text())["state"] == "failed"
