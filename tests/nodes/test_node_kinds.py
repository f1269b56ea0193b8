"""Node kinds as programs use them: declared, launched as threads, called through their handles."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import topology as lp
from topology import errors
from topology.nodes import courier

WITHIN_S = 20.0


class Ping:
    """Holds a partner, serves methods and `__call__`."""

    def __init__(self, pong: Any = None) -> None:
        self._pong = pong

    def ping(self) -> str:
        return "ping"

    def relay(self) -> str:
        return str(self._pong.pong())

    def __call__(self) -> str:
        return "called"

    def _private(self) -> str:
        return "private"


class Pong:
    def __init__(self, ping: Any) -> None:
        self._ping = ping

    def pong(self) -> str:
        return "pong"

    def relay(self) -> str:
        return str(self._ping.ping())


@contextmanager
def running(*nodes: Any) -> Iterator[lp.Program]:
    program = lp.Program("nodes")
    for position, node in enumerate(nodes):
        program.add_node(node, label=f"node_{position}")
    with lp.launch(program, "test_mt", serialize_py_nodes=False):
        yield program


def test_public_methods_and_call_are_served_private_ones_are_not() -> None:
    node = lp.CourierNode(Ping)
    with running(node):
        client = node.create_handle().dereference()
        assert client.ping() == "ping"
        assert client() == "called"
        assert client.futures.ping().result(WITHIN_S) == "ping"
        assert client.futures().result(WITHIN_S) == "called"
        assert set(courier.list_methods(client)) == {"ping", "relay", "__call__"}
        with pytest.raises(errors.MethodNotFound, match="method pong not found"):
            client.pong()


def test_two_nodes_hold_each_others_handles() -> None:
    ping, pong = lp.CourierNode(Ping), lp.CourierNode(Pong)
    ping.configure(pong=pong.create_handle())
    pong.configure(ping=ping.create_handle())
    with running(ping, pong):
        assert ping.create_handle().dereference().relay() == "pong"
        assert pong.create_handle().dereference().relay() == "ping"


class OwnsServer:
    """Starts its server itself, after it has bound one more method."""

    def set_courier_server(self, server: courier.Server) -> None:
        self._server = server

    def run(self) -> None:
        self._server.bind("extra", lambda: "extra")
        self._server.start()
        lp.wait_for_stop()


def test_an_object_may_own_its_server() -> None:
    node = lp.CourierNode(OwnsServer)
    with running(node):
        assert node.create_handle().dereference().extra() == "extra"


def test_client_options_of_the_node_reach_its_clients() -> None:
    release = threading.Event()

    class Slow:
        def wait(self) -> None:
            release.wait(WITHIN_S)

    node = lp.CourierNode(Slow, courier_client_kwargs={"call_timeout": 0.05})
    with running(node):
        with pytest.raises(errors.DeadlineExceeded, match="Deadline Exceeded"):
            node.create_handle().dereference().wait()
        release.set()


def test_client_options_of_a_handle() -> None:
    node = lp.CourierNode(Ping)
    handle = node.create_handle()
    handle.set_client_kwargs(call_timeout=WITHIN_S)
    with running(node):
        assert handle.dereference().ping() == "ping"


def test_a_disabled_run_is_driven_from_outside() -> None:
    class Learner:
        def __init__(self) -> None:
            self.steps = 0

        def step(self) -> int:
            self.steps += 1
            return self.steps

        def run(self) -> None:
            raise AssertionError("run was disabled")

    node = lp.CourierNode(Learner)
    node.disable_run()
    with running(node):
        client = node.create_handle().dereference()
        assert [client.step() for _ in range(5)] == [1, 2, 3, 4, 5]


def test_cacher_asks_its_source_once_whatever_the_clients() -> None:
    calls: list[str] = []

    class Source:
        def get_variables(self, name: str) -> str:
            calls.append(name)
            return name.upper()

    source = lp.CourierNode(Source)
    cacher = lp.CacherNode(source.create_handle(), refresh_interval_ms=60_000, stale_after_ms=120_000)
    with running(source, cacher):
        clients = [cacher.create_handle().dereference() for _ in range(4)]
        futures = [client.futures.get_variables("policy") for client in clients for _ in range(4)]
        assert {future.result(WITHIN_S) for future in futures} == {"POLICY"}
        assert clients[0].get_variables("critic") == "CRITIC"
        assert calls == ["policy", "critic"]


def test_cacher_refuses_methods_it_was_not_asked_to_stand_in_for() -> None:
    source = lp.CourierNode(Ping)
    cacher = lp.CacherNode(source.create_handle(), 1000, 2000, methods=["ping"])
    with running(source, cacher):
        client = cacher.create_handle().dereference()
        assert client.ping() == "ping"
        with pytest.raises(errors.MethodNotFound, match="relay"):
            client.relay()


@pytest.mark.parametrize(("refresh", "stale"), [(0, 10), (100, 50)])
def test_cacher_refuses_intervals_that_cannot_work(refresh: int, stale: int) -> None:
    with pytest.raises(ValueError, match="_s="):
        lp.CacherNode(lp.CourierNode(Ping).create_handle(), refresh, stale)


def test_cacher_takes_a_handle_only() -> None:
    with pytest.raises(TypeError, match="handle"):
        lp.CacherNode(lp.CourierNode(Ping), 1000, 2000)  # type: ignore[arg-type]


def test_replay_node_serves_its_tables() -> None:
    from topology.nodes import replay

    def tables() -> list[replay.Table]:
        return [replay.Table.queue("queue", max_size=10)]

    node = lp.ReverbNode(tables)
    with running(node):
        client = node.create_handle().dereference()
        client.insert([3.5], {"queue": 1.0})
        ((sample,),) = client.sample("queue", 1)
        assert sample.data[0] == 3.5


def test_node_refuses_what_is_not_callable() -> None:
    for kind in (lp.PyNode, lp.PyClassNode, lp.CourierNode, lp.ReverbNode):
        with pytest.raises(TypeError, match="takes a"):
            kind(3)


@pytest.mark.parametrize("kind", ["test_mt", "test_mp"])
def test_a_script_that_calls_a_node_that_failed_hears_of_the_failure(kind: str) -> None:
    program = lp.Program("broken")
    node = lp.CourierNode(Broken)
    program.add_node(node, label="broken")
    with pytest.raises((ValueError, errors.NodeFailed), match="cannot be made"), lp.launch(program, kind):
        node.create_handle().dereference().anything()


class Broken:
    def __init__(self) -> None:
        raise ValueError("this object cannot be made")
