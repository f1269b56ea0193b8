"""Names, parameters and values of Launchpad and Courier as programs spell them, and what users report of calls."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import pickle
import sys
import unittest
from collections.abc import Callable, Iterator
from concurrent import futures
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import topology
from topology.compat import provided
from topology.testing import Gate, no_leaks

with provided():
    import courier
    import launchpad as lp
    from absl import flags
    from launchpad.launch import worker_manager
    from pybind11_abseil.status import StatusNotOk

pytestmark = pytest.mark.usefixtures("provided")

TIMEOUT_S = 20


def program_of(**functions: Callable[[], Any]) -> Any:
    program = lp.Program("test")
    for label, function in functions.items():
        program.add_node(lp.PyNode(function), label=label)
    return program


# --- parameters by their names --------------------------------------------------------------------------------------


def test_what_a_server_binds_by_name() -> None:
    with courier.Server(name="here", port=None, thread_pool_size=2) as server:
        server.Bind(method_name="one", py_func=lambda: 1)
        server.BindHandler(method_name="two", handler=lambda: 2)
        server.SetIsHealthy(is_healthy=False)
        with courier.Client(server_address=server.address, compress=True, call_timeout=TIMEOUT_S) as client:
            assert (client.one(), client.two()) == (1, 2)
            server.Unbind(method_name="one")
            with pytest.raises(StatusNotOk, match="method one not found"):
                client.one()


def test_addresses_have_a_name() -> None:
    address = lp.Address(name="learner")
    assert address.name == "learner"
    assert lp.Address("learner").name == "learner"
    assert lp.Address().name is None
    assert pickle.loads(pickle.dumps(address)).name == "learner"
    address.bind(address_builder=lp.SimpleLocalAddressBuilder())
    assert lp.get_port_from_address(address=address.resolve()) > 0


def stopped_in_time() -> None:
    assert not lp.wait_for_stop(timeout_secs=0)
    assert not worker_manager.wait_for_stop(timeout_secs=timedelta(0))
    lp.stop()
    assert lp.wait_for_stop(timeout_secs=TIMEOUT_S)


def test_how_long_to_wait_for_the_stop() -> None:
    with no_leaks():
        assert lp.launch(program_of(waits=stopped_in_time), "test_mt").wait()


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("local_multi_threading", (False,)),
        ("local_multi_processing", (None, "current_terminal")),
        ("test_multi_threading", (unittest.TestCase(), True)),
        ("test_multi_processing", (unittest.TestCase(), {"main": lp.PythonProcess(env={"A": "b"})})),
    ],
)
def test_launch_modules_take_their_arguments_in_order(kind: str, arguments: tuple[Any, ...]) -> None:
    module = importlib.import_module(f"launchpad.launch.{kind}.launch")
    with no_leaks():
        run = module.launch(program_of(main=lp.stop), *arguments)
        assert run.wait(timeout=TIMEOUT_S)
    if isinstance(arguments[0], unittest.TestCase):
        arguments[0].doCleanups()


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("launchpad.flags", "FLAGS LAUNCH_TYPE"),
        ("launchpad.nodes.base", "Handle HandleType Node"),
        ("launchpad.nodes.courier.node", "CourierNode WorkerType"),
        ("launchpad.nodes.multi_processing_colocation.node", "HandleType MultiProcessingColocation"),
        ("launchpad.nodes.multi_threading_colocation.node", "HandleType MultiThreadingColocation"),
        ("launchpad.nodes.python.local_multi_processing", "PythonProcess StrOrFloat"),
        ("launchpad.nodes.python.node", "HandleType PyClassNode PyNode ReturnType T WorkerType"),
        ("launchpad.nodes.reverb.node", "CheckpointerFactory PriorityTablesFactory ReverbNode"),
        ("launchpad.program", "HandleType Program make_program"),
    ],
)
def test_names_for_annotations(module: str, names: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in names.split() if not hasattr(found, name)] == []


def test_a_handle_that_is_called_says_what_to_do() -> None:
    handle = lp.CourierNode(Echo).create_handle()
    with pytest.raises(AttributeError, match=r"CourierHandle.*dereference"):
        handle.same(1)


# --- flags ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def unparsed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process in which nobody has read the flags."""
    was_parsed = flags.FLAGS.is_parsed()
    flags.FLAGS.unparse_flags()
    saved = {name: flags.FLAGS[name].value for name in flags.FLAGS}
    yield
    for name, value in saved.items():
        flags.FLAGS[name].value = value
    (flags.FLAGS.mark_as_parsed if was_parsed else flags.FLAGS.unparse_flags)()
    del monkeypatch


@pytest.mark.parametrize(
    ("line", "kind", "is_parsed"),
    [
        (("--lp_launch_type=test_mp", "--nobodys", "--lp_termination_notice_secs=7"), "test_mp", True),
        ((), "local_mt", True),
        (("-v",), "local_mt", False),  # absl's flag of that name wants a number
    ],
)
@pytest.mark.usefixtures("unparsed")
def test_a_launch_reads_flags_that_nobody_has_read(
    line: tuple[str, ...], kind: str, is_parsed: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from absl import logging as _  # noqa: F401 - defines -v

    monkeypatch.setattr(sys, "argv", ["script.py", *line])
    with no_leaks():
        run = lp.launch(program_of(main=int))
        run.wait()
    assert run.report().launch_type == kind
    assert flags.FLAGS.is_parsed() == is_parsed
    assert ("cannot be read as flags" in caplog.text) != is_parsed


def test_a_program_may_define_the_launch_type_with_a_default_of_its_own() -> None:
    before = flags.FLAGS["lp_launch_type"]
    before.unparse()  # a value from the command line would stay
    try:
        flags.DEFINE_enum("lp_launch_type", "local_mp", [kind.value for kind in lp.LaunchType], "How to launch.")
        assert flags.FLAGS["lp_launch_type"].default == "local_mp"
    finally:
        flags.FLAGS["lp_launch_type"] = before


# --- calls ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Weights:
    """What somebody sends."""

    values: np.ndarray
    step: int = 0


class Echo:
    """Gives back what it is given."""

    def same(self, value: Any) -> Any:
        return value


@pytest.fixture
def server() -> Iterator[Any]:
    with courier.Server("report") as server:
        server.Bind("same", Echo().same)
        server.Bind("fail", lambda: 1 / 0)
        yield server


@pytest.fixture
def client(server: Any) -> Iterator[Any]:
    with courier.Client(server.address, call_timeout=TIMEOUT_S) as client:
        yield client


def test_dataclasses_travel_both_ways(client: Any) -> None:
    for found in (client.same(Weights(np.ones(3), 5)), client.futures.same(Weights(np.ones(3), 5)).result(TIMEOUT_S)):
        assert type(found) is Weights
        assert (found.values.tolist(), found.step) == ([1, 1, 1], 5)


def test_payloads_above_the_limit_of_grpc(client: Any) -> None:
    """4 MB there, by default."""
    big = np.arange(2_000_000)
    assert client.same(big).nbytes == 16_000_000
    assert client.futures.same([big, b"x" * 5_000_000]).result(TIMEOUT_S)[0][-1] == 1_999_999


def test_calls_of_many_clients_do_not_mix(server: Any) -> None:
    def call(number: int) -> bool:
        with courier.Client(server.address, call_timeout=TIMEOUT_S) as client:
            several = [client.futures.same((number, i)) for i in range(20)]
            blocking = [client.same((number, -i)) for i in range(20)]
            results = [future.result(TIMEOUT_S) for future in several]
        return results == [(number, i) for i in range(20)] and blocking == [(number, -i) for i in range(20)]

    with futures.ThreadPoolExecutor(16) as pool:
        assert all(pool.map(call, range(16)))


def test_calls_beyond_the_pool_of_threads_wait_for_their_turn() -> None:
    gate = Gate()
    with courier.Server("small", thread_pool_size=2) as server, courier.Client(server.address) as client:
        server.Bind("wait", gate)
        waiting = [client.futures.wait() for _ in range(10)]
        gate.wait_entered(2)
        gate.release()
        assert [future.result(TIMEOUT_S) for future in waiting] == [None] * 10


def test_a_failure_that_nobody_looks_at_is_logged_once(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    """As that of an actor that fetches its weights in the background."""
    future = client.futures.fail()
    assert client.same(1) == 1
    futures.wait([future], TIMEOUT_S)
    with caplog.at_level(logging.WARNING):
        del future
    assert caplog.text.count("nobody asked for its result") == 1


# --- what an installation needs -------------------------------------------------------------------------------------


def test_the_distribution_is_for_any_python_from_3_11_on() -> None:
    """One wheel without compiled parts; upper bounds only with a reason, and no nightly builds."""
    about = metadata.metadata("rl-topology")
    assert about["Requires-Python"] == ">=3.11"
    root = Path(topology.__file__).parents[1]
    compiled = [path for folder in ("topology", "launch") for path in (root / folder).rglob("*.so")]
    assert compiled == []
    for requirement in metadata.requires("rl-topology") or ():
        wanted = requirement.partition(";")[0]
        assert "<" not in wanted or wanted.startswith(("gym", "mujoco")), requirement
        assert "==" not in wanted, requirement
        assert not any(word in wanted for word in ("nightly", "dev", "rc")), requirement
