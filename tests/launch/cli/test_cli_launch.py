"""`topology launch` from the outside: a process, its output, its exit code, what it leaves behind."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

DEADLINE_S = 30.0

Start = Callable[..., subprocess.Popen[str]]


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    out, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, out, err


def start_and_wait_until_it_runs(start: Start, *arguments: str) -> subprocess.Popen[str]:
    process = start("launch", "toy", "--set", "mode=wait", "--terminal", "current_terminal", *arguments)
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if "counted" in line:
            return process
    raise AssertionError("".join(seen) + process.stderr.read())  # type: ignore[union-attr]


def state_of(runs: Path) -> dict[str, object]:
    (path,) = runs.glob("*/run.json")
    state: dict[str, object] = json.loads(path.read_text())
    return state


@pytest.mark.parametrize("launch_type", ["local_mp", "local_mt"])
def test_a_run_ends_by_itself_with_a_summary(start_command: Start, runs: Path, launch_type: str) -> None:
    code, out, err = finish(
        start_command("launch", "toy", "--launch-type", launch_type, "-n", "3", "--set", "steps=40")
    )
    assert (code, err) == (0, "")
    assert "finished 100% | actor steps 40" in out
    assert "evaluator return  4  (best 4 at 40 actor steps)" in out
    assert "\x1b" not in out
    (directory,) = runs.iterdir()
    assert (directory / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert state_of(runs)["state"] == "finished"


def test_what_nodes_print_is_in_the_logs_only(start_command: Start) -> None:
    code, out, _ = finish(start_command("launch", "toy"))
    assert code == 0
    assert "an actor" not in out
    _, out, _ = finish(start_command("logs", "latest"))
    assert "actor/0 | an actor\nactor/1 | an actor\ncounter/0 | counted\n" in out


def test_a_terminal_that_was_asked_for_gets_what_nodes_print(start_command: Start) -> None:
    code, out, _ = finish(start_command("launch", "toy", "--terminal", "current_terminal"))
    assert code == 0
    assert "[actor/1] an actor" in out


def test_a_failure_exits_with_1_and_its_traceback_comes_last(start_command: Start, runs: Path) -> None:
    code, out, err = finish(start_command("launch", "toy", "--set", "mode=fail"))
    assert code == 1
    assert "failed after" in out
    assert "error: Node counter/0 failed: RuntimeError: the toy broke" in err
    assert err.rstrip().splitlines()[-1] == "RuntimeError: the toy broke"
    assert state_of(runs)["state"] == "failed"


def test_a_failure_among_threads_exits_with_1(start_command: Start) -> None:
    code, out, err = finish(start_command("launch", "toy", "-t", "local_mt", "--set", "mode=fail"))
    assert code == 1
    assert "failed after" in out
    assert "RuntimeError: the toy broke" in err


def test_ctrl_c_stops_and_exits_with_130(start_command: Start, runs: Path) -> None:
    process = start_and_wait_until_it_runs(start_command)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    code, out, err = finish(process)
    assert code == 130
    assert "stopped after" in out
    assert "Traceback" not in err
    assert state_of(runs)["state"] == "stopped"
    assert psutil.wait_procs(children, timeout=5)[1] == []


def test_a_run_is_stopped_from_elsewhere(start_command: Start) -> None:
    process = start_and_wait_until_it_runs(start_command)
    code, out, _ = finish(start_command("stop", "latest"))
    assert code == 0
    assert out.endswith(": stopped\n")
    code, out, _ = finish(process)
    assert code == 0
    assert "stopped after" in out


def test_a_killed_launcher_is_lost_and_nothing_of_it_is_left(start_command: Start) -> None:
    process = start_and_wait_until_it_runs(start_command)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait(DEADLINE_S)
    assert '"state": "lost"' in finish(start_command("status", "latest", "--json"))[1]
    code, out, _ = finish(start_command("stop", "latest", "--now"))
    assert code == 0
    assert out.endswith(": lost\n")
    assert psutil.wait_procs(children, timeout=6)[1] == []


def test_a_file_runs_as_processes(start_command: Start, tmp_path: Path) -> None:
    path = tmp_path / "hello.py"
    path.write_text(
        "import topology as lp\n"
        "def greet(name): print('hello', name)\n"
        "def build(name='world'):\n"
        "    program = lp.Program('hello')\n"
        "    program.add_node(lp.PyNode(greet, name), label='greeter')\n"
        "    return program\n"
    )
    code, out, err = finish(start_command("launch", f"{path}:build", "--set", "name=you"))
    assert (code, err) == (0, "")
    assert "finished after" in out
    assert finish(start_command("logs", "latest", "greeter/0"))[1] == "hello you\n"


def test_the_run_directory_is_a_new_or_empty_one(start_command: Start, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    code, _, _ = finish(start_command("launch", "toy", "--run-directory", str(place)))
    assert code == 0
    assert (place / "run.json").exists()
    code, _, err = finish(start_command("launch", "toy", "--run-directory", str(place)))
    assert (code, err) == (
        1,
        f"error: --run-directory {place} exists and is not empty: give a new or an empty directory\n",
    )
    code, _, err = finish(start_command("launch", "toy", "--run-directory", "/proc/no/run"))
    assert code == 1
    assert "cannot be written" in err
    code, _, err = finish(start_command("launch", "toy", "--terminal", "teletype"))
    assert code in (1, 2)
    assert "teletype" in err
    assert "Traceback" not in err
