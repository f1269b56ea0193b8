"""`topology launch` from the outside: a process, its output, its exit code, what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil

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


def test_a_run_ends_by_itself_with_a_summary(start_command: Start, tmp_path: Path) -> None:
    place = tmp_path / "new" / "place"
    process = start_command("launch", "toy", "-n", "3", "--set", "steps=40", "--run-directory", str(place))
    code, out, err = finish(process)
    assert (code, err) == (0, "")
    assert "finished 100% | actor steps 40" in out
    assert "evaluator return  4  (best 4 at 40 actor steps)" in out
    assert "\x1b" not in out
    assert (place / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((place / "run.json").read_text())["state"] == "finished"
    assert "an actor" not in out  # it is in the logs
    _, out, _ = finish(start_command("logs", str(place)))
    *actors, counter = out.splitlines()
    # An actor that starts when the others have made all the steps says nothing.
    assert {f"actor/{i} | an actor" for i in range(3)} >= set(actors) != set()
    assert counter == "counter/0 | counted"


def test_a_run_of_threads_ends_by_itself_with_a_summary(start_command: Start) -> None:
    code, out, err = finish(start_command("launch", "toy", "--launch-type", "local_mt"))
    assert (code, err) == (0, "")
    assert "finished after" in out


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


def test_a_terminal_sees_a_picture_and_is_left_as_it_was(start_command: Start) -> None:
    ours, theirs = pty.openpty()
    try:
        process = start_command("launch", "toy", "--set", "steps=40", stdout=theirs, stderr=theirs)
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the end of a terminal, on Linux
            while part := os.read(ours, 65536):
                shown += part
    finally:
        os.close(ours)
    assert process.wait(DEADLINE_S) == 0
    text = shown.decode()
    assert "● running" in text or "● starting" in text
    assert "Ctrl-C stops the run" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is back
    assert "finished after" in text[text.rindex("\x1b[?25h") :]
    assert "an actor" not in text


def test_a_run_is_gone_on_with_as_it_was_launched(start_command: Start, runs: Path) -> None:
    place = runs / "first"
    given = ("--set", "steps=7", "--num-actors", "3", "--seed", "5", "-t", "local_mt")
    assert finish(start_command("launch", "toy", *given, "-d", str(place)))[0] == 0
    settings = json.loads((place / "settings.json").read_text())
    assert settings["settings"] == {"steps": "7", "num_actors": "3"}
    assert (place / "settings.json").stat().st_mode & 0o077 == 0  # the URL of a server may hold a password
    resume = ("launch", "toy", "--resume", "-d", str(place))
    code, out, _ = finish(start_command(*resume))
    assert code == 0
    assert "resume: with the settings of the run (seed=5, num_actors=3, steps=7, launch_type=local_mt)\n" in out
    code, out, _ = finish(start_command(*resume, "--set", "steps=9", "--seed", "6"))
    assert code == 0
    assert "; but seed=6 (was 5), steps=9 (was 7)\n" in out
    code, out, _ = finish(start_command(*resume))  # with what the last one was launched with
    assert "(seed=6, num_actors=3, steps=9, launch_type=local_mt)\n" in out
    state = json.loads((place / "run.json").read_text())
    assert (state["launch_type"], state["seed"], len(state["nodes"])) == ("local_mt", 6, 4)
    rows = [json.loads(row) for row in (place / "metrics" / "counter-0.jsonl").read_text().splitlines()]
    assert len(rows) == 2 * 8 + 2 * 10


def test_a_run_is_gone_on_with(start_command: Start, runs: Path) -> None:
    place = str(runs / "first")
    assert finish(start_command("launch", "toy", "-d", place))[0] == 0
    code, _, err = finish(start_command("launch", "toy", "-d", place))
    assert code == 1
    assert "is that of an earlier run: give a new or an empty directory, or --resume" in err
    assert finish(start_command("launch", "toy", "--resume", "-d", place))[0] == 0
    assert finish(start_command("launch", "toy", "--resume", "-d", "latest"))[0] == 0  # by its name, too
    assert len(list(runs.iterdir())) == 1
    rows = (runs / "first" / "metrics" / "counter-0.jsonl").read_text().splitlines()
    assert len(rows) == 3 * 21
