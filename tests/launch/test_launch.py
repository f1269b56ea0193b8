"""What holds for threads and processes alike: Launchpad's own launch tests in our words, and more."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import topology as lp
from launch import signals
from launch.plan import LaunchOptions
from launch.run_directory import list_runs
from topology.context import derive_seeds
from topology.errors import LaunchError, NodeFailed, ProgramError, ProgramStopped, SerializationError
from topology.testing import no_leaks

KINDS = ["test_mt", "test_mp"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def launch(kind: str) -> Iterator[Callable[..., lp.Run]]:
    """`lp.launch` whose runs are stopped at the end of the test."""
    started: list[lp.Run] = []

    def start(program: lp.Program, **options: Any) -> lp.Run:
        run = lp.launch(program, kind, **{"termination_notice_s": 3.0, **options})
        started.append(run)
        return run

    with no_leaks():
        yield start
        for run in started:
            assert run.stop(timeout=20)


def wait_for_stop() -> None:
    assert lp.wait_for_stop()


def fail(text: str = "the error of the node") -> None:
    raise RuntimeError(text)


def touch(path: Path) -> None:
    path.touch()


def program_of(**functions: Callable[[], Any]) -> lp.Program:
    """A program with a PyNode for each function, in a group of that name."""
    program = lp.Program("test")
    for label, function in functions.items():
        program.add_node(lp.PyNode(function), label=label)
    return program


class Server:
    def __init__(self, value: int = 0) -> None:
        self._value = value

    def get(self) -> int:
        return self._value

    def who(self) -> tuple[str, int, int]:
        context = lp.get_context()
        return context.name, context.group_size, context.seed

    def stop_the_program(self) -> None:
        lp.stop()


def test_one_node(launch: Callable[..., lp.Run], tmp_path: Path) -> None:
    run = launch(program_of(main=functools.partial(touch, tmp_path / "ran")))
    assert run.wait(timeout=20)
    assert (tmp_path / "ran").exists()
    assert run.exit_codes == {"main/0": 0}
    assert run.status() == {"main/0": "finished"}
    assert run.state == "finished"


def test_launchpads_names() -> None:
    assert lp.LaunchType.LOCAL_MULTI_THREADING.value == "local_mt"
    assert lp.LaunchType("test_mp") is lp.LaunchType.TEST_MULTI_PROCESSING
    run = lp.launch([program_of(main=int)], lp.LaunchType.TEST_MULTI_THREADING, xm_resources={"main": object()})
    assert run.wait(timeout=20)


def test_a_failure_is_raised_with_type_and_message(launch: Callable[..., lp.Run], kind: str) -> None:
    run = launch(program_of(bad=fail, other=wait_for_stop))
    with pytest.raises(RuntimeError, match="the error of the node") as caught:
        run.wait(timeout=20)
    assert isinstance(caught.value, NodeFailed) == (kind == "test_mp")
    if kind == "test_mp":
        assert isinstance(caught.value, NodeFailed)
        assert (caught.value.label, caught.value.index, caught.value.exit_code) == ("bad", 0, 1)
        assert str(caught.value).rstrip().endswith("RuntimeError: the error of the node")
    else:
        assert "in node bad/0" in caught.value.__notes__[0]
    assert run.state == "failed"
    assert run.status() == {"bad/0": "failed", "other/0": "stopped"}
    assert run.wait(timeout=20)  # a failure is raised once


def test_a_failure_may_be_left_to_a_later_wait(launch: Callable[..., lp.Run]) -> None:
    run = launch(program_of(bad=fail))
    assert run.wait(timeout=20, raise_error=False)
    with pytest.raises(RuntimeError, match="the error of the node"):
        run.wait(timeout=20)


def test_wait_for_some_groups(launch: Callable[..., lp.Run]) -> None:
    run = launch(program_of(main=int, daemon=wait_for_stop))
    assert run.wait(["main"], timeout=20)
    assert run.status()["daemon/0"] == "running"
    assert run.state == "running"
    assert not run.wait(timeout=0.05)


def test_wait_for_some_groups_raises_the_failure_of_any(launch: Callable[..., lp.Run]) -> None:
    run = launch(program_of(main=wait_for_stop, daemon=fail))
    with pytest.raises(RuntimeError, match="the error of the node"):
        run.wait(["main"], timeout=20)


def test_wait_for_the_first(launch: Callable[..., lp.Run]) -> None:
    run = launch(program_of(fast=int, slow=wait_for_stop))
    assert run.wait(timeout=20, return_on_first_completed=True)
    assert run.status() == {"fast/0": "finished", "slow/0": "running"}


def test_wait_for_an_unknown_group(launch: Callable[..., lp.Run]) -> None:
    run = launch(program_of(main=wait_for_stop))
    with pytest.raises(LaunchError, match=r"'mian': the groups are 'main'"):
        run.wait(["mian"])


def test_a_program_stopper(launch: Callable[..., lp.Run]) -> None:
    stopper = lp.make_program_stopper(lp.LaunchType.TEST_MULTI_PROCESSING)
    run = launch(program_of(blocked=wait_for_stop, stopper=stopper))
    assert run.wait(timeout=20)
    assert run.state == "finished"  # the program itself said when


def test_stop_ends_nodes_and_their_blocked_calls(launch: Callable[..., lp.Run]) -> None:
    program = lp.Program("test")
    node = lp.CourierNode(Blocked)
    handle = program.add_node(node, label="blocked")
    program.add_node(lp.PyNode(call, handle), label="caller")
    run = launch(program)
    assert handle.dereference().started()
    assert run.stop(timeout=20)
    assert run.state == "stopped"
    assert set(run.status().values()) == {"stopped"}
    assert not run.wait(timeout=20) or run.state == "stopped"


class Blocked:
    def __init__(self) -> None:
        self._called = threading.Event()

    def block(self) -> None:
        self._called.set()
        lp.wait_for_stop()

    def started(self) -> bool:
        return self._called.wait(20)


def call(blocked: Any) -> None:
    blocked.block()


def test_clients_in_the_script(launch: Callable[..., lp.Run]) -> None:
    program = lp.Program("test")
    with program.group("server"):
        handles = [program.add_node(lp.CourierNode(Server, value)) for value in range(3)]
    run = launch(program, seed=7)
    clients = [handle.dereference() for handle in handles]
    assert [client.get() for client in clients] == [0, 1, 2]
    told = [client.who() for client in clients]
    assert [name for name, _, _ in told] == ["server/0", "server/1", "server/2"]
    assert {size for _, size, _ in told} == {3}
    assert len({seed for _, _, seed in told}) == 3
    with contextlib.suppress(ProgramStopped):  # the stop may be here before the reply
        clients[0].stop_the_program()
    assert run.wait(timeout=20)
    with pytest.raises(ProgramError, match="no running program has it"):
        handles[0].dereference()


def test_seeds_are_the_same_on_every_run(launch: Callable[..., lp.Run]) -> None:
    program = lp.Program("test")
    handle = program.add_node(lp.CourierNode(Server), label="server")
    seeds = []
    for seed in (1, 1, 2):
        run = launch(program, seed=seed)
        seeds.append(handle.dereference().who()[2])
        assert run.stop(timeout=20)
    assert seeds[0] == seeds[1] != seeds[2]


def test_a_test_drives_a_node_itself(launch: Callable[..., lp.Run]) -> None:
    """Launchpad's recipe for testing a program."""
    program = lp.Program("test")
    with program.group("server"):
        program.add_node(lp.CourierNode(RunsForEver))
    (node,) = program.groups["server"]
    assert isinstance(node, lp.CourierNode)
    node.disable_run()
    launch(program)
    client = node.create_handle().dereference()
    assert client.step() == 1
    assert client.step() == 2


class RunsForEver:
    def __init__(self) -> None:
        self._steps = 0

    def step(self) -> int:
        self._steps += 1
        return self._steps

    def run(self) -> None:
        raise AssertionError("not in this test")


def test_a_test_case_stops_the_program(kind: str) -> None:
    class Case(unittest.TestCase):
        def runTest(self) -> None:
            self.run_ = lp.launch(program_of(blocked=wait_for_stop), kind, test_case=self)

    case = Case()
    result = case.run()
    assert result is not None
    assert result.wasSuccessful()
    assert case.run_.state == "stopped"


def test_a_with_block_stops_the_program_and_raises_its_failure(kind: str) -> None:
    with lp.launch(program_of(blocked=wait_for_stop), kind) as run:
        assert run.state in ("starting", "running")
    assert run.state == "stopped"
    with pytest.raises(RuntimeError, match="the error"), lp.launch(program_of(bad=fail), kind) as run:
        run.wait(timeout=20, raise_error=False)
    with pytest.raises(KeyError), lp.launch(program_of(bad=fail), kind):
        raise KeyError("of the block: not hidden by the node's")


def test_one_failure_of_several_is_raised_and_the_others_are_noted(launch: Callable[..., lp.Run]) -> None:
    run = launch(program_of(a=functools.partial(fail, "first"), b=fail_at_the_stop))
    with pytest.raises(RuntimeError, match="first") as caught:
        run.wait(timeout=20)
    assert any("node b/0 failed, too: RuntimeError: second" in note for note in caught.value.__notes__)


def fail_at_the_stop() -> None:
    lp.wait_for_stop()
    fail("second")


def test_a_dead_peer_is_not_the_failure_to_read(launch: Callable[..., lp.Run], kind: str) -> None:
    if kind == "test_mt":
        pytest.skip("a thread cannot die alone")
    program = lp.Program("test")
    handle = program.add_node(lp.CourierNode(Dying), label="dying")
    program.add_node(lp.PyNode(call_dying, handle), label="caller")
    with pytest.raises(NodeFailed, match="Node dying/0 failed: its process exited with code 5"):
        launch(program).wait(timeout=20)


class Dying:
    def die(self) -> None:
        os._exit(5)


def call_dying(dying: Any) -> None:
    dying.die()


def test_restarts(launch: Callable[..., lp.Run], tmp_path: Path) -> None:
    run = launch(program_of(flaky=functools.partial(fail_twice, tmp_path)), restarts={"flaky": 2})
    assert run.wait(timeout=20)
    assert run.status() == {"flaky/0": "finished"}
    run = launch(program_of(bad=fail), restarts={"bad": 1})
    with pytest.raises(RuntimeError, match="the error"):
        run.wait(timeout=20)


def fail_twice(directory: Path) -> None:
    count = len(list(directory.glob("attempt-*")))
    (directory / f"attempt-{count}").touch()
    if count < 2:
        fail()


def test_a_node_that_is_started_again_has_another_seed(launch: Callable[..., lp.Run], tmp_path: Path) -> None:
    for name in ("first", "again"):
        directory = tmp_path / name
        directory.mkdir()
        program = program_of(flaky=functools.partial(note_seed_and_fail_twice, directory))
        assert launch(program, restarts={"flaky": 2}, seed=3).wait(timeout=20)
    first, again = (
        [int(file.read_text()) for file in sorted((tmp_path / name).iterdir())] for name in ("first", "again")
    )
    assert len(set(first)) == 3
    assert first == again
    assert first[0] == derive_seeds(3, ["flaky/0"])["flaky/0"]


def note_seed_and_fail_twice(directory: Path) -> None:
    count = len(list(directory.iterdir()))
    (directory / f"attempt-{count}").write_text(str(lp.get_context().seed))
    if count < 2:
        fail()


def test_everything_wrong_is_said_at_once_and_nothing_starts(kind: str, tmp_path: Path) -> None:
    program = program_of(main=functools.partial(touch, tmp_path / "ran"))
    stranger = lp.CourierNode(Server).create_handle()
    program.add_node(lp.PyNode(call, stranger), label="caller")
    with pytest.raises(ProgramError) as caught:
        lp.launch(program, kind, local_resources={"mian": lp.PythonProcess()}, restarts={"nobody": 1})
    assert len(caught.value.faults) == 3
    assert "'mian'" in str(caught.value)
    assert "'nobody'" in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_an_argument_that_cannot_travel(kind: str) -> None:
    program = lp.Program("test")
    program.add_node(lp.PyNode(call, [1, {"lock": threading.Lock()}]), label="holder")
    with pytest.raises(SerializationError, match=r"holder/0.*lock"):
        lp.launch(program, kind)
    with pytest.raises(RuntimeError, match="holder"):
        lp.launch(program, "local_mt", serialize_py_nodes=True)


def test_threads_take_arguments_that_cannot_travel(tmp_path: Path) -> None:
    event = threading.Event()
    run = lp.launch(program_of(main=event.set), "test_mt", serialize_py_nodes=False)
    assert run.wait(timeout=20)
    assert event.is_set()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"launch_type": "local_mq"}, "Unknown launch type 'local_mq': use one of local_mt, local_mp"),
        ({"launch_type": lp.LaunchType.VERTEX_AI}, "vertex_ai is not supported"),
        ({"terminal": "teletype"}, "Unknown terminal 'teletype': use one of current_terminal"),
        ({"local_resources": {"main": 3}}, "local_resources is a PythonProcess"),
        ({"local_resources": {"main": {"environment": {}}}}, "local_resources is a PythonProcess"),
        ({"termination_notice_s": -1.0}, "at least 0, got -1"),
        ({"restarts": {"main": -1}}, "at least 0, got -1"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        lp.launch(program_of(main=int), **options)


def test_several_programs_are_several_launches() -> None:
    with pytest.raises(ProgramError, match="one program"):
        lp.launch([program_of(main=int), program_of(main=int)])


def test_stop_in_the_script_speaks_of_the_newest_program_of_this_thread(launch: Callable[..., lp.Run]) -> None:
    first, second = launch(program_of(main=wait_for_stop)), launch(program_of(main=wait_for_stop))
    lp.stop()
    assert second.wait(timeout=20)
    assert not first.wait(timeout=0.05)
    lp.stop()
    assert first.wait(timeout=20)


def test_a_node_finds_its_run_directory_and_a_test_removes_it(launch: Callable[..., lp.Run]) -> None:
    run = launch(program_of(main=check_run_directory))
    directory = run.run_directory
    assert run.wait(timeout=20)
    assert not directory.exists()


def check_run_directory() -> None:
    directory = lp.get_context().run_directory
    assert directory is not None
    assert (directory / "checkpoints").is_dir()
    assert (directory / "graph.json").exists()


@pytest.mark.parametrize("kind", ["local_mt", "local_mp"])
def test_what_a_run_leaves_on_disk(kind: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = program_of(talker=functools.partial(print, "a line"))
    run = lp.launch(program, kind, seed=3)
    assert run.wait(timeout=20)
    (directory,) = list_runs()
    assert directory.path == run.run_directory
    assert directory.path.parent == runs
    state = directory.read_state()
    assert (state["program"], state["launch_type"], state["state"], state["error"]) == ("test", kind, "finished", None)
    assert state["ended"] >= state["started"]
    (node,) = state["nodes"]
    assert (node["label"], node["index"], node["state"], node["exit_code"]) == ("talker", 0, "finished", 0)
    assert (node["pid"] is None) == (kind == "local_mt")
    assert directory.log_path("talker", 0).read_text() == "a line\n"
    assert capsys.readouterr().out == "[talker/0] a line\n"


@pytest.mark.parametrize("kind", ["local_mt", "local_mp"])
def test_a_failed_run_says_so_on_disk(kind: str) -> None:
    with pytest.raises(RuntimeError):
        lp.launch(program_of(bad=fail), kind).wait(timeout=20)
    (directory,) = list_runs()
    state = directory.read_state()
    assert state["state"] == "failed"
    assert state["error"].startswith("Node bad/0 failed: RuntimeError: the error of the node\n\nTraceback")


def test_plans_are_data() -> None:
    program = program_of(a=int, b=int)
    options = LaunchOptions(launch_type="test_mp", seed=4)
    for launcher in (lp.Processes(), lp.Threads()):
        assert launcher.plan(program, options) == launcher.plan(program, options)
    assert lp.Processes().plan(program, options).preload == ("topology.nodes.python",)


def test_a_launcher_object_is_taken_too(tmp_path: Path) -> None:
    run = lp.launch(program_of(main=functools.partial(check_preloaded, tmp_path)), lp.Processes(preload=("fractions",)))
    assert run.wait(timeout=20)


def check_preloaded(directory: Path) -> None:
    import sys

    assert "fractions" in sys.modules


def test_a_preload_that_fails() -> None:
    with no_leaks(), pytest.raises(LaunchError, match=r"(?s)preload.*No module named 'no_such_module'"):
        lp.launch(program_of(main=int), lp.Processes(preload=("no_such_module",)))


def test_run_json_knows_the_processes_while_they_run() -> None:
    program = lp.Program("test")
    handle = program.add_node(lp.CourierNode(Pid), label="server")
    with lp.launch(program, "local_mp"):
        pid = handle.dereference().pid()
        (directory,) = list_runs()
        (node,) = directory.read_state()["nodes"]
        assert (node["pid"], node["state"]) == (pid, "running")
    assert directory.read_state()["state"] == "stopped"


class Pid:
    def pid(self) -> int:
        return os.getpid()


def call_for_ever(server: Any) -> None:
    while True:
        server.get()


def stop_after_calls(servers: list[Any], barrier: int) -> None:
    for _ in range(barrier):
        for server in servers:
            server.get()
    lp.stop()


def test_a_stop_amid_calls_is_clean_whoever_hears_of_it_first(launch: Callable[..., lp.Run]) -> None:
    for calls in (1, 30, 100):
        program = lp.Program("test")
        with program.group("server"):
            servers = [program.add_node(lp.CourierNode(Server)) for _ in range(3)]
        with program.group("caller"):
            for server in servers:
                program.add_node(lp.PyNode(call_for_ever, server))
        program.add_node(lp.PyNode(stop_after_calls, servers, calls), label="stopper")
        run = launch(program)
        assert run.wait(timeout=20)
        assert run.state == "finished"


def test_a_node_may_launch_a_program_of_its_own(launch: Callable[..., lp.Run], kind: str, tmp_path: Path) -> None:
    run = launch(program_of(outer=functools.partial(launch_inside, kind, tmp_path), other=wait_for_stop))
    assert run.wait(["outer"], timeout=20)
    assert (tmp_path / "inner").exists()
    assert run.status()["other/0"] == "running"


def launch_inside(kind: str, directory: Path) -> None:
    inner = lp.launch(program_of(inner=functools.partial(touch_and_stop, directory / "inner")), kind)
    assert inner.wait(timeout=20)


def touch_and_stop(path: Path) -> None:
    path.touch()
    lp.stop()


@pytest.mark.parametrize("kind", ["local_mt", "local_mp"])
def test_the_log_of_a_node_has_its_traceback_also_when_it_is_started_again(kind: str, tmp_path: Path) -> None:
    run = lp.launch(program_of(flaky=functools.partial(fail_twice, tmp_path)), kind, restarts={"flaky": 2})
    assert run.wait(timeout=20)
    log = (run.run_directory / "logs" / "flaky-0.log").read_text()
    assert log.count("Traceback") == 2
    assert log.rstrip().endswith("RuntimeError: the error of the node")


@pytest.mark.parametrize("kind", ["test_mt", "test_mp"])
@pytest.mark.parametrize("refused", ["run ", "processes of nodes"])
def test_a_system_without_threads_leaves_nothing_half_started(
    kind: str, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def no_thread(thread: threading.Thread) -> None:
        if thread.name.startswith(refused):
            raise RuntimeError("can't start new thread")
        start(thread)

    if (kind, refused) == ("test_mt", "processes of nodes"):
        pytest.skip("no such thread")
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with no_leaks(), pytest.raises((lp.errors.LaunchError, RuntimeError), match="can't start new thread"):
        lp.launch(lp.make_program(lp.PyNode(print)), kind)
    assert signals.active_runs() == []
