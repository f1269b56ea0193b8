"""Ctrl-C during `topology launch`, whenever it comes: what is said, the exit code, what is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from launch.entry import end_at_ctrl_c
from launch.run_directory import RunDirectory

DEADLINE_S = 30.0

Start = Callable[..., subprocess.Popen[str]]

AGENT = """
import signal
import threading
import topology as lp

def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ready", flush=True)
    threading.Event().wait()

def stubborn():
    print("ready", flush=True)
    lp.wait_for_stop()
    print("stopping", flush=True)
    threading.Event().wait()

def polite():
    print("ready", flush=True)
    lp.wait_for_stop()

def program_of(function):
    program = lp.Program("pressed")
    program.add_node(lp.PyNode(function), label="node")
    return program

def make_stubborn(): return program_of(stubborn)
def make_deaf(): return program_of(deaf)
def make_polite(): return program_of(polite)

def make_slowly():
    print("building", flush=True)
    threading.Event().wait()
"""


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    path = tmp_path / "pressed.py"
    path.write_text(AGENT)
    return path


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:  # pytest-timeout is the deadline
        if text in line:
            return
    raise AssertionError(f"it ended without {text!r}")


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = process.stdout.read(), process.stderr.read()  # communicate() would miss what the line reader has read
    return process.wait(DEADLINE_S), out, err


@pytest.mark.parametrize("kind", ["local_mp", "local_mt"])
def test_a_second_press_after_the_end_does_not_take_the_summary_away(
    start_command: Start, agent: Path, kind: str
) -> None:
    process = start_command("launch", f"{agent}:make_polite", "-t", kind, "--terminal", "current_terminal")
    wait_for(process, "ready")
    process.send_signal(signal.SIGINT)
    wait_for(process, "stopped |")  # the last line of the view: the run has ended, the summary comes now
    for _ in range(3):
        process.send_signal(signal.SIGINT)
    code, out, err = finish(process)
    assert code == 130
    assert "stopped after" in out
    assert err == ""


def test_two_presses_end_a_node_that_does_not_and_the_summary_comes(start_command: Start, agent: Path) -> None:
    process = start_command("launch", f"{agent}:make_stubborn", "--terminal", "current_terminal")
    wait_for(process, "ready")
    process.send_signal(signal.SIGINT)
    wait_for(process, "stopping")
    process.send_signal(signal.SIGINT)
    code, out, err = finish(process)
    assert code == 130
    assert " after 0:0" in out
    assert "Traceback" not in err


@pytest.mark.parametrize(("agent_name", "kind"), [("deaf", "local_mp"), ("stubborn", "local_mt")])
def test_stopping_now_ends_a_node_that_does_not_and_the_run_says_how_it_ended(
    start_command: Start, agent: Path, agent_name: str, kind: str
) -> None:
    launched = start_command("launch", f"{agent}:make_{agent_name}", "-t", kind, "--terminal", "current_terminal")
    wait_for(launched, "ready")
    children = psutil.Process(launched.pid).children(recursive=True)
    code, out, err = finish(start_command("stop", "latest", "--now"))
    assert (code, err) == (0, "")
    assert out.endswith(": stopped\n")
    code, out, _ = finish(launched)
    assert code == 0
    assert "stopped after" in out
    assert psutil.wait_procs(children, timeout=5)[1] == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_press_while_the_agent_is_built_is_said(
    start_command: Start, agent: Path, runs: Path, number: signal.Signals, code: int
) -> None:
    process = start_command("launch", f"{agent}:make_slowly")
    wait_for(process, "building")
    process.send_signal(number)
    assert finish(process) == (code, "", "interrupted while starting: nothing of it runs any more\n")
    assert not list(runs.iterdir())


def test_a_run_that_was_interrupted_while_starting_is_stopped(
    start_command: Start, agent: Path, runs: Path, tmp_path: Path
) -> None:
    agent.write_text(AGENT + "PRELOAD = ('slow_module',)\n")
    (tmp_path / "slow_module.py").write_text("print('preloading', flush=True)\nimport time\ntime.sleep(3600)\n")
    process = start_command("launch", f"{agent}:make_polite")
    wait_for(process, "preloading")
    process.send_signal(signal.SIGINT)
    assert finish(process)[0::2] == (130, "interrupted while starting: nothing of it runs any more\n")
    (path,) = runs.glob("*/run.json")
    state = json.loads(path.read_text())
    assert state["state"] == "stopped"
    assert state["ended"] >= state["started"]
    assert "interrupted while it was starting" in finish(start_command("status", "latest"))[1]


def test_a_press_while_the_command_is_imported_is_one_line(tmp_path: Path, runs: Path) -> None:
    (tmp_path / "typer.py").write_text("print('importing', flush=True)\nimport threading\nthreading.Event().wait()\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[3]}"}
    process = subprocess.Popen(
        [sys.executable, "-c", "from launch.entry import main; main()", "launch", "toy"],
        env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    wait_for(process, "importing")
    process.send_signal(signal.SIGINT)
    assert finish(process) == (130, "", "interrupted\n")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stderr.close()


def test_a_press_while_logs_are_followed_is_one_line(
    start_command: Start, make_run: Callable[..., RunDirectory]
) -> None:
    make_run(logs={"actor-0": "hello\n"})
    process = start_command("logs", "latest", "--follow")
    wait_for(process, "hello")
    process.send_signal(signal.SIGINT)
    assert finish(process) == (130, "", "interrupted\n")


def test_an_ignored_ctrl_c_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        end_at_ctrl_c()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
