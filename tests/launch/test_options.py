"""Launch types, process options, terminals."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import topology as lp
from launch.accelerators import gpu_map
from launch.channel import Channel
from launch.launch_types import LaunchType, flag_value, parse_launch_type
from launch.python_process import PythonProcess
from launch.terminals import FALLING_BACK, check_terminal
from topology.errors import LaunchError


def fake_flags(monkeypatch: pytest.MonkeyPatch, *, parsed: bool, **values: object) -> None:
    class Flags(dict[str, object]):
        def is_parsed(self) -> bool:
            return parsed

    flags = Flags({name: types.SimpleNamespace(value=value) for name, value in values.items()})
    monkeypatch.setitem(sys.modules, "absl.flags", types.SimpleNamespace(FLAGS=flags))  # type: ignore[arg-type]


def test_the_launch_type_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "absl.flags", raising=False)
    assert parse_launch_type(None) is LaunchType.LOCAL_MULTI_THREADING
    fake_flags(monkeypatch, parsed=False, lp_launch_type="test_mp")
    assert parse_launch_type(None) is LaunchType.LOCAL_MULTI_THREADING
    fake_flags(monkeypatch, parsed=True)
    assert parse_launch_type(None) is LaunchType.LOCAL_MULTI_THREADING
    fake_flags(monkeypatch, parsed=True, lp_launch_type="test_mp", lp_termination_notice_secs=3)
    assert parse_launch_type(None) is LaunchType.TEST_MULTI_PROCESSING
    assert parse_launch_type("local_mp") is LaunchType.LOCAL_MULTI_PROCESSING
    assert flag_value("lp_termination_notice_secs") == 3


def test_launch_types_of_other_libraries_are_taken_by_value() -> None:
    assert parse_launch_type(types.SimpleNamespace(value="test_mt")) is LaunchType.TEST_MULTI_THREADING


def visible_cards() -> None:
    print("cards:", os.environ["CUDA_VISIBLE_DEVICES"])


def test_cards_are_seen_by_those_who_are_given_them(runs: Path) -> None:
    program = lp.Program("cards")
    for label, count in (("learner", 1), ("server", 2), ("actor", 2)):
        with program.group(label):
            for _ in range(count):
                program.add_node(lp.PyNode(visible_cards))
    resources = gpu_map(program, {"learner": 0, "server": (1, 2)})
    assert resources == lp.gpu_map(program, {"learner": np.int32(0), "server": np.array([1, 2])})
    options = {"local_resources": resources, "terminal": "output_to_files", "run_directory": runs / "cards"}
    run = lp.launch(program, "test_mp", **options)
    assert run.wait(60)
    seen = {path.stem: path.read_text().split(": ")[-1].strip() for path in (run.run_directory / "logs").iterdir()}
    nodes = {"learner-0": "0", "server-0": "1,2", "server-1": "1,2", "actor-0": "", "actor-1": ""}
    assert {name: seen[name].removeprefix("cards:") for name in nodes} == nodes


@pytest.mark.parametrize(
    ("cards", "text"),
    [
        ({"learner": 0, "actr": 1}, "'cards' has the groups learner, but no actr"),
        ({"learner": "0"}, r"the cards of 'learner' are numbers from 0, each once, got '0'"),
        ({"learner": [0, 0]}, "each once"),
        ({"learner": -1}, "numbers from 0"),
        ({"learner": [True]}, "numbers from 0"),
        ({"learner": None}, "numbers from 0"),
        ({"learner": [0.5]}, "numbers from 0"),
    ],
)
def test_cards_that_cannot_be_meant(cards: dict[str, Any], text: str) -> None:
    program = lp.Program("cards")
    with program.group("learner"):
        program.add_node(lp.PyNode(visible_cards))
    with pytest.raises(LaunchError, match=text):
        gpu_map(program, cards)


def test_python_process() -> None:
    process = PythonProcess(args={"foo": 1, "bar": "x y"}, interpreter_args={"X": "dev", "O": ""}, env={"A": "1"})
    assert process.arguments() == ["--foo=1", "--bar=x y"]
    assert PythonProcess(args={"debug": True, "jit": False}).arguments() == ["--debug", "--nojit"]
    assert process.interpreter_options() == ["-X", "dev", "-O"]
    assert PythonProcess.of({"env": {"A": "1"}}) == PythonProcess(env={"A": "1"})
    assert PythonProcess.of(types.SimpleNamespace(args={}, interpreter_args={}, env={"A": "1"})).env == {"A": "1"}
    assert [PythonProcess.of(nothing) for nothing in ([], {}, None)] == [PythonProcess()] * 3
    assert process.configuration() != PythonProcess().configuration()
    assert PythonProcess(args={"foo": 1}).configuration() == PythonProcess().configuration()
    assert PythonProcess(env={"A": -1, "B": 0.5, "C": None}).env == {"A": "-1", "B": "0.5", "C": None}
    with pytest.raises(LaunchError, match="names to strings"):
        PythonProcess(env={"A": [1]})


def test_terminals(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    assert check_terminal(None) == "current_terminal"
    monkeypatch.setenv("LAUNCHPAD_LAUNCH_LOCAL_TERMINAL", "output_to_files")
    assert check_terminal(None) == "output_to_files"
    assert check_terminal("tmux_session") == "tmux_session"
    for name in FALLING_BACK:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert check_terminal(name) == "current_terminal"
        assert name in caplog.text


@pytest.mark.parametrize("kind", ["local_mt", "local_mp"])
def test_output_to_files(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    run = lp.launch(lp.make_program(lp.PyNode(print, "a line")), kind, terminal="output_to_files")
    assert run.wait(20)
    out, _ = capfd.readouterr()
    assert out == f"The output of the nodes is in {run.run_directory / 'logs'}\n"
    assert (run.run_directory / "logs" / "pynode_0-0.log").read_text() == "a line\n"


def test_launchpads_logging_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHPAD_LOGGING_DIR", str(tmp_path / "lp"))
    run = lp.launch(lp.make_program(lp.PyNode(print, "a line")), "local_mp", terminal="output_to_files")
    assert run.wait(20)
    log = tmp_path / "lp" / run.run_id / "pynode_0-0.log"
    assert log.read_text() == "a line\n"
    assert (run.run_directory / "logs" / "pynode_0-0.log").read_text() == "a line\n"


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_a_tmux_session_has_a_window_for_every_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMUX_TMPDIR", str(tmp_path))
    monkeypatch.delenv("TMUX", raising=False)
    fake_flags(monkeypatch, parsed=True, tmux_session_name="the-session")
    program = lp.Program("p")
    with program.group("waiter"):
        for _ in range(2):
            program.add_node(lp.PyNode(lp.wait_for_stop))
    run = lp.launch(program, "local_mt", terminal="tmux_session")
    try:
        windows = subprocess.run(
            ["tmux", "list-windows", "-t", "the-session", "-F", "#{window_name}"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert windows.stdout.split() == ["waiter/0", "waiter/1"]
        options = [
            subprocess.run(
                ["tmux", "show-window-options", "-v", "-t", f"the-session:{window}", "remain-on-exit"],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for window in windows.stdout.split()
        ]
        assert options == ["on\n", "on\n"]  # else the session would be gone before anybody attaches to it
    finally:
        run.stop()
        subprocess.run(["tmux", "kill-server"], check=False, capture_output=True)


def test_without_tmux_output_comes_here(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with caplog.at_level(logging.WARNING):
        assert lp.launch(lp.make_program(lp.PyNode(int)), "test_mt", terminal="tmux_session").wait(20)
    assert "tmux is not installed" in caplog.text


def test_messages_and_files_travel_together(tmp_path: Path) -> None:
    ours, socket = Channel.pair()
    theirs = Channel(socket)
    with (tmp_path / "file").open("w") as file:
        assert ours.send({"number": 1}, [file.fileno()])
        assert ours.send({"text": "x" * 100_000})
        assert ours.send({"number": 2}, [file.fileno(), file.fileno()])
    found = []
    while len(found) < 3:
        received = theirs.receive()
        assert received is not None
        found += received
    assert [message for message, _ in found] == [{"number": 1}, {"text": "x" * 100_000}, {"number": 2}]
    assert [len(fds) for _, fds in found] == [1, 0, 2]
    for _, fds in found:
        for descriptor in fds:
            with open(descriptor, "w") as file:
                file.write("written")
    assert (tmp_path / "file").read_text() == "written" * 3
    ours.close()
    assert theirs.receive() is None
    assert not theirs.send({"too": "late"})
    theirs.close()


def test_flags_that_a_script_defines_reach_its_nodes(run_script: Callable[..., tuple[int, str]]) -> None:
    """A node that reads the script's `FLAGS` sees the script's values, or those of its own `PythonProcess`."""
    code, output = run_script(
        """
        from absl import app, flags

        FLAGS = flags.FLAGS
        flags.DEFINE_integer("workers", 2, "A number.")
        flags.DEFINE_list("names", ["a"], "Some names.")
        DEEP = flags.DEFINE_bool("deep", False, "A switch.")

        def show():
            print("node", FLAGS.workers, FLAGS.names, DEEP.value)

        def main(_):
            program = lp.Program("flags")
            program.add_node(lp.PyNode(show), label="same")
            program.add_node(lp.PyNode(show), label="other")
            other = lp.PythonProcess(args={"workers": 7, "deep": True})
            lp.launch(program, "local_mp", local_resources={"other": other}).wait()

        app.run(main)
        """,
        "--workers=5",
        "--names=b,c",
    )
    assert code == 0
    assert "[same/0] node 5 ['b', 'c'] False" in output
    assert "[other/0] node 7 ['b', 'c'] True" in output
