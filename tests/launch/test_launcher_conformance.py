"""What every launcher does, ours and those of other packages alike: `CASES` are all that there are.

The launcher `fake` is installed as a package would bring it: a module on the path, and an entry point.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

import topology as lp
from launch import Launcher, LaunchOptions, Monitor, Plan, Run, signals, sweep
from launch.cli import app
from launch.launchers import find_launcher
from launch.plan import PlannedNode
from launch.process_info import create_time
from launch.run_directory import RunDirectory
from launch.run_status import RunStatus, WorkerStatus
from launch.supervisor import RestartPolicy
from topology.context import derive_seeds
from topology.errors import LaunchError, NodeFailed
from topology.testing import no_leaks

DEADLINE_S = 20.0
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Case:
    """A way to launch, and what it cannot show."""

    name: str
    launch_type: str
    terminal: str | None = None
    has_processes: bool = True
    keeps_logs: bool = True
    is_test: bool = False

    def find(self) -> Launcher:
        return find_launcher(self.launch_type)[0]

    def plan(self, program: lp.Program, **options: Any) -> Plan:
        found = LaunchOptions(
            launch_type=self.launch_type,
            terminal=self.terminal,
            temporary=self.is_test,
            **{"termination_notice_s": 3.0, **options},
        )
        return self.find().plan(program, found)

    def deploy(self, program: lp.Program, **options: Any) -> Run:
        return self.find().deploy(self.plan(program, **options))


CASES = [
    Case("threads", "local_mt", has_processes=False),
    Case("processes", "local_mp"),
    Case("test of threads", "test_mt", has_processes=False, keeps_logs=False, is_test=True),
    Case("test of processes", "test_mp", is_test=True),
    Case("terminals", "local_mp", terminal="tmux_session"),
    Case("another's", "fake"),
]


@pytest.fixture(params=CASES, ids=lambda case: case.name.replace(" ", "_"))
def case(request: pytest.FixtureRequest) -> Case:
    if request.param.terminal is not None and shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    assert isinstance(request.param, Case)
    return request.param


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where sockets and temporary directories go; a longer path would not do for sockets."""
    path = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    for name in ("TMPDIR", "TMUX_TMPDIR"):
        monkeypatch.setenv(name, str(path))
    monkeypatch.delenv("TMUX", raising=False)
    yield path
    if any(path.glob("tmux-*/default")):
        subprocess.run(["tmux", "kill-server"], check=False, capture_output=True)
    shutil.rmtree(path)


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The fake platform, installed."""
    place = tmp_path / "site"
    info = place / "fake_platform-1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(HERE / "fake_platform.py", place)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-platform\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[topology.launchers]\n"
        "fake = fake_platform:FakeLauncher\n"
        "broken = fake_platform:NoSuchThing\n"
        "no-launcher = builtins:dict\n"
    )
    monkeypatch.syspath_prepend(str(place))
    yield place
    sys.modules.pop("fake_platform", None)


def program_of(**functions: Callable[[], Any]) -> lp.Program:
    program = lp.Program("test")
    for label, function in functions.items():
        program.add_node(lp.PyNode(function), label=label)
    return program


def wait_for_stop() -> None:
    assert lp.wait_for_stop()


def fail(text: str = "the error of the node") -> None:
    raise RuntimeError(text)


def touch(path: Path) -> None:
    path.touch()


def say_and_wait(text: str) -> None:
    print(text, flush=True)
    wait_for_stop()


def fail_once(directory: Path) -> None:
    attempts = len(list(directory.iterdir()))
    (directory / f"attempt-{attempts}").write_text(str(lp.get_context().seed))
    if not attempts:
        fail()


def of(run: Run) -> RunDirectory:
    """What another process would have of a run."""
    return RunDirectory(run.run_directory)


# --- plan


def test_a_plan_is_data_and_starts_nothing(case: Case, temporary: Path, runs: Path, tmp_path: Path) -> None:
    program = program_of(first=functools.partial(touch, tmp_path / "ran"), second=wait_for_stop)
    before = threading.active_count()
    with no_leaks(grace_s=0.0):
        plan = case.plan(program, seed=3, restarts={"second": 2})
        assert plan == case.plan(program, seed=3, restarts={"second": 2})
        assert plan != case.plan(program, seed=4, restarts={"second": 2})
    assert threading.active_count() == before
    assert [node.name for node in plan.nodes] == ["first/0", "second/0"]
    assert "first/0" in str(plan)
    assert "second/0, seed " in str(plan)
    assert "at most 2 restarts" in str(plan)
    data = json.loads(json.dumps(plan.to_dict()))
    assert (data["program"], data["launch_type"], data["seed"]) == ("test", case.launch_type, 3)
    assert [node["max_restarts"] for node in data["nodes"]] == [0, 2]
    assert not list(temporary.iterdir())
    assert not runs.exists()
    assert not (tmp_path / "ran").exists()


def test_a_plan_needs_no_options(case: Case) -> None:
    plan = case.find().plan(program_of(main=int))
    assert plan.options.launch_type == case.find().launch_type
    assert isinstance(plan.nodes[0], PlannedNode)
    assert plan.nodes[0].policy == RestartPolicy()


def test_a_plan_is_deployed_twice(case: Case) -> None:
    plan = case.plan(program_of(main=wait_for_stop))
    first, second = case.find().deploy(plan), case.find().deploy(plan)
    assert first.run_id != second.run_id
    assert case.find().undeploy(first).state == "stopped"
    assert second.state == "running"
    third = case.find().deploy(plan)
    for run in (second, third):
        assert case.find().undeploy(run).state == "stopped"


# --- deploy and monitor


def test_a_run_is_looked_at(case: Case) -> None:
    run = case.deploy(program_of(done=int, waits=wait_for_stop))
    assert run.wait(["done"], timeout=DEADLINE_S)
    status = case.find().monitor(run).status()
    assert isinstance(status, RunStatus)
    assert (status.program, status.launch_type, status.state, status.error) == (
        "test",
        case.launch_type,
        "running",
        None,
    )
    assert [worker.name for worker in status.workers] == ["done/0", "waits/0"]
    assert (status["done/0"].state, status["done/0"].exit_code) == ("finished", 0)
    assert (status["waits/0"].state, status["waits/0"].exit_code) == ("running", None)
    with pytest.raises(KeyError):
        status["nobody/0"]
    assert "waits/0: running" in str(status)
    # What another process sees is written behind the run's back, and only processes have a pid.
    elsewhere = Monitor(of(run))
    assert not elsewhere.wait(timeout_s=0.0)
    wait_until(lambda: elsewhere.status()["done/0"].state == "finished")
    wait_until(lambda: (elsewhere.status()["waits/0"].pid is not None) == case.has_processes)
    assert elsewhere.exit_codes == {"done/0": 0, "waits/0": None}
    assert run.stop(timeout=DEADLINE_S)
    assert elsewhere.wait(timeout_s=DEADLINE_S)
    assert case.find().monitor(run).status().state == "stopped"
    if not case.is_test:
        assert Monitor(run.run_directory).status() == case.find().monitor(run).status()


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(int(DEADLINE_S / 0.02)):  # of files that another thread writes there is no event
        if condition():
            return
        threading.Event().wait(0.02)
    raise AssertionError("it did not come about")


def test_logs_are_followed(case: Case) -> None:
    run = case.deploy(program_of(a=functools.partial(say_and_wait, "one"), b=functools.partial(say_and_wait, "two")))
    elsewhere = Monitor(of(run))
    if case.keeps_logs:
        stream = elsewhere.logs()
        assert {next(stream), next(stream)} == {("a/0", "one"), ("b/0", "two")}
        blocked = threading.Timer(0.1, stream.stop)
        blocked.start()
        assert list(stream) == []  # it blocks until it is stopped: the run goes on
        blocked.join()
        assert next(elsewhere.logs("b")) == ("b/0", "two")
        assert next(case.find().monitor(run).logs("a/0", tail=1)) == ("a/0", "one")
    with pytest.raises(LaunchError, match="'c'"):
        elsewhere.logs("c")
    with elsewhere.logs("a") as stream:
        stopper = threading.Timer(0.1, run.stop)
        stopper.start()
        assert list(stream) == ([("a/0", "one")] if case.keeps_logs else [])  # it ends with the run
        stopper.join()
    assert list(elsewhere.logs(tail=0)) == []


def test_exit_codes(case: Case) -> None:
    program = program_of(zero=functools.partial(sys.exit, 0), five=functools.partial(sys.exit, 5), bad=fail)
    run = case.deploy(program, restarts={"five": 0})
    assert run.wait(timeout=DEADLINE_S, raise_error=False)
    codes = case.find().monitor(run).exit_codes
    assert codes["zero/0"] in (0, None)  # None: stopped before it had begun
    assert codes["five/0"] == 5 or codes["bad/0"] == 1
    assert run.exit_codes == codes
    assert case.find().undeploy(run).state == "failed"


def test_one_node_fails(case: Case) -> None:
    run = case.deploy(program_of(bad=fail, other=wait_for_stop))
    with pytest.raises(RuntimeError, match="the error of the node"):
        run.wait(timeout=DEADLINE_S)
    status = case.find().monitor(run).status()
    assert {worker.name: worker.state for worker in status.workers} == {"bad/0": "failed", "other/0": "stopped"}
    assert status["bad/0"].exit_code == 1
    assert status.error is not None
    assert status.error.rstrip().endswith("RuntimeError: the error of the node")
    assert case.find().undeploy(run).state == "failed"


def test_a_node_is_started_again(case: Case, tmp_path: Path) -> None:
    attempts = tmp_path / "attempts"
    attempts.mkdir()
    run = case.deploy(program_of(flaky=functools.partial(fail_once, attempts)), restarts={"flaky": 2}, seed=3)
    assert run.wait(timeout=DEADLINE_S)
    worker = case.find().monitor(run).status()["flaky/0"]
    assert isinstance(worker, WorkerStatus)
    assert (worker.state, worker.restarts, worker.exit_code) == ("finished", 1, 0)
    assert worker.failure == "RuntimeError: the error of the node"
    first, second = (int((attempts / f"attempt-{number}").read_text()) for number in range(2))
    assert first == derive_seeds(3, ["flaky/0"])["flaky/0"] != second


def test_nodes_find_themselves_and_each_other(case: Case, tmp_path: Path) -> None:
    program = lp.Program("test")
    server = program.add_node(lp.CourierNode(Server), label="server")
    program.add_node(lp.PyNode(ask, server, tmp_path / "answer"), label="client")
    run = case.deploy(program, seed=5)
    assert run.wait(timeout=DEADLINE_S)
    assert (tmp_path / "answer").read_text() == f"server/0 {case.launch_type} {run.run_directory}"


class Server:
    def who(self) -> str:
        context = lp.get_context()
        return f"{context.name} {context.launch_type} {context.run_directory}"


def ask(server: Any, path: Path) -> None:
    path.write_text(server.who())
    lp.stop()


# --- a deployment that fails half-way


def no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    class Taken(socket.socket):
        def bind(self, address: Any) -> None:
            if isinstance(address, tuple):
                raise OSError(errno.EADDRINUSE, "Address already in use")
            super().bind(address)

    monkeypatch.setattr("launch.endpoints.socket.socket", Taken)


def no_executable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")


def no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("run "):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)


def no_output_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "output of nodes":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)


def no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("launch.endpoints.tempfile.mkdtemp", full)


FAULTS = {
    no_port: "Address already in use",
    no_executable: "/nowhere/python",
    no_thread: "can't start new thread",
    no_output_thread: "can't start new thread",
    no_endpoint: "No space left on device",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_deployment_that_fails_leaves_nothing(
    case: Case, fault: Callable[[pytest.MonkeyPatch], None], temporary: Path, tmp_path: Path
) -> None:
    if not case.has_processes and fault in (no_executable, no_output_thread):
        pytest.skip("threads need no such thing")
    if case.is_test and fault is no_endpoint:
        pytest.skip("it fails at the directory of the test before")
    program = lp.Program("test")
    program.add_node(lp.CourierNode(Server), label="server")
    program.add_node(lp.PyNode(int, 0), label="holder")
    node = program.groups["server"][0]
    node.addresses[0].needs_port = True  # so that there is a port to take
    place = tmp_path / "given"
    with no_leaks(), pytest.MonkeyPatch.context() as patch:
        fault(patch)
        with pytest.raises((LaunchError, NodeFailed), match=FAULTS[fault]):
            case.deploy(program, **({} if case.is_test else {"run_directory": place})).wait(timeout=DEADLINE_S)
    left = [path for path in temporary.iterdir() if not path.name.startswith("tmux-")]
    assert left == []
    assert signals.active_runs() == []
    if case.launch_type != "fake" or fault is not no_executable:  # its jobs are started one by one: that run has begun
        assert not place.exists()
    if case.terminal is not None and any(temporary.glob("tmux-*/default")):
        sessions = subprocess.run(["tmux", "list-sessions"], capture_output=True, text=True, check=False)
        assert sessions.stdout == ""
    assert case.deploy(program_of(main=int)).wait(timeout=DEADLINE_S)  # the same place is good for another try


class DoesNotArrive:
    def __reduce__(self) -> Any:
        return fail, ("it does not unpickle",)


def test_a_node_whose_arguments_do_not_unpickle(case: Case, temporary: Path) -> None:
    program = lp.Program("test")
    program.add_node(lp.PyNode(print, DoesNotArrive()), label="node")
    program.add_node(lp.PyNode(wait_for_stop), label="other")
    run = case.deploy(program)
    if case.has_processes:
        with pytest.raises(NodeFailed, match="it does not unpickle"):
            run.wait(timeout=DEADLINE_S)
    assert case.find().undeploy(run).state == ("failed" if case.has_processes else "stopped")
    assert [path for path in temporary.iterdir() if not path.name.startswith("tmux-")] == []


def test_every_error_of_a_rollback_is_told(case: Case, tmp_path: Path) -> None:
    launcher = case.find()
    order = []

    def broken(what: str) -> None:
        order.append(what)
        raise OSError(f"the {what} is stuck")

    class Fails(type(launcher)):  # type: ignore[misc]  # every launcher in turn
        def open_backend(self, deployment: Any) -> Any:
            deployment.undo("the first", lambda: broken("first"))
            deployment.undo("the second", lambda: broken("second"))
            raise LaunchError("the platform refuses")

    options = {} if case.is_test else {"run_directory": tmp_path / "given"}
    with pytest.raises(LaunchError, match="the platform refuses") as caught:
        Fails().deploy(case.plan(program_of(main=int), **options))
    assert order == ["second", "first"]
    assert caught.value.__notes__ == [
        "the second could not be given back: OSError: the second is stuck",
        "the first could not be given back: OSError: the first is stuck",
    ]
    if not case.is_test:  # the directory stays, for another try
        state = RunDirectory(tmp_path / "given").read_state()
        assert (state["state"], state["error"]) == ("failed", "LaunchError: the platform refuses")
        assert case.find().undeploy(tmp_path / "given").state == "failed"
        assert RunDirectory(tmp_path / "given").read_state()["resources"] == []


# --- undeploy


def test_undeploy_twice(case: Case, temporary: Path) -> None:
    run = case.deploy(program_of(main=wait_for_stop))
    directory = of(run)
    assert case.find().undeploy(directory).state == "stopped"
    assert case.find().undeploy(directory if not case.is_test else run).state == "stopped"
    assert case.find().undeploy(run).state == "stopped"
    assert run.status() == {"main/0": "stopped"}
    assert [path for path in temporary.iterdir() if not path.name.startswith("tmux-")] == []
    assert run.run_directory.exists() != case.is_test


def test_undeploy_of_what_does_not_end(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launch.undeploy._NOW_S", 0.2)
    run = case.deploy(program_of(main=functools.partial(stubborn, tmp_path)), termination_notice_s=3600.0)
    wait_until((tmp_path / "ready").exists)
    with pytest.raises(LaunchError, match=r"has not ended after 0.1 s.*--now"):
        case.find().undeploy(run, timeout_s=0.1)
    assert case.find().undeploy(run, now=True).state == "stopped"
    touch(tmp_path / "released")  # a thread cannot be killed: it was left behind


def stubborn(directory: Path) -> None:
    lp.stop_event()
    touch(directory / "ready")
    while not (directory / "released").exists():
        with contextlib.suppress(SystemExit):
            threading.Event().wait(0.02)


def test_undeploy_at_once(case: Case) -> None:
    run = case.deploy(program_of(a=wait_for_stop, b=wait_for_stop, c=wait_for_stop))
    assert case.find().undeploy(run).state == "stopped"
    assert set(run.status().values()) == {"stopped"}


def test_undeploy_while_it_starts(case: Case, temporary: Path, tmp_path: Path) -> None:
    """Another thread undeploys it while the platform is being prepared."""
    launcher = case.find()
    found: list[Any] = []

    class Slow(type(launcher)):  # type: ignore[misc]  # every launcher in turn
        def open_backend(self, deployment: Any) -> Any:
            thread = threading.Thread(target=lambda: found.append(launcher.undeploy(deployment.directory)))
            thread.start()
            found.append(thread)
            assert deployment.cancelled.wait(DEADLINE_S)
            return super().open_backend(deployment)

    with no_leaks(), pytest.raises(LaunchError, match="was stopped while it was starting: the run was undeployed"):
        Slow().deploy(case.plan(program_of(main=functools.partial(touch, tmp_path / "ran"))))
    found[0].join(DEADLINE_S)
    assert found[1].state == "stopped"
    assert not (tmp_path / "ran").exists()
    assert [path for path in temporary.iterdir() if not path.name.startswith("tmux-")] == []


# --- the launcher is killed

SCRIPT = """
import os, signal, subprocess, sys, threading, time
from multiprocessing import shared_memory
from launch.launchers import find_launcher
from launch.plan import LaunchOptions

def stubborn():
    for number in (signal.SIGTERM, signal.SIGHUP):
        if threading.current_thread() is threading.main_thread():
            signal.signal(number, signal.SIG_IGN)
    memory = shared_memory.SharedMemory(create=True, size=100)
    child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    print("ready", memory.name, child.pid, flush=True)
    while True:
        try:
            time.sleep(3600)
        except SystemExit:
            pass

launcher, kind = find_launcher(sys.argv[1])
program = lp.Program("p")
program.add_node(lp.PyNode(stubborn), label="stubborn")
program.add_node(lp.PyNode(lp.wait_for_stop), label="polite")
launcher.deploy(launcher.plan(program, LaunchOptions(
    launch_type=kind, temporary=sys.argv[2] == "True", terminal=eval(sys.argv[3]), run_directory=None
))).wait()
"""


def launch_and_kill(
    case: Case, start: Callable[..., Any], site: Path, halt: Callable[[int], None], to_end: list[psutil.Process]
) -> tuple[str, list[int]]:
    """Kills the launcher when its nodes run; the shared memory of one of them, and all processes there were."""
    script = start(
        SCRIPT,
        case.launch_type,
        str(case.is_test),
        repr(case.terminal or "current_terminal"),
        env={"PYTHONPATH": f"{HERE.parents[1]}{os.pathsep}{site}"},
    )
    line = script.line("ready") if case.terminal is None else line_of_log()
    memory, child = line.split()[-2:]
    family = {process.pid for process in psutil.Process(script.pid).children(recursive=True)} | {int(child)}
    to_end += map(psutil.Process, family)
    halt(script.pid)
    script.send(signal.SIGKILL)
    script.process.wait(DEADLINE_S)
    if not case.has_processes:  # what a thread started is the script's, which is in no session of ours
        os.kill(int(child), signal.SIGKILL)
    return memory, sorted(family)


def line_of_log() -> str:
    """What the node of a script said whose nodes print into terminals of their own."""
    logs = Path(os.environ["TOPOLOGY_RUNS"]).glob
    wait_until(lambda: any("ready" in path.read_text() for path in logs("*/logs/stubborn-0.log")))
    return next(logs("*/logs/stubborn-0.log")).read_text()


def run_of(case: Case, temporary: Path, runs: Path) -> Path:
    (path,) = temporary.glob("topology-run-*") if case.is_test else runs.iterdir()
    return path


def is_there(pid: int) -> bool:
    return create_time(pid) is not None


def no_halt(launcher: int) -> None:
    pass


def halt_fork_servers(launcher: int) -> None:
    servers = [
        process for process in psutil.Process(launcher).children() if "fork_server" in " ".join(process.cmdline())
    ]
    for server in servers:
        server.send_signal(signal.SIGSTOP)
    assert servers


@pytest.fixture
def ended_at_last() -> Iterator[list[psutil.Process]]:
    """Processes that are killed when the test is over: of one that fails they would be left."""
    processes: list[psutil.Process] = []
    yield processes
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@pytest.mark.parametrize("halt", [no_halt, halt_fork_servers])
def test_a_launcher_is_killed_and_the_run_is_stopped(
    case: Case,
    halt: Callable[[int], None],
    start: Callable[..., Any],
    ended_at_last: list[psutil.Process],
    site: Path,
    temporary: Path,
    runs: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if halt is halt_fork_servers and (not case.has_processes or case.launch_type == "fake"):
        pytest.skip("it has no fork server")
    monkeypatch.setattr(sweep, "_GRACE_S", 0.3)
    memory, family = launch_and_kill(case, start, site, halt, ended_at_last)
    if halt is halt_fork_servers or case.launch_type == "fake":
        assert any(map(is_there, family))
    if case.launch_type == "test_mp" and halt is no_halt:
        wait_until(lambda: not any(map(is_there, family)))  # the fork server also removes the directory of a test
    else:
        result = CliRunner().invoke(app, ["stop", str(run_of(case, temporary, runs))])
        assert result.exit_code == 0, result.output
        assert ": lost" in result.output
        if not case.has_processes:  # Python's cleaner of shared memory was the script's, and ends after it
            wait_until(lambda: not any(map(is_there, family)))
        assert not any(map(is_there, family))
    if halt is halt_fork_servers or case.launch_type == "fake":
        assert not Path("/dev/shm", memory).exists()
    Path("/dev/shm", memory).unlink(
        missing_ok=True
    )  # else it is Python's own cleaner that does it, if it was not killed
    assert [path for path in temporary.iterdir() if not path.name.startswith("tmux-")] == []
    if not case.is_test:
        assert RunDirectory(run_of(case, temporary, runs)).read_state()["resources"] == []
        again = CliRunner().invoke(app, ["stop", str(run_of(case, temporary, runs))])
        assert again.output.endswith(": lost\n")
