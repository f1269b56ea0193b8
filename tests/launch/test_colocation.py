"""Colocation under real launches: threads in a node, processes in a node."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import topology as lp
from topology.errors import NodeFailed
from topology.testing import no_leaks

KINDS = ["test_mt", "test_mp"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def launch_one(node: Any, kind: str, **options: Any) -> lp.Run:
    program = lp.Program("test")
    program.add_node(node, label="together")
    return lp.launch(program, kind, **options)


def write_pid(directory: Path) -> None:
    context = lp.get_context()
    (directory / f"{context.label}-{context.index}-{os.getpid()}").touch()


def fail() -> None:
    raise RuntimeError("the error of the node")


def fail_first(directory: Path) -> None:
    try:
        (directory / "failed-once").touch(exist_ok=False)
    except FileExistsError:
        return
    fail()


def wait_for_stop() -> None:
    assert lp.wait_for_stop()


class Server:
    def ping(self) -> int:
        return os.getpid()


def ping(server: Any, directory: Path) -> None:
    (directory / f"pinged-{server.ping()}").touch()
    lp.stop()


def test_an_address_allocated_by_hand_resolves_in_a_sibling() -> None:
    address = lp.Address("by-hand")
    resolved: list[str] = []
    lock = threading.Lock()  # cannot travel, and need not

    def serve() -> None:
        with lock:
            resolved.append(address.resolve())

    nodes = [lp.PyNode(serve), lp.PyNode(serve)]
    nodes[0].allocate_address(address)
    run = launch_one(lp.MultiThreadingColocation(nodes), "test_mt", serialize_py_nodes=False)
    assert run.wait(20)
    assert resolved[0] == resolved[1]
    assert lp.get_port_from_address(resolved[0]) > 0


def test_a_stop_in_one_thread_releases_another(kind: str) -> None:
    node = lp.MultiThreadingColocation([lp.PyNode(wait_for_stop), lp.PyNode(lp.stop)])
    with no_leaks():
        assert launch_one(node, kind).wait(20)


def test_nested_threads(kind: str) -> None:
    inner = lp.MultiThreadingColocation([lp.PyNode(wait_for_stop), lp.PyNode(lp.stop)])
    with no_leaks():
        assert launch_one(lp.MultiThreadingColocation([inner, lp.PyNode(wait_for_stop)]), kind).wait(20)


def test_a_failure_in_one_thread_is_the_failure_of_the_node(kind: str) -> None:
    node = lp.MultiThreadingColocation([lp.PyNode(wait_for_stop), lp.PyNode(fail)])
    with no_leaks(), pytest.raises(RuntimeError, match="the error of the node"):
        launch_one(node, kind, termination_notice_s=2.0).wait(20)


def test_return_on_first_completed(kind: str) -> None:
    node = lp.MultiThreadingColocation([lp.PyNode(wait_for_stop), lp.PyNode(int)], return_on_first_completed=True)
    assert launch_one(node, kind).wait(20)


@pytest.mark.parametrize("count", [1, 2])
def test_processes_inside_a_node(kind: str, count: int, tmp_path: Path) -> None:
    nodes = [lp.PyNode(write_pid, tmp_path) for _ in range(count)]
    with no_leaks():
        assert launch_one(lp.MultiProcessingColocation(nodes), kind).wait(20)
    names = sorted(path.name.rpartition("-") for path in tmp_path.iterdir())
    assert [name for name, _, _ in names] == [f"together.0-{i}" for i in range(count)]
    pids = {int(pid) for _, _, pid in names}
    assert len(pids) == count
    assert os.getpid() not in pids


def test_processes_inside_a_node_serve_others(kind: str, tmp_path: Path) -> None:
    server, other = lp.CourierNode(Server), lp.CourierNode(Server)
    program = lp.Program("test")
    program.add_node(lp.MultiProcessingColocation([server, other]), label="together")
    program.add_node(lp.PyNode(ping, server.create_handle(), tmp_path), label="client")
    with no_leaks():
        assert lp.launch(program, kind).wait(20)
    (path,) = tmp_path.iterdir()
    assert path.name != f"pinged-{os.getpid()}"


def test_a_retry(kind: str, tmp_path: Path) -> None:
    node = lp.MultiProcessingColocation([lp.PyNode(fail_first, tmp_path)], num_retries_on_failure=1)
    assert launch_one(node, kind).wait(20)


def test_no_retry_left(kind: str) -> None:
    node = lp.MultiProcessingColocation([lp.PyNode(fail), lp.PyNode(wait_for_stop)])
    with no_leaks(), pytest.raises(NodeFailed, match="the error of the node"):
        launch_one(node, kind, termination_notice_s=3.0).wait(20)


def test_a_stop_ends_processes_inside_a_node(kind: str) -> None:
    node = lp.MultiProcessingColocation([lp.PyNode(wait_for_stop), lp.PyNode(time.sleep, 3600)])
    with no_leaks():
        run = launch_one(node, kind)
        assert run.stop(timeout=20)
    assert run.state == "stopped"


def busy() -> None:
    while True:
        pass


def test_nodes_inside_that_never_look_at_the_stop_end_too(kind: str) -> None:
    node = lp.MultiThreadingColocation([lp.PyNode(busy), lp.PyNode(wait_for_stop)])
    with no_leaks():
        run = launch_one(node, kind, termination_notice_s=60)
        before = time.monotonic()
        assert run.stop(timeout=20)
    assert time.monotonic() - before < 10
