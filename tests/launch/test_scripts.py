"""Whole scripts: exits, signals, failures, what is left behind."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="looks at processes as Linux shows them")

Start = Callable[..., Any]
RunScript = Callable[..., tuple[int, str]]
Left = Callable[[], list[int]]

KINDS = ["local_mt", "local_mp"]

SLEEPERS = """
    import os, sys, time
    def sleeper():
        print("pid", os.getpid(), flush=True)
        time.sleep(3600)
    program = lp.Program("p")
    with program.group("sleeper"):
        for _ in range(3):
            program.add_node(lp.PyNode(sleeper))
    run = lp.launch(program, sys.argv[1])
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_script_goes_on_after_wait_and_exits_with_0(run_script: RunScript, kind: str, left_processes: Left) -> None:
    code, output = run_script(
        """
        import sys
        program = lp.make_program(lp.PyNode(print, "from the node"), name="p")
        run = lp.launch(program, sys.argv[1])
        run.wait()
        print("after", run.state, run.exit_codes)
        """,
        kind,
    )
    assert code == 0
    assert "from the node" in output
    assert "after finished {'pynode_0/0': 0}" in output
    assert left_processes() == []


@pytest.mark.skipif(sys.version_info[:3] in ((3, 12, 0), (3, 12, 1)), reason="starts no thread once the script ended")
@pytest.mark.parametrize("kind", KINDS)
def test_launch_as_the_last_line_lasts_as_long_as_the_program(run_script: RunScript, kind: str) -> None:
    code, output = run_script(
        """
        import sys, time
        from concurrent.futures import ThreadPoolExecutor
        def work():
            time.sleep(0.3)
            with ThreadPoolExecutor(1) as pool:
                print(pool.submit(lambda: "worked to the end").result())
        lp.launch(lp.make_program(lp.PyNode(work)), sys.argv[1])
        """,
        kind,
    )
    assert code == 0
    assert "worked to the end" in output


@pytest.mark.parametrize("kind", ["test_mt", "test_mp"])
def test_a_test_that_leaves_its_program_behind_ends(run_script: RunScript, kind: str, left_processes: Left) -> None:
    code, output = run_script(
        f"""
        import time
        def run():
            while True:
                time.sleep(0.01)
        if __name__ == "__main__":
            lp.launch(lp.make_program(lp.PyNode(run)), "{kind}")
            print("the test has passed")
            raise SystemExit(0)
        """
    )
    assert (code, output) == (0, "the test has passed\n")
    assert not left_processes()


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_nobody_waits_for_is_printed_last_and_is_the_exit_code(run_script: RunScript, kind: str) -> None:
    code, output = run_script(
        """
        import sys
        def fail():
            raise ValueError("no good")
        lp.launch(lp.make_program(lp.PyNode(fail)), sys.argv[1])
        print("the last line")
        """,
        kind,
    )
    assert code == 1
    assert "the last line" in output
    assert re.search(r"ValueError: no good\n(in node pynode_0/0.*\n)?$", output)


def test_a_failed_node_stops_the_others_and_its_traceback_comes_last(
    run_script: RunScript, left_processes: Left
) -> None:
    code, output = run_script(
        """
        import time
        def deep():
            raise KeyError("missing")
        def learner():
            deep()
        def actor():
            time.sleep(3600)
        program = lp.Program("p")
        with program.group("actor"):
            for _ in range(2):
                program.add_node(lp.PyNode(actor))
        program.add_node(lp.PyNode(learner), label="learner")
        run = lp.launch(program, "local_mp")
        try:
            run.wait()
        except lp.errors.NodeFailed as error:
            assert (error.label, error.index, error.exit_code) == ("learner", 0, 1)
            print("caught", run.status())
            raise
        """
    )
    assert code == 1
    assert "caught {'actor/0': 'stopped', 'actor/1': 'stopped', 'learner/0': 'failed'}" in output
    assert "Node learner/0 failed: KeyError: 'missing'" in output
    assert output.rstrip().endswith("KeyError: 'missing'")
    assert ", in deep\n" in output.rpartition("Node learner/0 failed")[2]
    assert left_processes() == []


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ("os._exit(3)", 3, "its process exited with code 3"),
        ("os.kill(os.getpid(), 11)", -11, "its process was killed by SIGSEGV"),
        ("sys.exit(4)", 4, "it exited with code 4"),
        ("sys.exit('out of luck')", 1, "it exited: out of luck"),
    ],
)
def test_a_node_whose_constructor_ends_its_process(run_script: RunScript, body: str, code: int, message: str) -> None:
    _, output = run_script(
        f"""
        import os, sys
        class Node:
            def __init__(self):
                {body}
        program = lp.Program("p")
        program.add_node(lp.CourierNode(Node), label="bad")
        try:
            lp.launch(program, "local_mp").wait()
        except lp.errors.NodeFailed as error:
            print("caught", error.exit_code, error)
        """
    )
    assert f"caught {code} Node bad/0 failed: {message}" in output


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", ["return", "sys.exit()", "sys.exit(0)"])
def test_clean_ends(run_script: RunScript, kind: str, body: str) -> None:
    code, output = run_script(
        f"""
        import sys
        def node():
            {body}
        lp.launch(lp.make_program(lp.PyNode(node)), sys.argv[1]).wait()
        print("clean")
        """,
        kind,
    )
    assert (code, output) == (0, "clean\n")


def test_ctrl_c_once_stops_gracefully(start: Start, left_processes: Left) -> None:
    script = start(
        """
        import sys, time
        def polite():
            print("ready", flush=True)
            lp.wait_for_stop()
            print("saved", flush=True)
        program = lp.make_program(lp.PyNode(polite), lp.PyNode(polite))
        run = lp.launch(program, "local_mp")
        try:
            run.wait()
        finally:
            print("state", run.state, flush=True)
        """
    )
    script.line("ready")
    script.line("ready")
    script.send(signal.SIGINT)
    code, output = script.finish()
    assert output.count("saved") == 2
    assert "state stopped" in output
    assert "KeyboardInterrupt" in output
    assert code == -signal.SIGINT  # which a shell shows as 130
    assert left_processes() == []


def test_ctrl_c_twice_stops_at_once(start: Start, left_processes: Left) -> None:
    script = start(
        """
        def stubborn():
            print("ready", flush=True)
            while True:
                try:
                    lp.wait_for_stop()
                    print("announced", flush=True)
                    lp.stop_event().__class__().wait()
                except SystemExit:
                    pass
        lp.launch(lp.make_program(lp.PyNode(stubborn)), "local_mp", termination_notice_s=3600).wait()
        """
    )
    script.line("ready")
    script.send(signal.SIGINT)
    script.line("announced")
    before = time.monotonic()
    script.send(signal.SIGINT)
    code, _ = script.finish()
    assert code == -signal.SIGINT
    assert time.monotonic() - before < 5.0
    assert left_processes() == []


@pytest.mark.parametrize("kind", KINDS)
def test_sigterm_of_the_launcher_is_a_graceful_stop(start: Start, left_processes: Left, kind: str) -> None:
    script = start(
        """
        import sys
        def polite():
            print("ready", flush=True)
            lp.wait_for_stop()
            print("saved", flush=True)
        lp.launch(lp.make_program(lp.PyNode(polite)), sys.argv[1]).wait()
        """,
        kind,
    )
    script.line("ready")
    script.send(signal.SIGTERM)
    code, output = script.finish()
    assert code == 143
    assert "saved" in output
    assert left_processes() == []


STUBBORN = {
    "asleep": "time.sleep(3600)",
    "ignores_sigterm": "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)",
    "holds_the_gil": "re.match('(a*)*b', 'a' * 40)",
    "has_children": "subprocess.run(['sleep', '3600'])",
}


@pytest.mark.parametrize("how", STUBBORN)
def test_kill_9_of_the_launcher_leaves_nothing_behind(start: Start, left_processes: Left, how: str) -> None:
    script = start(
        f"""
        import os, re, signal, subprocess, sys, time
        def node():
            print("ready", flush=True)
            {STUBBORN[how]}
        run = lp.launch(lp.make_program(lp.PyNode(node), lp.PyNode(node)), "local_mp")
        run.wait()
        """
    )
    script.line("ready")
    script.line("ready")
    pids = [pid for pid in left_processes() if pid != script.pid]
    assert len(pids) >= 3
    script.send(signal.SIGKILL)
    deadline = time.monotonic() + 5.0
    for pid in pids:
        await_end(pid, deadline)
    assert left_processes() == []


def await_end(pid: int, deadline: float) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0], f"{pid} is still there"
    finally:
        os.close(descriptor)


def test_kill_9_of_a_launcher_that_has_forked(start: Start, left_processes: Left) -> None:
    """A fork of the launcher holds its end of the channels open."""
    script = start(
        """
        import os, time
        def node():
            print("ready", os.getpid(), flush=True)
            time.sleep(3600)
        run = lp.launch(lp.make_program(lp.PyNode(node)), "local_mp")
        if os.fork() == 0:
            os.chdir("/")
            time.sleep(20)
            os._exit(0)
        run.wait()
        """
    )
    node = int(script.line("ready").split()[-1])
    script.send(signal.SIGKILL)
    await_end(node, time.monotonic() + 5.0)


def test_kill_9_removes_the_sockets(start: Start) -> None:
    temporary = Path(tempfile.mkdtemp(prefix="t"))  # a longer path would not do for sockets
    script = start(
        """
        import time
        class Node:
            def run(self):
                print("ready", flush=True)
                time.sleep(3600)
        program = lp.Program("p")
        program.add_node(lp.CourierNode(Node), label="node")
        lp.launch(program, "local_mp").wait()
        """,
        env={"TMPDIR": str(temporary)},
    )
    script.line("ready")
    (directory,) = temporary.glob("topology-*")
    assert directory.stat().st_mode & 0o777 == 0o700
    (server,) = children_of(script.pid)
    script.send(signal.SIGKILL)
    await_end(server, time.monotonic() + 5.0)
    assert not directory.exists()
    temporary.rmdir()


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]


def test_what_a_node_started_ends_with_it(start: Start, left_processes: Left) -> None:
    script = start(
        """
        import subprocess
        def node():
            subprocess.Popen(["sleep", "3600"])
        lp.launch(lp.make_program(lp.PyNode(node)), "local_mp").wait()
        """
    )
    assert script.finish()[0] == 0
    assert left_processes() == []


def test_what_a_node_started_ends_with_the_run_in_whatever_session_it_is(start: Start, left_processes: Left) -> None:
    script = start(
        """
        import subprocess
        def node():
            # A daemon, and in a session of its own a child of it, which is nobody's when the daemon is killed.
            subprocess.Popen("trap '' TERM; setsid sleep 3600 & exec sleep 3600", shell=True, start_new_session=True)
        lp.launch(lp.make_program(lp.PyNode(node)), "local_mp").wait()
        """
    )
    assert script.finish()[0] == 0
    assert left_processes() == []


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_files_that_are_closed(start: Start, tmp_path: Path, closed: str) -> None:
    """What is opened next gets their numbers; a node must not print into that."""
    (tmp_path / "outer.py").write_text(
        "import topology as lp\n"
        "def node():\n"
        "    print('printed')\n"
        "run = lp.launch(lp.make_program(lp.PyNode(node)), 'local_mp', run_directory='run')\n"
        "assert run.wait()\n"
    )
    script = start(
        f"""
        import subprocess, sys
        sys.exit(subprocess.run("exec " + sys.executable + " outer.py {closed}", shell=True).returncode)
        """
    )
    code, output = script.finish()
    assert code == 0, output
    assert (tmp_path / "run" / "logs" / "pynode_0-0.log").read_text() == "printed\n"


@pytest.mark.skipif(sys.version_info[:3] == (3, 13, 0), reason="Python 3.13.0 itself cannot import socket there")
def test_a_current_directory_that_has_gone(run_script: RunScript, tmp_path: Path) -> None:
    code, output = run_script(
        """
        import os, sys, tempfile
        gone = tempfile.mkdtemp()
        os.chdir(gone)
        os.rmdir(gone)
        sys.path.insert(0, "")
        lp.launch(lp.make_program(lp.PyNode(print, "printed")), "local_mp").wait()
        """
    )
    assert code == 0, output
    assert "printed" in output


@pytest.mark.parametrize("stream", ["None", "open(os.devnull)"])
def test_a_node_without_a_stderr_still_says_why_it_failed(run_script: RunScript, stream: str) -> None:
    code, output = run_script(
        f"""
        import os, sys
        def node():
            sys.stdout = sys.stderr = {stream}
            raise ValueError("the reason")
        lp.launch(lp.make_program(lp.PyNode(node)), "local_mp").wait()
        """
    )
    assert code == 1
    assert "Node pynode_0/0 failed: ValueError: the reason" in output
    assert "[pynode_0/0] ValueError: the reason" in output


def test_the_end_of_a_child_that_a_node_forked_is_not_its_end(run_script: RunScript) -> None:
    code, output = run_script(
        """
        import os
        def node():
            if os.fork() == 0:
                raise ValueError("of the child")
            os.wait()
            lp.stop()
            lp.wait_for_stop()
        run = lp.launch(lp.make_program(lp.PyNode(node)), "local_mp")
        run.wait()
        print("ended", run.state)
        """
    )
    assert code == 0, output
    assert "ended finished" in output


def test_stop_interrupts_sleep_and_blocked_calls_at_once(run_script: RunScript) -> None:
    code, output = run_script(
        """
        import time
        class Slow:
            def block(self):
                lp.wait_for_stop()
        def asleep():
            time.sleep(3600)
        def calling(slow):
            slow.block()
        def stopper():
            time.sleep(0.5)
            lp.stop()
        program = lp.Program("p")
        slow = program.add_node(lp.CourierNode(Slow), label="slow")
        program.add_node(lp.PyNode(asleep), label="asleep")
        program.add_node(lp.PyNode(calling, slow), label="calling")
        program.add_node(lp.PyNode(stopper), label="stopper")
        before = time.monotonic()
        lp.launch(program, "local_mp").wait()
        print("took", round(time.monotonic() - before, 1))
        """
    )
    assert code == 0
    assert "did not end" not in output
    assert "illed" not in output
    assert float(output.rpartition("took ")[2]) < 3.0


def test_a_late_node_is_killed_and_the_script_goes_on(run_script: RunScript) -> None:
    code, output = run_script(
        """
        def late():
            while True:
                try:
                    lp.wait_for_stop()
                    lp.stop_event().__class__().wait()
                except SystemExit:
                    pass
        def stopper():
            lp.stop()
        program = lp.Program("p")
        program.add_node(lp.PyNode(late), label="late")
        program.add_node(lp.PyNode(stopper), label="stopper")
        run = lp.launch(program, "local_mp", termination_notice_s=0.3)
        run.wait()
        print("after", run.exit_codes)
        """
    )
    assert code == 0
    assert "late/0 did not end within the notice of 0.3 s" in output
    assert "after {'late/0': -9, 'stopper/0': 0}" in output


def test_user_threads_do_not_keep_a_stopped_process(run_script: RunScript) -> None:
    code, output = run_script(
        """
        import threading, time
        def node(seconds):
            threading.Thread(target=time.sleep, args=(3600,)).start()
            time.sleep(seconds)
        def stopper():
            time.sleep(0.3)
            lp.stop()
        before = time.monotonic()
        program = lp.make_program(lp.PyNode(node, 0), lp.PyNode(node, 3600), lp.PyNode(stopper))
        lp.launch(program, "local_mp").wait()
        print("took", round(time.monotonic() - before, 1))
        """
    )
    assert code == 0
    assert float(output.rpartition("took ")[2]) < 3.0


@pytest.mark.parametrize("kind", KINDS)
def test_stop_in_the_script_and_in_a_thread_of_a_node(run_script: RunScript, kind: str) -> None:
    code, output = run_script(
        """
        import sys, threading
        def waits():
            lp.wait_for_stop()
        def stops_in_a_thread():
            threading.Thread(target=lp.stop).start()
            lp.wait_for_stop()
        run = lp.launch(lp.make_program(lp.PyNode(waits)), sys.argv[1])
        lp.stop()
        run.wait()
        run = lp.launch(lp.make_program(lp.PyNode(stops_in_a_thread)), sys.argv[1])
        run.wait()
        lp.stop()
        print("done")
        """,
        kind,
    )
    assert code == 0
    assert "no program is running" in output
    assert output.rstrip().endswith("done")


@pytest.mark.parametrize("kind", KINDS)
def test_two_programs_do_not_stop_each_other(run_script: RunScript, kind: str) -> None:
    code, output = run_script(
        """
        import sys
        def stops():
            lp.stop()
        def waits():
            lp.wait_for_stop()
        long = lp.launch(lp.make_program(lp.PyNode(waits)), sys.argv[1])
        for _ in range(2):
            lp.launch(lp.make_program(lp.PyNode(stops)), sys.argv[1]).wait()
        print(long.state, long.wait(timeout=0.1))
        long.stop()
        print(long.state)
        """,
        kind,
    )
    assert code == 0
    assert output.endswith("running False\nstopped\n")


def test_launch_in_threads_and_multiprocessing_children(run_script: RunScript, left_processes: Left) -> None:
    code, output = run_script(
        """
        import multiprocessing, threading
        def hello(where):
            print("hello from", where)
        def launch(where):
            lp.launch(lp.make_program(lp.PyNode(hello, where)), "local_mp").wait()
        def launch_without_waiting(where):
            lp.launch(lp.make_program(lp.PyNode(hello, where)), "local_mp")
        for target in (launch, launch_without_waiting):
            for kind in (threading.Thread, multiprocessing.get_context("fork").Process):
                worker = kind(target=target, args=(f"{target.__name__} in {kind.__name__}",))
                worker.start()
                worker.join()
                assert getattr(worker, "exitcode", 0) == 0
        """
    )
    assert code == 0, output
    for target in ("launch", "launch_without_waiting"):
        assert f"hello from {target} in Thread" in output
        assert f"hello from {target} in ForkProcess" in output
    assert left_processes() == []


def test_dash_c_and_stdin(tmp_path: Path) -> None:
    source = (
        "import topology as lp\n"
        "class Node:\n"
        "    def __init__(self, text): self.text = text\n"
        "    def run(self): print(self.text); lp.stop()\n"
        "lp.launch(lp.make_program(lp.CourierNode(Node, 'hello')), 'local_mp').wait()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    for command, text in (([sys.executable, "-c", source], ""), ([sys.executable, "-"], source)):
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=30, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "hello" in done.stdout


def test_python_process(run_script: RunScript) -> None:
    code, output = run_script(
        """
        import os, sys
        def show():
            print(sys.argv[1:], sys.flags.dev_mode, os.environ["CUDA_VISIBLE_DEVICES"] == "", os.environ.get("GONE"))
        os.environ["GONE"] = "not yet"
        program = lp.Program("p")
        program.add_node(lp.PyNode(show), label="special")
        program.add_node(lp.PyNode(lambda: print(sys.argv[1:], sys.flags.dev_mode)), label="plain")
        process = lp.PythonProcess(args={"foo": 1}, interpreter_args={"X": "dev"},
                                   env={"CUDA_VISIBLE_DEVICES": "", "GONE": None})
        lp.launch(program, "local_mp", local_resources={"special": process}).wait()
        """
    )
    assert code == 0
    assert "[special/0] ['--foo=1'] True True None" in output
    assert "[plain/0] [] False" in output


def test_absl_flags_are_read_when_there(run_script: RunScript) -> None:
    code, output = run_script(
        """
        import sys
        from absl import app, flags
        flags.DEFINE_string("lp_launch_type", "local_mt", "")
        flags.DEFINE_integer("lp_termination_notice_secs", 10, "")
        flags.DEFINE_integer("depth", 1, "")
        def show():
            print(lp.get_context().launch_type, flags.FLAGS.depth)
        def main(argv):
            run = lp.launch(lp.make_program(lp.PyNode(show)))
            run.wait()
        app.run(main)
        """,
        "--lp_launch_type=local_mp",
        "--lp_termination_notice_secs=3",
        "--depth=2",
    )
    assert code == 0, output
    assert "[pynode_0/0] local_mp 2" in output


def test_unparsed_absl_flags_and_unknown_arguments_do_not_matter(run_script: RunScript) -> None:
    code, output = run_script(
        """
        from absl import flags
        flags.DEFINE_string("lp_launch_type", "local_mp", "")
        lp.launch(lp.make_program(lp.PyNode(lambda: print("ran")))).wait()
        """,
        "--whatever",
        "more",
    )
    assert (code, output) == (0, "[pynode_0/0] ran\n")


def test_a_restarted_node_keeps_its_address(run_script: RunScript) -> None:
    code, output = run_script(
        """
        import os, pathlib
        class Server:
            def ping(self):
                return os.getpid()
            def die(self):
                os.kill(os.getpid(), 11)
        def client(server):
            # One death is asked for: a crash that is being reported takes a while, the server answers all that time,
            # and a second request to die may reach the successor, whose death would be the end of the run.
            first = second = server.ping()
            try:
                server.die()
            except lp.errors.ConnectionBroken:
                pass
            while second == first:
                try:
                    second = server.ping()
                except lp.errors.ConnectionBroken:
                    pass
            print("restarted")
            lp.stop()
        program = lp.Program("p")
        server = program.add_node(lp.CourierNode(Server), label="server")
        program.add_node(lp.PyNode(client, server), label="client")
        run = lp.launch(program, "local_mp", restarts={"server": 2})
        run.wait()
        """
    )
    assert code == 0, output
    assert "[client/0] restarted" in output


def test_output_is_whole_prefixed_and_in_the_logs(run_script: RunScript, runs: Path) -> None:
    code, output = run_script(
        """
        import os, sys
        def talk():
            for i in range(300):
                print("x" * 1000, i)
            sys.stderr.write("to stderr\\n")
            os.write(1, b"raw bytes \\xff\\n")
            os.system("echo from a child")
            print("no newline", end="")
        program = lp.Program("p")
        with program.group("talker"):
            for _ in range(3):
                program.add_node(lp.PyNode(talk))
        lp.launch(program, "local_mp").wait()
        """
    )
    assert code == 0
    lines = output.splitlines()
    assert all(re.match(r"\[talker/[012]\] ", line) for line in lines)
    for i in range(3):
        own = [line.partition("] ")[2] for line in lines if line.startswith(f"[talker/{i}]")]
        assert own[:300] == [f"{'x' * 1000} {j}" for j in range(300)]
        assert sorted(own[300:]) == ["from a child", "no newline", "raw bytes \ufffd", "to stderr"]
        (log,) = runs.glob(f"p-*/logs/talker-{i}.log")
        assert log.read_text(errors="replace").splitlines() == own


def test_a_closed_terminal_does_not_end_the_run(start: Start, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    script = start(
        """
        import pathlib, time
        def talk():
            for i in range(200):
                print("line", i, flush=True)
                time.sleep(0.002)
            pathlib.Path("done").touch()
        lp.launch(lp.make_program(lp.PyNode(talk)), "local_mp").wait()
        """,
        stdout=writer,
        stderr=-3,
    )
    os.close(writer)
    os.read(reader, 1)
    os.close(reader)
    code, _ = script.finish()
    assert code == 0
    assert (tmp_path / "done").exists()


def test_an_unwritable_run_directory_is_said_before_anything_starts(run_script: RunScript, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, output = run_script(
        """
        lp.launch(lp.make_program(lp.PyNode(print, "ran")), "local_mp", run_directory="file/x").wait()
        """
    )
    assert code == 1
    assert "LaunchError: The run directory" in output
    assert "Give another one" in output
    assert "ran" not in output.splitlines()


def test_a_full_disk_while_running(run_script: RunScript) -> None:
    code, output = run_script(
        """
        import os, pathlib
        directory = pathlib.Path("run").absolute()
        (directory / "logs").mkdir(parents=True)
        (directory / "logs" / "pynode_0-0.log").symlink_to("/dev/full")
        def talk():
            for i in range(3):
                print("line", i, flush=True)
        lp.launch(lp.make_program(lp.PyNode(talk)), "local_mp", run_directory=directory).wait()
        """
    )
    assert code == 0
    assert output.count("cannot be written any more") == 1
    assert "[pynode_0/0] line 2" in output


def test_a_wrong_interpreter_option(run_script: RunScript, left_processes: Left) -> None:
    code, output = run_script(
        """
        process = lp.PythonProcess(interpreter_args={"Q": "wrong"})
        lp.launch(lp.make_program(lp.PyNode(print)), "local_mp", local_resources={"pynode_0": process})
        """
    )
    assert code == 1
    assert "LaunchError: The Python that nodes were to run in ended at once with exit code 2" in output
    assert left_processes() == []


def test_the_fork_server_is_killed(run_script: RunScript, left_processes: Left) -> None:
    code, output = run_script(
        """
        import os, signal, subprocess, time
        def node():
            subprocess.Popen(["sleep", "3600"])
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(3600)
        lp.launch(lp.make_program(lp.PyNode(node)), "local_mp").wait()
        """
    )
    assert code == 1
    assert "Node pynode_0/0 failed: its fork server was killed" in output
    assert left_processes() == []


def test_sigterm_of_one_node_stops_the_program(run_script: RunScript) -> None:
    code, output = run_script(
        """
        import os, signal, time
        def ended():
            os.kill(os.getpid(), signal.SIGTERM)
            lp.wait_for_stop()
            print("told")
        run = lp.launch(lp.make_program(lp.PyNode(ended), lp.PyNode(lp.wait_for_stop)), "local_mp")
        run.wait()
        print(run.state)
        """
    )
    assert code == 0
    assert "told" in output


def test_exit_functions_of_a_node_are_called(run_script: RunScript) -> None:
    _, output = run_script(
        """
        import atexit, threading, time
        def node(how):
            atexit.register(print, "exit function after", how)
            if how == "failing":
                raise ValueError("no")
            if how == "threads":
                threading.Thread(target=time.sleep, args=(3600,)).start()
            if how == "stopping":
                lp.stop()
        for how in ("ending", "stopping", "failing"):
            lp.launch(lp.make_program(lp.PyNode(node, how)), "local_mp").wait(raise_error=False)
        with lp.launch(lp.make_program(lp.PyNode(node, "threads")), "local_mp") as run:
            time.sleep(0.5)
        """
    )
    for how in ("ending", "stopping", "failing", "threads"):
        assert f"exit function after {how}" in output
