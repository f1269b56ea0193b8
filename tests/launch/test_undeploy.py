"""Launchers by name, the rollback, the sweep and the log stream, part by part."""

from __future__ import annotations

import functools
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import topology as lp
from launch import Launcher, Monitor, Processes, Threads, UndeployFailed, run_control, sweep
from launch.cli import app
from launch.launchers import find_launcher, launcher_names, launcher_of_run
from launch.monitor import LogStream
from launch.process_info import create_time
from launch.rollback import Rollback
from launch.run_directory import RunDirectory, create
from launch.sweep import MARK, Sweep, add_mark, describe_directory, describe_process
from topology.errors import LaunchError
from topology.testing import ManualClock

DEADLINE_S = 20.0


# --- launchers by name


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that offers launchers, two of which are none."""
    place = tmp_path / "site"
    info = place / "others-1.0.dist-info"
    info.mkdir(parents=True)
    (place / "others.py").write_text("from launch import Processes\nclass Other(Processes):\n    pass\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[topology.launchers]\nother = others:Other\nbroken = others:Nothing\nwrong = builtins:dict\n"
        "local_mt = others:Other\n"
    )
    monkeypatch.syspath_prepend(str(place))
    yield
    sys.modules.pop("others", None)


def test_our_names() -> None:
    for name, kind in {"local_mt": Threads, "test_mt": Threads, "local_mp": Processes, "test_mp": Processes}.items():
        assert isinstance(find_launcher(name)[0], kind)
        assert find_launcher(lp.LaunchType(name))[1] == name
    assert find_launcher(None)[1] == "local_mt"
    own = Processes(preload=("fractions",))
    assert find_launcher(own) == (own, "local_mp")


def test_names_of_other_packages(installed: None, tmp_path: Path) -> None:
    assert launcher_names() == ["local_mt", "local_mp", "test_mt", "test_mp", "broken", "other", "wrong"]
    launcher, name = find_launcher("other")
    assert (type(launcher).__name__, name) == ("Other", "other")
    assert isinstance(find_launcher("local_mt")[0], Threads)  # ours cannot be replaced
    with pytest.raises(LaunchError, match=r"'broken' \(others:Nothing\) cannot be made: AttributeError"):
        find_launcher("broken")
    with pytest.raises(LaunchError, match=r"'wrong'.*not a launch.Launcher"):
        find_launcher("wrong")
    with pytest.raises(
        LaunchError, match=r"Unknown launch type 'otter': use one of local_mt, .*test_mp, broken, other"
    ):
        find_launcher("otter")
    assert type(launcher_of_run("other")) is type(launcher)
    assert isinstance(launcher_of_run("nobody knows"), Launcher)
    run = lp.launch(lp.make_program(lp.PyNode(show)), "other", run_directory=tmp_path / "run")
    assert run.wait(timeout=DEADLINE_S)
    assert (tmp_path / "run" / "logs" / "pynode_0-0.log").read_text() == "other\n"


def show() -> None:
    print(lp.get_context().launch_type)


def test_the_command_takes_a_launcher_of_another_package(installed: None, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(
        "import topology as lp\ndef agent():\n    '''Shows.'''\n"
        "    return lp.make_program(lp.PyNode(lambda: print(lp.get_context().launch_type)))\n"
    )
    place = tmp_path / "run"
    result = CliRunner().invoke(app, ["launch", f"{tmp_path}/agent.py:agent", "-t", "other", "-d", str(place)])
    assert result.exit_code == 0, result.output
    assert (place / "logs" / "pynode_0-0.log").read_text() == "other\n"
    assert "finished" in CliRunner().invoke(app, ["stop", str(place)]).output
    result = CliRunner().invoke(app, ["launch", f"{tmp_path}/agent.py:agent", "-t", "otter"])
    assert result.exit_code == 2
    assert "other" in result.stderr


def test_a_launcher_is_an_object_and_made_whole() -> None:
    with pytest.raises(LaunchError, match="Threads is a class"):
        lp.launch(lp.make_program(lp.PyNode(int)), Threads)
    with pytest.raises(TypeError, match="open_backend"):
        Launcher()  # type: ignore[abstract]


# --- rollback


def test_steps_are_undone_backwards_once_and_whatever_the_others_do() -> None:
    undone: list[str] = []

    def interrupted() -> None:
        undone.append("b")
        raise KeyboardInterrupt

    rollback = Rollback()
    rollback.push("a", lambda: undone.append("a"))
    rollback.push("b", interrupted)
    rollback.push("c", functools.partial(int, "no number"))
    rollback.push("d", lambda: undone.append("d"), only_after_failure=True)
    problems = rollback.run()
    assert undone == ["b", "a"]
    assert problems == [
        "c could not be given back: ValueError: invalid literal for int() with base 10: 'no number'",
        "b could not be given back: KeyboardInterrupt: ",
    ]
    assert rollback.run() == []
    rollback.push("d", lambda: undone.append("d"), only_after_failure=True)
    assert rollback.run(failed=True) == []
    assert undone == ["b", "a", "d"]


# --- sweep


@pytest.fixture
def sleeper() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`sleeper(environment, command)` starts a process that ends at the end of the test at the latest."""
    started: list[subprocess.Popen[str]] = []

    def start(environment: dict[str, str] | None = None, command: str = "exec sleep 3600") -> subprocess.Popen[str]:
        environment = {**os.environ, **(environment or {})}
        started.append(subprocess.Popen(["sh", "-c", command], env=environment, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=DEADLINE_S)


@pytest.fixture
def lost(tmp_path: Path) -> RunDirectory:
    """A run whose launcher has been killed."""
    directory = create(tmp_path, "lost")
    directory.update_state(state="running", launcher={"pid": 2**22 + 1, "create_time": 1.0})
    return directory


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "_GRACE_S", 0.2)


def refuse(resource: Any) -> None:
    raise LaunchError(f"{resource['kind']} is stuck")


def test_marks() -> None:
    first = add_mark({"A": "b"}, Path("/runs/outer"))
    both = add_mark(add_mark(first, Path("/runs/inner")), Path("/runs/inner"))
    assert both == {"A": "b", MARK: "/runs/outer\n/runs/inner"}


@pytest.mark.parametrize("now", [False, True])
def test_processes_are_found_by_record_by_descent_and_by_mark(
    lost: RunDirectory, now: bool, sleeper: Callable[..., subprocess.Popen[str]]
) -> None:
    recorded, marked = sleeper(), sleeper(add_mark({}, lost.path))
    parent = sleeper(command="sleep 3600 & echo $!; wait")
    stranger, later = sleeper(add_mark({}, lost.path / "other")), sleeper()
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    resources = [describe_process(recorded.pid), {**describe_process(later.pid), "create_time": 5.0}]
    nodes = [{"label": "a", "index": 0, "state": "running", "pid": parent.pid}]
    lost.update_state(resources=resources, nodes=nodes)
    done = Processes().undeploy(lost, now=now)
    assert (done.state, done.processes) == ("lost", 4)
    assert str(done) == "lost; 4 processes that were left have been ended"
    assert create_time(child) is None
    for process in (recorded, marked):
        assert process.wait(DEADLINE_S) < 0
    assert parent.wait(DEADLINE_S) <= 0  # it may see the end of its child first, and end by itself
    assert stranger.poll() is None
    assert later.poll() is None
    assert str(Processes().undeploy(lost)) == "lost"


def test_what_is_not_what_was_recorded_stays(lost: RunDirectory, tmp_path: Path) -> None:
    ours, others, link = tmp_path / "ours", tmp_path / "others", tmp_path / "link"
    ours.mkdir()
    (ours / "socket").touch()
    others.mkdir()
    link.symlink_to(others)
    resources = [describe_directory(path) for path in (ours, others, link)]
    resources[1]["inode"] += 1
    resources.append({"kind": "directory", "path": str(tmp_path / "gone"), "inode": 5})
    lost.update_state(resources=resources)
    assert Threads().undeploy(lost).removed == (str(ours),)
    assert others.exists()
    assert link.exists()


def test_every_problem_is_told_and_the_next_attempt_has_them_again(lost: RunDirectory, tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    ours.mkdir()
    lost.update_state(
        resources=[{"kind": "job"}, describe_directory(ours), {"kind": "volume", "id": 7}, {"kind": "directory"}]
    )
    for _ in range(2):
        with pytest.raises(UndeployFailed, match=r"(?s)could be given back:\n.*topology stop .*tries again") as caught:
            Threads().undeploy(lost)
        assert [error.partition(" could not")[0] for error in caught.value.errors] == [
            "the directory",
            "the volume 7",
            "the job",
        ]
        assert "undeploy the run with the launcher that created it" in caught.value.errors[1]
        assert not ours.exists()


def test_shared_memory_of_what_is_killed_is_removed(
    lost: RunDirectory, sleeper: Callable[..., subprocess.Popen[str]]
) -> None:
    mine = shared_memory.SharedMemory(create=True, size=100)
    code = (
        "import sys, time; from multiprocessing import shared_memory as s; m = s.SharedMemory(create=True, size=100)\n"
        f"other = s.SharedMemory({mine.name!r}); print(m.name, flush=True); time.sleep(3600)"
    )
    node = sleeper(command=f"exec {sys.executable} -c {shlex.quote(code)}")
    try:
        assert node.stdout is not None
        name = node.stdout.readline().strip()
        lost.update_state(resources=[describe_process(node.pid)])
        done = Processes().undeploy(lost, now=True)
        assert done.removed == (f"/dev/shm/{name}",)
        assert Path("/dev/shm", mine.name).exists()  # somebody else has it
    finally:
        mine.close()
        mine.unlink()


def test_a_run_of_another_machine_is_left_to_it(lost: RunDirectory) -> None:
    lost.update_state(launcher={"pid": 2**22 + 1, "create_time": 1.0, "host": "elsewhere"})
    with pytest.raises(LaunchError, match=r"launched on the machine 'elsewhere'.*run `topology stop .*` there"):
        Processes().undeploy(lost)


def test_a_reclaimer_is_asked_in_reverse(lost: RunDirectory) -> None:
    found: list[Any] = []
    state = {**lost.read_state(), "resources": [{"kind": "job", "id": i} for i in range(3)]}
    Sweep(lost, state, found.append).run(now=True)
    assert [resource["id"] for resource in found] == [2, 1, 0]


# --- monitor


def test_a_log_stream_looks_again_after_a_moment_and_ends_after_the_last_line(tmp_path: Path) -> None:
    directory = create(tmp_path, "p")
    directory.log_path("a", 0).write_text("one\ntwo\nthree\nhal")
    clock, ended = ManualClock(), threading.Event()
    stream = LogStream(directory, "a", 2, ended.is_set, clock)
    assert [next(stream), next(stream)] == [("a/0", "two"), ("a/0", "three")]
    rest: list[Any] = []
    reader = threading.Thread(target=lambda: rest.extend(stream))
    reader.start()
    clock.wait_until_waiting()
    with directory.log_path("a", 0).open("a") as file:
        file.write("f\n")
    directory.log_path("b", 0).write_text("not asked for\n")
    ended.set()
    clock.advance(1.0)
    reader.join(DEADLINE_S)
    assert rest == [("a/0", "half")]


def test_an_unknown_run_cannot_be_looked_at() -> None:
    with pytest.raises(LaunchError, match="No run is called"):
        Monitor("nothing")
    with pytest.raises(LaunchError, match="There are no runs"):
        Processes().undeploy(run_control.LATEST)


# --- launchers that are busy, halted, or hang


@pytest.fixture
def slow_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module `slow_module` whose import takes an hour; returns the file that it makes when it begins."""
    began = tmp_path / "began"
    (tmp_path / "slow_module.py").write_text(
        f"import pathlib, time\npathlib.Path({str(began)!r}).touch()\ntime.sleep(3600)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return began


def wait_for_file(path: Path) -> None:
    for _ in range(int(DEADLINE_S / 0.02)):  # of a file of another process there is no event
        if path.exists():
            return
        threading.Event().wait(0.02)
    raise AssertionError(f"{path} did not come")


def test_modules_that_are_preloaded_are_not_waited_for(slow_module: Path, tmp_path: Path) -> None:
    launcher = Processes(preload=("slow_module",))
    found: list[Any] = []

    def undeploy() -> None:
        wait_for_file(slow_module)
        found.append(launcher.undeploy(tmp_path / "run"))

    thread = threading.Thread(target=undeploy)
    thread.start()
    with pytest.raises(LaunchError, match="was stopped while it was starting: the run was undeployed"):
        lp.launch(lp.make_program(lp.PyNode(int)), launcher, run_directory=tmp_path / "run")
    thread.join(DEADLINE_S)
    assert found[0].state == "stopped"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("halted", [False, True])
def test_a_launcher_that_is_starting_in_another_process(
    slow_module: Path, start: Callable[..., Any], tmp_path: Path, left_processes: Callable[[], list[int]], halted: bool
) -> None:
    """It has no handler for the signal yet, and dies of it; or cannot even do that."""
    script = start(
        """
        lp.launch(lp.make_program(lp.PyNode(int)), lp.Processes(preload=("slow_module",)), run_directory="run")
        """
    )
    wait_for_file(slow_module)
    if halted:
        script.send(signal.SIGSTOP)
    result = CliRunner().invoke(app, ["stop", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    assert script.process.wait(DEADLINE_S) != 0
    assert ": lost" in result.output
    assert left_processes() == []


def test_a_launcher_that_hangs_is_killed_and_what_it_had_is_ended(
    start: Callable[..., Any], tmp_path: Path, left_processes: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.undeploy._NOW_S", 0.1)
    monkeypatch.setattr("launch.undeploy._KILL_S", 0.1)
    script = start(
        """
        import signal
        run = lp.launch(lp.make_program(lp.PyNode(lp.wait_for_stop)), "local_mp", run_directory="run")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        print("ready", flush=True)
        run.wait()
        """
    )
    script.line("ready")
    with pytest.raises(LaunchError, match=r"has not ended after 0\.1 s"):
        Processes().undeploy(tmp_path / "run", timeout_s=0.1)
    assert Processes().undeploy(tmp_path / "run", now=True).state == "lost"
    assert script.process.wait(DEADLINE_S) == -signal.SIGKILL
    assert left_processes() == []


def test_a_fork_server_that_is_halted_does_not_keep_what_nodes_have_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KILL_GRACE_S", "ABANDON_S"):
        monkeypatch.setattr(f"launch.supervisor.{name}", 0.1)
    run = lp.launch(
        lp.make_program(lp.PyNode(start_daemon, tmp_path)), "local_mp", run_directory=tmp_path / "run",
        termination_notice_s=0.1,
    )  # fmt: skip
    wait_for_file(tmp_path / "daemon")
    server, daemon = map(int, (tmp_path / "daemon").read_text().split())
    os.kill(server, signal.SIGSTOP)
    assert Processes().undeploy(run).state == "stopped"
    assert create_time(daemon) is None


def start_daemon(directory: Path) -> None:
    daemon = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    (directory / "part").write_text(f"{os.getppid()} {daemon.pid}")
    (directory / "part").rename(directory / "daemon")
    lp.wait_for_stop()
