"""Kinds of nodes and handles that programs derive from Launchpad's, and what programs reach for inside nodes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from topology.compat import provided
from topology.testing import no_leaks

with provided():
    import courier
    import launchpad as lp
    import reverb
    from launchpad import address as lp_address
    from launchpad.launch import worker_manager
    from launchpad.launch.test_multi_threading import address_builder
    from launchpad.nodes import base
    from launchpad.nodes.courier import courier_utils
    from launchpad.nodes.python import node as python
    from pybind11_abseil.status import StatusNotOk

pytestmark = pytest.mark.usefixtures("provided")

TIMEOUT_S = 20


@pytest.fixture(params=["test_mt", "test_mp"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Adds:
    def __init__(self, start: int = 0) -> None:
        self.start = start

    def add(self, number: int) -> int:
        return self.start + number


class OwnCourierNode(lp.CourierNode):  # type: ignore[misc]  # as its users do
    """Serves on the port of its address, by itself."""

    def run(self) -> None:
        port = lp_address.get_port_from_address(self._address.resolve())
        self._server = courier_utils.make_courier_server(self._construct_instance(), port=port, **self._courier_kwargs)
        self._server.Start()
        lp.wait_for_stop()
        self._server.Stop()
        self._server.Join()


class OwnReverbNode(lp.ReverbNode):  # type: ignore[misc]  # as its users do
    """Serves tables on the port of its address, by itself."""

    def run(self) -> None:
        checkpointer = None if self._checkpoint_ctor is None else self._checkpoint_ctor()
        port = lp.get_port_from_address(self._address.resolve())
        self._server = reverb.Server(tables=self._priority_tables_fn(), port=port, checkpointer=checkpointer)
        assert self._checkpoint_time_delta_minutes is None
        worker_manager.wait_for_stop()
        self._server.stop()


class OwnHandle(base.Handle):  # type: ignore[misc]  # any of the classes that are provided
    """Gives a client of a kind of its own; has what the original's handles must have."""

    def __init__(self, address: Any, name: str) -> None:
        self._address = address
        self._name = name

    def dereference(self) -> Any:
        return self._name, courier.Client(self._address.resolve(), call_timeout=TIMEOUT_S)


class OwnNode(python.PyNode):  # type: ignore[misc]  # any of the classes that are provided
    """Runs a method of its own, at an address of its own."""

    def __init__(self, name: str) -> None:
        super().__init__(self.run)
        self._name = name
        self._address = lp_address.Address("own")
        self.allocate_address(self._address)

    def create_handle(self) -> OwnHandle:
        return self._track_handle(OwnHandle(self._address, self._name))  # type: ignore[no-any-return]

    def run(self) -> None:
        server = courier.Server(self._name, port=lp_address.get_port_from_address(self._address.resolve()))
        server.Bind("name", lambda: self._name)
        server.Start()
        worker_manager.wait_for_stop()
        server.Stop()

    @staticmethod
    def to_executables(nodes: Any, label: str, launch_context: Any) -> Any:
        return python.PyNode.to_executables(nodes, label, launch_context)


def tables() -> list[Any]:
    return [reverb.Table.queue("queue", max_size=10)]


def use(adds: Any, replay: Any, own: Any) -> None:
    assert adds.add(2) == 3
    replay.insert([1.0], {"queue": 1.0})
    assert replay.server_info()["queue"].current_size == 1
    name, client = own
    assert client.name() == name == "mine"


def test_nodes_and_handles_of_a_programs_own(kind: str) -> None:
    program = lp.Program("own")
    adds = program.add_node(OwnCourierNode(Adds, 1, courier_kwargs={"thread_pool_size": 2}), label="adds")
    replay = program.add_node(OwnReverbNode(tables), label="replay")
    own = program.add_node(OwnNode("mine"), label="own")
    assert isinstance(own, OwnHandle)
    program.add_node(lp.PyNode(use, adds, replay, own), label="use")
    edges = {(edge.caller, edge.target) for edge in program.graph().edges}
    assert edges == {("use/0", "adds/0"), ("use/0", "replay/0"), ("use/0", "own/0")}
    with no_leaks():
        run = lp.launch(program, kind)
        assert run.wait(["use"])
        run.stop()
        assert set(run.exit_codes.values()) == {0}


class OnlyCommands(base.Node):  # type: ignore[misc]  # any of the classes that are provided
    """A node of the original's that only says how it becomes commands."""

    def create_handle(self) -> None:
        return None

    @staticmethod
    def to_executables(nodes: Any, label: str, launch_context: Any) -> Any:
        raise AssertionError("nobody calls it")


def test_a_node_that_cannot_be_run_says_why() -> None:
    program = lp.Program("commands")
    program.add_node(OnlyCommands(), label="commands")
    with no_leaks(), pytest.raises(ValueError, match=r"OnlyCommands has no run\(\)"):
        lp.launch(program, "test_mt").wait()


def test_nodes_are_as_the_originals(tmp_path: Path) -> None:
    nodes = [
        lp.PyNode(tmp_path.joinpath("ran").touch),
        lp.PyClassNode(Adds),
        lp.CourierNode(Adds),
        lp.ReverbNode(tables, checkpoint_time_delta_minutes=3),
        lp.CacherNode(lp.CourierNode(Adds).create_handle(), 10, 20),
        lp.MultiThreadingColocation([lp.PyNode(int)]),
        lp.MultiProcessingColocation([lp.PyNode(int)]),
    ]
    assert all(isinstance(node, lp.PyNode) for node in nodes)
    assert nodes[3]._checkpoint_time_delta_minutes == 3
    context = lp.context.LaunchContext()
    context.initialize(lp.LaunchType.TEST_MULTI_THREADING, None)
    for function in lp.PyNode.to_executables(nodes[:2], "label", context):
        function()
    assert (tmp_path / "ran").exists()
    assert lp.PyNode.default_launch_config(lp.LaunchType.TEST_MULTI_THREADING) is None
    context.initialize(lp.LaunchType.LOCAL_MULTI_PROCESSING, None)
    assert lp.PyNode.default_launch_config(context.launch_type).env == {}
    with pytest.raises(RuntimeError, match=r"here nodes do not become commands.*lp.launch\(program\)"):
        nodes[0].to_executables(nodes[:1], "label", context)
    nodes[0].bind_addresses()
    with pytest.raises(RuntimeError, match="has no launch configuration for vertex_ai"):
        lp.CourierNode.default_launch_config(lp.LaunchType.VERTEX_AI)


# --- the objects inside ---------------------------------------------------------------------------------------------


class Counts:
    made = 0

    def __init__(self) -> None:
        Counts.made += 1

    def run(self) -> None:
        raise AssertionError("it is not to be run")


@pytest.mark.parametrize("before", [True, False])
def test_a_test_drives_the_object_that_a_node_has_made(before: bool) -> None:
    Counts.made = 0
    program = lp.Program("driven")
    node = lp.PyClassNode(Counts)
    program.add_node(node, label="driven")
    node.disable_run()
    instance = node._construct_instance() if before else None
    with no_leaks():
        lp.launch(program, "test_mt").wait()
    assert isinstance(node._construct_instance(), Counts)
    assert instance is None or node._construct_instance() is instance
    assert Counts.made == 1


def test_each_run_makes_its_own_object() -> None:
    node = lp.PyClassNode(Adds)
    first, second = node._call(), node._call()
    assert first is not second is node._construct_instance()


def test_an_object_without_run_ends_its_node(kind: str) -> None:
    program = lp.Program("ends")
    program.add_node(lp.PyClassNode(Adds), label="ends")
    with no_leaks():
        run = lp.launch(program, kind)
        assert run.wait()
        assert run.exit_codes == {"ends/0": 0}


@pytest.fixture
def served() -> Iterator[tuple[Any, Any]]:
    """A courier node and a replay node that run in threads of this test."""
    nodes = lp.CourierNode(Adds, 5), lp.ReverbNode(tables)
    with no_leaks():
        stop = address_builder.bind_addresses(nodes)
        threads = [threading.Thread(target=node.run, daemon=True) for node in nodes]
        for thread in threads:
            thread.start()
        yield nodes
        stop.set()
        for thread in threads:
            thread.join(TIMEOUT_S)


def test_the_servers_inside_nodes(served: tuple[Any, Any]) -> None:
    courier_node, replay_node = served
    assert lp.CourierNode(Adds)._server is lp.ReverbNode(tables)._server is None
    with courier_node.create_handle().dereference() as client:
        assert client.add(1) == 6
    assert courier_node._construct_instance().start == 5
    courier_node._server.Bind("twice", lambda number: 2 * number)
    with courier_node.create_handle().dereference() as client:
        assert client.twice(4) == 8
    with replay_node.create_handle().dereference() as client:
        assert list(client.server_info()) == ["queue"]
    assert replay_node._server.port == lp.get_port_from_address(replay_node.reverb_address.resolve())


# --- colocation -----------------------------------------------------------------------------------------------------


def check(client: Any) -> None:
    assert client.add(1) == 8


def test_nodes_added_to_a_colocation_give_their_handles(kind: str) -> None:
    program = lp.Program("together")
    colocation = lp.MultiThreadingColocation([])
    handle = colocation.add_node(lp.CourierNode(Adds, start=7))
    with pytest.raises(ValueError, match="only works with PyNodes"):
        colocation.add_node(Adds())
    program.add_node(colocation, label="together")
    program.add_node(lp.PyNode(check, handle), label="checks")
    with no_leaks():
        run = lp.launch(program, kind)
        assert run.wait(["checks"])
        run.stop()


@pytest.mark.parametrize("name", ["MultiThreadingColocation", "MultiProcessingColocation"])
def test_a_colocation_of_nothing(name: str) -> None:
    program = lp.Program("nothing")
    program.add_node(getattr(lp, name)([]), label="nothing")
    with no_leaks(), pytest.raises(ValueError, match=f"{name} requires at least one node"):
        lp.launch(program, "test_mt").wait()


# --- what is not provided -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("launchpad.nodes.python.process_entry", r"lp.PythonProcess\(args="),
        ("launchpad.launch.run_locally.launch_local_tmux", r"run_commands_locally\(commands, terminal=\)"),
        ("launchpad.launch.local_docker.launch", "launch it inside"),
        ("courier.serialization.pybind", "by pickle"),
        ("launchpad.nowhere", "docs/migration.md"),
    ],
)
def test_a_module_that_is_not_provided(name: str, instead: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=rf"{name.rpartition('.')[0]}.* is not among the modules.*{instead}"):
        __import__(name)


def test_a_name_that_is_not_provided() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'Controller' among those.*lp.launch\(program\)"):
        _ = lp.Controller
    with pytest.raises(AttributeError, match=r"no attribute 'Router' among those.*docs/migration/launchpad.md"):
        _ = courier.Router
    assert not hasattr(lp, "__nothing__")
    with courier.Server() as server, pytest.raises(StatusNotOk, match=r"lp\.CacherNode"):
        server.BindCacher("method", None)
