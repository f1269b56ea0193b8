"""An interrupt that finds a node on its way out, or where nothing can be raised, leaves no word in its log."""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import topology as lp

NOT_YET_S = 0.5  # later than a node that never looks at the stop is interrupted


def launch(function: Callable[[], Any], **options: Any) -> lp.Run:
    program = lp.Program("test")
    program.add_node(lp.PyNode(function), label="node")
    return lp.launch(program, "local_mp", terminal="output_to_files", **options)


def log_of(run: lp.Run) -> str:
    return (run.run_directory / "logs" / "node-0.log").read_text()


def wait_for_line(pipe: int) -> None:
    os.read(pipe, 1)  # pytest-timeout is the deadline


def test_exit_functions_may_finish(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ready")
    os.mkfifo(tmp_path / "gate")
    ready, gate = (os.open(tmp_path / name, os.O_RDWR) for name in ("ready", "gate"))

    def save() -> None:
        (tmp_path / "ready").write_bytes(b"x")
        with (tmp_path / "gate").open("rb", buffering=0) as file:
            file.read(1)
        print("saved", flush=True)

    run = launch(lambda: atexit.register(save))
    wait_for_line(ready)
    assert not run.stop(timeout=NOT_YET_S)
    os.write(gate, b"x")
    assert run.wait(timeout=30)
    assert log_of(run) == "saved\n"
    os.close(ready)
    os.close(gate)


def test_an_exit_function_that_hangs_is_ended_without_a_word(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ready")
    ready = os.open(tmp_path / "ready", os.O_RDWR)

    def hang() -> None:
        (tmp_path / "ready").write_bytes(b"x")
        while True:
            pass

    run = launch(lambda: atexit.register(hang), termination_notice_s=0.3)
    wait_for_line(ready)
    assert run.stop(timeout=30)
    assert log_of(run) == ""
    assert run.exit_codes == {"node/0": 0}  # not killed
    os.close(ready)


def test_an_interrupt_that_python_could_not_raise_comes_again(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ready")
    ready = os.open(tmp_path / "ready", os.O_RDWR)

    class Spins:
        def __del__(self) -> None:
            (tmp_path / "ready").write_bytes(b"x")
            while True:
                pass

    def busy() -> None:
        Spins()
        while True:
            pass

    run = launch(busy)
    wait_for_line(ready)
    assert run.stop(timeout=30)
    assert log_of(run) == ""
    assert run.exit_codes == {"node/0": 0}
    os.close(ready)


def test_what_else_goes_wrong_where_nothing_can_be_raised_is_reported() -> None:
    class Fails:
        def __del__(self) -> None:
            raise ValueError("in __del__")

    def fails() -> None:
        Fails()

    run = launch(fails)
    assert run.wait(timeout=30)
    assert "ValueError: in __del__" in log_of(run)


def test_ctrl_c_while_the_script_waits_shows_the_scripts_line_and_none_of_ours(start: Callable[..., Any]) -> None:
    script = start(
        """
        def node():
            print("ready", flush=True)
            lp.wait_for_stop()

        lp.launch(lp.make_program(lp.PyNode(node)), "local_mt").wait()
        """
    )
    script.line("ready")
    script.send(signal.SIGINT)
    code, output = script.finish()
    assert code in (130, -signal.SIGINT)
    assert output.count("  File ") == 2  # the script's, and `wait` itself
    assert output.endswith("\nKeyboardInterrupt\n")
