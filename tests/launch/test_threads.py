"""What is special about nodes that are threads."""

from __future__ import annotations

import dataclasses
import gc
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import topology as lp
from topology.errors import ProgramStopped
from topology.testing import no_leaks


def program_of(**functions: Callable[[], Any]) -> lp.Program:
    program = lp.Program("test")
    for label, function in functions.items():
        program.add_node(lp.PyNode(function), label=label)
    return program


def launch(program: lp.Program, kind: str = "test_mt", **options: Any) -> lp.Run:
    return lp.launch(program, kind, serialize_py_nodes=False, **options)


def test_code_that_never_looks_at_the_stop_is_interrupted() -> None:
    started, cleaned = threading.Event(), threading.Event()

    def busy() -> None:
        try:
            while True:
                started.set()
        finally:
            cleaned.set()

    with no_leaks():
        run = launch(program_of(busy=busy))
        assert started.wait(20)
        assert run.stop(timeout=20)
    assert cleaned.is_set()
    assert run.status() == {"busy/0": "stopped"}


def test_code_that_looks_at_the_stop_ends_by_itself() -> None:
    saved = threading.Event()

    def polite() -> None:
        lp.wait_for_stop()
        for _ in range(1000):  # an interrupt would end this
            sum(range(100))
        saved.set()

    run = launch(program_of(polite=polite))
    assert run.stop(timeout=20)
    assert saved.is_set()


def test_a_thread_inside_a_c_call_is_left_behind_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    gate = threading.Lock()  # a lock's acquire is C code that nothing can interrupt in a thread
    gate.acquire()

    def stuck_in_here() -> None:
        with gate:
            pass

    run = launch(program_of(stuck=stuck_in_here), termination_notice_s=0.2)
    with caplog.at_level(logging.WARNING):
        assert run.stop(timeout=20)
    gate.release()
    assert run.status() == {"stuck/0": "stopped"}
    assert "stuck/0" in caplog.text
    assert "stuck_in_here" in caplog.text


def test_a_thread_asleep_is_not_waited_for_during_the_whole_notice() -> None:
    started = threading.Event()

    def asleep() -> None:
        started.set()
        time.sleep(4)

    run = launch(program_of(asleep=asleep), termination_notice_s=3600)
    assert started.wait(20)
    before = time.monotonic()
    assert run.stop(timeout=20)
    assert time.monotonic() - before < 3.5


def test_the_error_of_a_node_is_the_very_object() -> None:
    class OwnError(Exception):
        pass

    error = OwnError("mine")

    def fail() -> None:
        raise error

    with pytest.raises(OwnError) as caught:
        launch(program_of(bad=fail)).wait(20)
    assert caught.value is error


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_node_that_exits_does_not_end_the_script(error: BaseException) -> None:
    def leave() -> None:
        raise error

    with pytest.raises(lp.errors.NodeFailed, match="leaver/0"):
        launch(program_of(leaver=leave)).wait(20)


def test_nodes_and_their_threads_know_who_they_are() -> None:
    names: list[str] = []

    def tell() -> None:
        thread = threading.Thread(target=lambda: names.append(lp.get_context().name))
        thread.start()
        thread.join()

    program = lp.Program("test")
    with program.group("node"):
        for _ in range(3):
            program.add_node(lp.PyNode(tell))
    launch(program).wait(20)
    assert sorted(names) == ["node/0", "node/1", "node/2"]


def test_tracing_reaches_the_nodes() -> None:
    """Debuggers set breakpoints in nodes by `threading.settrace`."""
    seen: list[str] = []

    def traced_node() -> None:
        pass

    def trace(frame: Any, event: str, arg: Any) -> None:
        seen.append(frame.f_code.co_name)

    threading.settrace(trace)
    try:
        launch(program_of(node=traced_node)).wait(20)
    finally:
        threading.settrace(None)  # type: ignore[arg-type]
    assert "traced_node" in seen


def test_lines_of_nodes_have_their_names_and_others_pass(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout

    def talk() -> None:
        print("from", "the node")
        sys.stderr.write("an error\n")
        worker = threading.Thread(target=print, args=("from a thread",))
        worker.start()
        worker.join()
        print("no newline", end="")

    run = launch(program_of(talker=talk), "local_mt")
    print("from the script")
    assert run.wait(20)
    assert sys.stdout is before
    lines = capsys.readouterr().out.splitlines()
    assert "from the script" in lines
    assert [line for line in lines if line.startswith("[")] == [
        "[talker/0] from the node",
        "[talker/0] an error",
        "[talker/0] from a thread",
        "[talker/0] no newline",
    ]
    log = run.run_directory / "logs" / "talker-0.log"
    assert log.read_text() == "from the node\nan error\nfrom a thread\nno newline\n"


def test_run_stop_inside_a_node_does_not_wait_for_itself() -> None:
    runs: list[lp.Run] = []
    ready = threading.Event()

    def stops() -> None:
        assert ready.wait(20)
        assert not runs[0].stop()

    runs.append(launch(program_of(stopper=stops)))
    ready.set()
    assert runs[0].wait(20)


@dataclasses.dataclass(frozen=True)
class Awkward(Exception):
    """Refuses every assignment, which the traceback and the notes of an error are, and has no text."""

    code: int

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_error_that_refuses_everything_is_raised_all_the_same() -> None:
    def fail() -> None:
        raise Awkward(3)

    with pytest.raises(Awkward):
        launch(program_of(bad=fail)).wait(20)


def test_a_log_on_a_full_disk_is_said_once_and_the_node_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    (tmp_path / "logs").mkdir(parents=True)
    (tmp_path / "logs" / "talker-0.log").symlink_to("/dev/full")

    def talk() -> None:
        for number in range(3):
            print(f"line {number}")

    assert launch(program_of(talker=talk), "local_mt", run_directory=tmp_path).wait(20)
    out, err = capsys.readouterr()
    assert "[talker/0] line 2" in out
    assert err.count("The log of talker/0 cannot be written any more") == 1


def test_what_a_stopped_node_held_goes_without_a_garbage_collection() -> None:
    """Frames in a cycle with their error go in no order, and arrays that were being sent then crash CPython 3.11."""

    class Held:
        pass

    held: list[weakref.ref[Held]] = []

    def work() -> None:
        thing = Held()
        held.append(weakref.ref(thing))
        lp.stop()
        while not lp.wait_for_stop(0.01):
            pass
        raise ProgramStopped("as a call raises that the stop woke")

    gc.collect()
    gc.disable()
    try:
        run = lp.launch(lp.make_program(lp.PyNode(work)), "local_mt")
        threads = [thread for thread in threading.enumerate() if thread.name == "pynode_0/0"]
        run.wait()
        for thread in threads:
            thread.join(10)  # it reports its end a moment before
        assert held[0]() is None
    finally:
        gc.enable()
