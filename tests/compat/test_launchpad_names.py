"""What Launchpad's own tests check of programs, nodes and launches, through its names."""

from __future__ import annotations

import functools
import os
import pickle
import signal
import sys
import threading
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import cloudpickle
import pytest

from topology.compat import provided
from topology.testing import Gate, no_leaks

with provided():
    import courier
    import launchpad as lp
    import reverb
    from launchpad.launch import serialization, signal_handling
    from launchpad.launch.run_locally import run_locally
    from launchpad.launch.test_multi_threading import address_builder
    from launchpad.nodes.python.local_multi_processing import PythonProcess

pytestmark = pytest.mark.usefixtures("provided")

KINDS = ["test_mt", "test_mp"]
TIMEOUT_S = 20


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def launch(kind: str) -> Iterator[Callable[..., Any]]:
    """`lp.launch` as tests use it: what is left is stopped by the clean-up of a test case."""
    case = unittest.TestCase()
    with no_leaks():
        yield lambda program, **options: lp.launch(program, kind, test_case=case, **options)
        case.doCleanups()


def program_of(**functions: Callable[[], Any]) -> Any:
    program = lp.Program("test")
    for label, function in functions.items():
        program.add_node(lp.PyNode(function), label=label)
    return program


def wait_for_stop() -> None:
    assert lp.wait_for_stop()


def fail() -> None:
    raise RuntimeError("the error of the node")


def touch(path: Path) -> None:
    path.touch()


# --- programs -------------------------------------------------------------------------------------------------------


def test_nodes_are_filed_under_their_label() -> None:
    program, nodes = lp.Program("test"), [mock.Mock() for _ in range(6)]
    program.add_node(nodes[0], label="one")
    with program.group("two"):
        program.add_node(nodes[1])
        program.add_node(nodes[2], label="two")
    program.add_node(nodes[3], label="one")
    with program.group("two"):
        program.add_node(nodes[4])
    assert program.groups == {"one": [nodes[0], nodes[3]], "two": [nodes[1], nodes[2], nodes[4]]}
    assert list(program.get_all_nodes()) == [nodes[0], nodes[3], nodes[1], nodes[2], nodes[4]]


@pytest.mark.parametrize("label", [None, ""])
def test_a_label_is_needed(label: Any) -> None:
    with pytest.raises(ValueError, match="Label should not be empty"):
        lp.Program("test").add_node(mock.Mock(), label)


def test_groups_have_a_label_of_their_own_and_do_not_nest() -> None:
    program = lp.Program("test")
    with pytest.raises(ValueError, match="Label should not be empty"), program.group(""):
        pass
    with program.group("one"):
        with pytest.raises(ValueError, match="label does not match the current group"):
            program.add_node(mock.Mock(), label="two")
        with pytest.raises(ValueError, match=r"group\(\) cannot be nested."), program.group("two"):
            pass


# --- nodes run by hand ----------------------------------------------------------------------------------------------


class Ping:
    def __init__(self, pong: Any = None) -> None:
        self._pong = pong
        self._server: Any = None

    def set_courier_server(self, server: Any) -> None:
        self._server = server

    def run(self) -> None:
        self._server.Start()
        lp.wait_for_stop()

    def ping(self) -> str:
        return "ping"

    def ping_pong(self) -> str:
        return f"ping {self._pong.pong()}"

    def __call__(self) -> str:
        return "called"


class Pong:
    def __init__(self, ping: Any) -> None:
        self._ping = ping

    def pong(self) -> str:
        return "pong"

    def pong_ping(self) -> str:
        return f"pong {self._ping.ping()}"


@pytest.fixture
def run_by_hand() -> Iterator[Callable[..., None]]:
    """Runs nodes in threads, their addresses bound as tests of single nodes do."""
    threads: list[threading.Thread] = []
    stops: list[Any] = []

    def start(*nodes: Any) -> None:
        stops.append(address_builder.bind_addresses(nodes))
        for node in nodes:
            threads.append(threading.Thread(target=node.run, daemon=True))
            threads[-1].start()

    with no_leaks():
        yield start
        for stop in stops:
            stop.set()
        for thread in threads:
            thread.join(TIMEOUT_S)


def test_two_nodes_that_hold_each_others_handles(run_by_hand: Callable[..., None]) -> None:
    ping = lp.CourierNode(Ping, courier_kwargs={"thread_pool_size": 4})
    pong = lp.CourierNode(Pong, ping=ping.create_handle())
    ping.configure(pong=pong.create_handle())
    assert len(ping._input_handles) == len(pong._input_handles) == 1
    run_by_hand(ping, pong)
    with ping.create_handle().dereference() as ping_client, pong.create_handle().dereference() as pong_client:
        assert isinstance(ping_client, courier.Client)
        assert isinstance(ping_client, lp.CourierClient)
        assert ping_client.ping_pong() == "ping pong"
        assert pong_client.pong_ping() == "pong ping"
        assert ping_client() == "called"
        assert ping_client.futures.ping().result(TIMEOUT_S) == "ping"
        assert ping_client.futures().result(TIMEOUT_S) == "called"
    assert ping.courier_address.resolve().startswith("localhost:")


def test_options_of_clients(run_by_hand: Callable[..., None]) -> None:
    node = lp.CourierNode(Gate, courier_client_kwargs={"call_timeout": 0.1})
    run_by_hand(node)
    with node.create_handle().dereference() as client, pytest.raises(courier.python.client.StatusNotOk) as caught:
        client()
    assert "Deadline Exceeded" in str(caught.value)
    handle = node.create_handle()
    handle.set_client_kwargs(call_timeout=TIMEOUT_S)
    with handle.dereference() as client:
        client.release()


def test_a_replay_node(run_by_hand: Callable[..., None]) -> None:
    node = lp.ReverbNode(lambda: [reverb.Table.queue("queue", max_size=10)])
    run_by_hand(node)
    client = node.create_handle().dereference()
    assert isinstance(client, reverb.Client)
    client.insert([0, 1], {"queue": 1.0})
    assert client.server_info()["queue"].current_size == 1
    assert node.reverb_address.resolve()


# --- colocation -----------------------------------------------------------------------------------------------------


def test_an_address_in_colocated_threads() -> None:
    address, locked, gate = lp.Address("by_hand"), threading.Lock(), Gate()

    def serve() -> None:
        server = courier.Server("server", port=lp.get_port_from_address(address.resolve()))
        server.Bind("ping", lambda: "pong")
        with server:
            lp.wait_for_stop()

    def call() -> None:
        with locked, courier.Client(address.resolve()) as client:
            assert client.ping() == "pong"
        gate()
        lp.stop()

    node = lp.PyNode(serve)
    node.allocate_address(address)
    colocation = lp.MultiThreadingColocation([node])
    colocation.add_node(lp.PyNode(call))
    with no_leaks():
        run = lp.launch(program_with(colocation), "test_mt", serialize_py_nodes=False)
        gate.wait_entered()
        with courier.Client(address.resolve()) as client:
            assert client.ping() == "pong", "the script calls it, too"
        gate.release()
        assert run.wait()


def program_with(*nodes: Any) -> Any:
    program = lp.Program("test")
    for node in nodes:
        program.add_node(node, label="together")
    return program


@pytest.mark.parametrize("depth", [1, 2])
def test_a_stop_inside_colocations(kind: str, depth: int) -> None:
    node = lp.MultiThreadingColocation([lp.PyNode(wait_for_stop), lp.PyNode(lp.stop)])
    if depth == 2:
        node = lp.MultiThreadingColocation([node, lp.PyNode(wait_for_stop)])
    with no_leaks():
        assert lp.launch(program_with(node), kind).wait()


@pytest.mark.parametrize(
    ("functions", "options", "error"),
    [
        ([wait_for_stop, fail], {}, RuntimeError),
        ([wait_for_stop, int], {"return_on_first_completed": True}, None),
        ([int, int], {}, None),
    ],
)
def test_a_colocation_run_by_a_worker(
    functions: list[Callable[[], Any]], options: dict[str, Any], error: type[Exception] | None
) -> None:
    from launchpad.launch.worker_manager import WorkerManager

    with no_leaks():
        manager = WorkerManager(register_in_thread=True)
        try:
            colocation = lp.MultiThreadingColocation([lp.PyNode(function) for function in functions], **options)
            if error is None:
                colocation.run()
            else:
                with pytest.raises(error, match="the error of the node"):
                    colocation.run()
        finally:
            manager.cleanup_after_test(None)


def write_pid(directory: Path) -> None:
    (directory / str(os.getpid())).touch()


def fail_once(path: Path) -> None:
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return
    fail()


@pytest.mark.parametrize("count", [1, 2])
def test_processes_in_a_node(tmp_path: Path, count: int) -> None:
    nodes = [lp.PyNode(write_pid, tmp_path) for _ in range(count)]
    with no_leaks():
        assert lp.launch(program_with(lp.MultiProcessingColocation(nodes)), "test_mt").wait()
    assert len({int(path.name) for path in tmp_path.glob("[0-9]*")} - {os.getpid()}) == count


@pytest.mark.parametrize("retries", [0, 1])
def test_processes_in_a_node_are_tried_again(tmp_path: Path, retries: int) -> None:
    node = lp.MultiProcessingColocation([lp.PyNode(fail_once, tmp_path / "once")], num_retries_on_failure=retries)
    with no_leaks():
        run = lp.launch(program_with(node), "test_mt")
        if retries:
            assert run.wait()
        else:
            with pytest.raises(RuntimeError, match="the error of the node"):
                run.wait()


# --- launches -------------------------------------------------------------------------------------------------------


def test_one_node(launch: Callable[..., Any], tmp_path: Path) -> None:
    launch(program_of(main=functools.partial(touch, tmp_path / "ran"))).wait()
    assert (tmp_path / "ran").exists()


def test_of_several_programs_the_first_is_launched(
    launch: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As sweeps do it that were written for a cluster."""
    programs = [program_of(main=functools.partial(touch, tmp_path / name)) for name in ("first", "second")]
    launch(programs).wait()
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["first"]
    assert "of 2 programs only the first is launched" in caplog.text


def test_the_error_of_a_node_is_raised(launch: Callable[..., Any]) -> None:
    with pytest.raises(RuntimeError, match="the error of the node"):
        launch(program_of(main=fail)).wait()


def test_a_stopper(kind: str, launch: Callable[..., Any]) -> None:
    stopper = lp.make_program_stopper(lp.LaunchType(kind))
    assert launch(program_of(waits=wait_for_stop, stops=stopper)).wait()


def test_the_clean_up_of_the_test_ends_what_is_blocked(launch: Callable[..., Any]) -> None:
    launch(program_of(waits=wait_for_stop))


def test_wait_for_some_groups(launch: Callable[..., Any]) -> None:
    run = launch(program_of(main=int, daemon=wait_for_stop))
    assert run.wait(["main"])
    assert {label: len(nodes) for label, nodes in run._active_workers.items()} == {"main": 0, "daemon": 1}
    run.stop_and_wait()
    assert run.exit_codes == {"main/0": 0, "daemon/0": 0}


def test_wait_for_some_groups_raises_the_error_of_another(launch: Callable[..., Any]) -> None:
    with pytest.raises(RuntimeError, match="the error of the node"):
        launch(program_of(main=wait_for_stop, daemon=fail)).wait(["main"])


def test_groups_of_workers(kind: str) -> None:
    program = lp.Program("test")
    for label, count in (("foo", 1), ("bar", 2)):
        with program.group(label):
            for _ in range(count):
                program.add_node(lp.PyNode(wait_for_stop))
    with no_leaks():
        run = lp.launch(program, kind)
        workers = run._active_workers
        assert {label: len(nodes) for label, nodes in workers.items()} == {"foo": 1, "bar": 2}
        assert workers["foo"][0].poll() is None
        run.stop_and_wait()
        assert workers["foo"][0].wait(TIMEOUT_S) == 0
        run.join()
        run.cleanup_after_test(None)


def test_a_node_that_cannot_travel(kind: str) -> None:
    event = threading.Event()
    with pytest.raises(RuntimeError, match=r"(?s)The nodes associated to the label 'bad'.*bad/0"):
        lp.launch(program_of(bad=event.set), kind, serialize_py_nodes=True)
    assert lp.launch(program_of(bad=event.set), "test_mt", serialize_py_nodes=False).wait()
    assert event.wait(TIMEOUT_S)


def test_the_check_of_nodes_alone() -> None:
    serialization.check_nodes_are_serializable("good", [lp.PyNode(wait_for_stop)])
    with pytest.raises(RuntimeError, match="The nodes associated to the label 'bad'"):
        serialization.check_nodes_are_serializable("bad", [lp.PyNode(threading.Event().set)])


def test_functions_with_a_cache_travel(tmp_path: Path) -> None:
    serialization.enable_lru_cache_pickling_once()

    @functools.lru_cache(maxsize=3)
    def cached() -> list[int]:
        return []

    one, other = pickle.loads(cloudpickle.dumps([cached, functools.partial(cached)]))
    one().append(1)
    assert other() == [1]
    assert one.cache_parameters()["maxsize"] == 3
    assert cached() == []
    serialization.serialize_functions(str(tmp_path / "functions"), "them", [cached])
    assert pickle.loads((tmp_path / "functions").read_bytes())[0]() == []
    with pytest.raises(RuntimeError, match="them is not serializable"):
        serialization.serialize_functions(str(tmp_path / "functions"), "them", [threading.Event().set])


class Producer:
    def work(self, context: int) -> int:
        return context


class Consumer:
    def __init__(self, producers: list[Any]) -> None:
        self._producers = producers

    def step(self) -> int:
        return sum(future.result(TIMEOUT_S) for future in [p.futures.work(i) for i, p in enumerate(self._producers)])

    def run(self) -> None:
        while True:
            self.step()


def test_a_program_driven_by_its_test(kind: str) -> None:
    program = lp.Program("consumer_producers")
    with program.group("producer"):
        producers = [program.add_node(lp.CourierNode(Producer)) for _ in range(3)]
    node = lp.CourierNode(Consumer, producers=producers)
    program.add_node(node, label="consumer")
    (consumer_node,) = program.groups["consumer"]
    consumer_node.disable_run()
    case = unittest.TestCase()
    with no_leaks():
        lp.launch(program, launch_type=kind, test_case=case)
        with consumer_node.create_handle().dereference() as consumer:
            assert [consumer.step() for _ in range(5)] == [3] * 5
        case.doCleanups()


@pytest.mark.parametrize(
    "mapping", [{"worker": PythonProcess(env={"WHERE": "there", "NUMBER": 1})}, {"worker": PythonProcess()}]
)
def test_process_options(mapping: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", "here")
    write = functools.partial(write_variable, tmp_path / "where")
    with no_leaks():
        assert lp.launch(program_of(worker=write), lp.LaunchType.TEST_MULTI_PROCESSING, None, mapping).wait()
    assert mapping["worker"].env == ({"WHERE": "there", "NUMBER": "1"} if mapping["worker"].env else {})
    assert (tmp_path / "where").read_text() == mapping["worker"].env.get("WHERE", "here")


def write_variable(path: Path) -> None:
    path.write_text(os.environ["WHERE"])


def test_containers_in_the_cloud_are_refused_when_launched() -> None:
    from launchpad.launch.xm_docker import launch as xm_docker
    from launchpad.nodes.python.xm_docker import to_docker_executables

    config = lp.DockerConfig("code", "requirements.txt", hw_requirements=None, python_path=["x"])
    with no_leaks():
        assert lp.launch(program_of(main=int), "test_mt", xm_resources={"main": config}).wait()
    for refused in ("vertex_ai", lp.LaunchType.LOCAL_DOCKER):
        with pytest.raises(RuntimeError, match=r"is not supported.*launch as local_mp inside"):
            lp.launch(program_of(main=int), refused, xm_resources={"main": config})
    with pytest.raises(RuntimeError, match="vertex_ai is not supported"):
        xm_docker.launch(program_of(main=int))
    with pytest.raises(RuntimeError, match="No container images are made here"):
        to_docker_executables([], "main", config)


def test_the_context_of_a_launch(kind: str) -> None:
    with no_leaks():
        assert lp.launch(program_of(main=check_context), kind).wait()
    with pytest.raises(RuntimeError):
        lp.context.get_context()


def check_context() -> None:
    context = lp.context.get_context()
    assert lp.is_local_launch_or_test(context.launch_type)
    assert not lp.is_local_launch(context.launch_type)
    context.program_stopper()
    assert lp.stop_event().wait(TIMEOUT_S)


# --- signals and commands -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sigint", "sigquit"])
def test_a_graceful_exit(name: str) -> None:
    number = getattr(signal, name.upper())
    before = signal.getsignal(number)
    try:
        getattr(signal_handling, f"exit_gracefully_on_{name}")()
        with mock.patch.object(sys, "exit") as leave:
            for _ in range(100):
                signal.raise_signal(number)
        leave.assert_called_once_with(0)
    finally:
        signal.signal(number, before)


def test_the_lines_of_commands_have_their_name(capfd: pytest.CaptureFixture[str]) -> None:
    code = "print('one'); print('two')"
    command = run_locally.CommandToLaunch([sys.executable, "-c", code], {}, "title", "0")
    with no_leaks():
        run_locally.run_commands_locally([command], terminal="current_terminal").wait()
    lines = [line for line in capfd.readouterr().out.splitlines() if line.endswith(("one", "two"))]
    assert [line.startswith("[title_0/0] ") for line in lines] == [True, True]
    with pytest.raises(ValueError, match="cannot be executed"):
        run_locally.run_commands_locally([run_locally.CommandToLaunch(["/nowhere"], {}, "title", "0")])
