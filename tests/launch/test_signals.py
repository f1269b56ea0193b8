"""Signals to the launching script, wherever its main thread is."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGQUIT"), reason="POSIX signals")

Start = Callable[..., Any]
Left = Callable[[], list[int]]

POLITE = """
    import signal, sys, threading, time
    def polite():
        print("ready", flush=True)
        lp.wait_for_stop()
        print("saved", flush=True)
    program = lp.make_program(lp.PyNode(polite))
"""


@pytest.mark.parametrize("kind", ["local_mt", "local_mp"])
def test_ctrl_c_while_the_script_does_something_else(start: Start, left_processes: Left, kind: str) -> None:
    script = start(
        POLITE
        + """
    run = lp.launch(program, sys.argv[1])
    try:
        print("waiting", flush=True)
        time.sleep(3600)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        run.wait()
        print("state", run.state, flush=True)
    """,
        kind,
    )
    script.lines("ready", "waiting")  # launch() may return after its nodes have begun
    script.send(signal.SIGINT)
    code, output = script.finish()
    assert code == 0
    assert "interrupted" in output
    assert "saved" in output
    assert output.endswith("state stopped\n")
    assert left_processes() == []


@pytest.mark.parametrize("kind", ["local_mt", "local_mp"])
def test_ctrl_c_after_the_last_line(start: Start, left_processes: Left, kind: str) -> None:
    script = start(POLITE + "\n    lp.launch(program, sys.argv[1])\n", kind)
    script.line("ready")
    script.send(signal.SIGINT)
    code, output = script.finish()
    assert "saved" in output
    assert code in (130, -signal.SIGINT)  # the latter inside launch(), which a shell shows as 130, too
    assert left_processes() == []


def test_ctrl_c_when_another_thread_launched(start: Start, left_processes: Left) -> None:
    script = start(
        POLITE
        + """
    thread = threading.Thread(target=lambda: lp.launch(program, "local_mp").wait())
    thread.start()
    thread.join()
    """
    )
    script.line("ready")
    script.send(signal.SIGINT)
    code, output = script.finish()
    assert "saved" in output
    assert code == -signal.SIGINT
    assert left_processes() == []


def test_sigquit_stops_at_once(start: Start, left_processes: Left) -> None:
    script = start(
        """
        def stubborn():
            print("ready", flush=True)
            while True:
                try:
                    lp.stop_event().__class__().wait()
                except SystemExit:
                    pass
        lp.launch(lp.make_program(lp.PyNode(stubborn)), "local_mp", termination_notice_s=3600).wait()
        """
    )
    script.line("ready")
    script.send(signal.SIGQUIT)
    code, _ = script.finish()
    assert code == 128 + signal.SIGQUIT
    assert left_processes() == []


def test_handlers_are_put_back_and_those_of_users_are_called(start: Start) -> None:
    script = start(
        POLITE
        + """
    def own(number, frame):
        print("own handler", flush=True)
    signal.signal(signal.SIGTERM, own)
    run = lp.launch(program, "local_mp")
    run.wait()
    print("state", run.state)
    assert signal.getsignal(signal.SIGTERM) is own
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGQUIT) == signal.SIG_DFL
    """
    )
    script.line("ready")
    script.send(signal.SIGTERM)
    code, output = script.finish()
    assert code == 0, output
    assert "own handler" in output
    assert "state stopped" in output


def test_ignored_signals_stay_ignored(start: Start) -> None:
    script = start(
        POLITE
        + """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as under nohup, or in the background of a shell
    run = lp.launch(program, "local_mp")
    run.wait()
    """
    )
    script.line("ready")
    script.send(signal.SIGINT)
    script.send(signal.SIGTERM)
    code, _ = script.finish()
    assert code == 143


def test_ctrl_c_stops_every_program(start: Start, left_processes: Left) -> None:
    script = start(
        POLITE
        + """
    runs = [lp.launch(program, "local_mp"), lp.launch(lp.make_program(lp.PyNode(polite)), "local_mt")]
    try:
        print("waiting", flush=True)
        runs[0].wait()
    except KeyboardInterrupt:  # perhaps before the wait has begun
        for run in runs:
            run.wait()
        print([run.state for run in runs], flush=True)
    """
    )
    script.line("waiting")
    script.send(signal.SIGINT)
    code, output = script.finish()
    assert code == 0
    assert "['stopped', 'stopped']" in output
    assert left_processes() == []


def test_ctrl_c_of_a_terminal_reaches_the_script_only(start: Start, left_processes: Left) -> None:
    """A terminal signals the whole foreground process group: nodes are in none of it."""
    script = start(POLITE + "\n    lp.launch(program, 'local_mp').wait()\n")
    script.line("ready")
    os.killpg(script.pid, signal.SIGINT)
    code, output = script.finish()
    assert code == -signal.SIGINT
    assert "saved" in output
    assert output.count("Traceback") == 1
    assert left_processes() == []


@pytest.mark.parametrize("body", ["time.sleep(3600)", "threading.Event().wait()", "while True: pass"])
def test_a_constructor_that_hangs_is_ended_by_the_stop(start: Start, left_processes: Left, body: str) -> None:
    script = start(
        f"""
        import threading, time
        class Hangs:
            def __init__(self):
                print("ready", flush=True)
                {body}
        program = lp.Program("p")
        program.add_node(lp.CourierNode(Hangs), label="hangs")
        run = lp.launch(program, "local_mp", termination_notice_s=3600)
        run.wait()
        """
    )
    script.line("ready")
    script.send(signal.SIGINT)
    assert script.finish()[0] == -signal.SIGINT
    assert left_processes() == []


def test_an_interactive_session_does_not_wait_for_its_programs(start: Start, left_processes: Left) -> None:
    script = start(POLITE + "\n    sys.ps1 = '>>> '\n    run = lp.launch(program, 'local_mp')\n    time.sleep(0.5)\n")
    script.line("ready")
    code, output = script.finish()
    assert code == 0
    assert "saved" in output
    assert left_processes() == []
