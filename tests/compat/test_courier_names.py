"""What the original courier's own tests check of client and server, through its names."""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import numpy as np
import pytest

from topology.compat import provided
from topology.testing import Gate

with provided():
    import courier
    import launchpad as lp
    from courier.handlers.python import pybind
    from courier.python import client as client_lib
    from courier.python import py_server
    from launchpad.nodes.courier import courier_utils
    from pybind11_abseil.status import StatusCode, StatusNotOk

pytestmark = pytest.mark.usefixtures("provided")

UNREACHABLE = "localhost:1"
STYLES = ["sync", "async"]


class Served:
    """Methods of a class, and what a test waits with."""

    def __init__(self) -> None:
        self.gate = Gate()

    def plain(self) -> int:
        return 1000

    def add(self, a: int, b: int = 2) -> int:
        return a + b

    def same(self, value: Any) -> Any:
        return value


@pytest.fixture
def served() -> Served:
    return Served()


@pytest.fixture
def server(served: Served) -> Iterator[Any]:
    server = py_server.Server("here", thread_pool_size=16)
    for name in ("plain", "add", "same"):
        server.Bind(name, getattr(served, name))
    server.Bind("lambda_add", lambda a, b: a + b)
    server.Bind("blocked", served.gate)
    server.Bind("fail", lambda kind: (_ for _ in ()).throw(kind("the text of the error")))
    yield server
    served.gate.release()
    server.Stop()


@pytest.fixture
def client(server: Any) -> Iterator[Any]:
    server.Start()
    with client_lib.Client(server.address) as client:
        yield client


def call(client: Any, style: str, name: str, *args: Any) -> Any:
    return getattr(client.futures, name)(*args).result(20) if style == "async" else getattr(client, name)(*args)


def test_calls(client: Any) -> None:
    assert client.lambda_add(12, 5) == 17
    assert client.plain() == 1000
    assert client.add(12) == 14
    assert client.add(a=12, b=1) == 13
    assert client.same(b"1") == b"1"
    assert client.same("1") == "1"
    assert client.futures.lambda_add(12, 5).result(20) == 17


def test_a_method_bound_again_and_unbound(server: Any, client: Any) -> None:
    server.Bind("rebind", lambda: 1)
    assert client.rebind() == 1
    server.Bind("rebind", lambda: 2)
    assert client.rebind() == 2
    server.Unbind("rebind")
    with pytest.raises(StatusNotOk, match="method rebind not found"):
        client.rebind()
    server.Bind("rebind", lambda: 3)
    assert client.rebind() == 3


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (ValueError, StatusCode.INVALID_ARGUMENT),
        (KeyError, StatusCode.NOT_FOUND),
        (NotImplementedError, StatusCode.UNIMPLEMENTED),
        (Exception, StatusCode.UNKNOWN),
        (ZeroDivisionError, StatusCode.UNKNOWN),
        (OSError, StatusCode.UNKNOWN),
    ],
)
def test_the_error_of_a_handler(client: Any, style: str, kind: type[Exception], code: Any) -> None:
    with pytest.raises(StatusNotOk, match="the text of the error") as caught:
        call(client, style, "fail", kind)
    error: Any = caught.value
    assert isinstance(error, kind), "it still is what it was"
    assert error.code == error.status.code() == code
    assert str(error.code) == f"StatusCode.{code.name}"
    assert kind.__name__ in error.message
    assert error.message.startswith("Python exception was raised on the server:\nTraceback")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again).__name__, str(again)) == (type(error).__name__, str(error))


class WithStatus(Exception):
    """An error with attributes of these names, as that of an HTTP library."""

    def __init__(self, text: str = "it failed") -> None:
        super().__init__(text)
        self.status, self.code, self.message = 404, "E404", "its own"


def test_the_attributes_of_a_users_error_stay(server: Any, client: Any) -> None:
    def fail() -> None:
        raise WithStatus

    server.Bind("fail_with_status", fail)
    with pytest.raises(StatusNotOk) as caught:
        client.fail_with_status()
    error: Any = caught.value
    assert (error.status, error.code, error.message) == (404, "E404", "its own")


def test_a_future_that_is_cancelled(client: Any, served: Served) -> None:
    future = client.futures.blocked()
    served.gate.wait_entered()
    assert future.cancel()
    with pytest.raises(futures.CancelledError):
        future.result(20)


def test_the_names_of_the_methods(client: Any) -> None:
    expected = {"plain", "add", "same", "lambda_add", "blocked", "fail"}
    assert set(courier.list_methods(client)) == set(client_lib.list_methods(client)) == expected


def test_addresses_are_text() -> None:
    assert courier.Client("test_name").address == "test_name"


def test_a_client_waits_until_its_server_is_up(server: Any) -> None:
    client = courier.Client(server.address)
    future = client.futures.plain()
    assert not server.has_started
    server.Start()
    assert server.has_started
    assert future.result(20) == 1000
    client.close()


@pytest.mark.parametrize("timeout", [None, 0, datetime.timedelta(0)])
def test_no_timeout(server: Any, timeout: Any) -> None:
    server.Start()
    with courier.Client(server.address, call_timeout=timeout) as client:
        assert client.plain() == 1000


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("timeout", [0.1, 1, datetime.timedelta(seconds=0.1)])
def test_a_call_over_its_timeout(server: Any, timeout: Any, style: str) -> None:
    server.Start()
    with courier.Client(server.address, False, timeout) as client:
        assert call(client, style, "plain") == 1000
        with pytest.raises(StatusNotOk, match="Deadline Exceeded") as caught:
            call(client, style, "blocked")
    assert caught.value.code == StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("style", STYLES)
def test_a_server_that_is_not_there(style: str) -> None:
    with (
        courier.Client(UNREACHABLE, call_timeout=0.2) as client,
        pytest.raises(StatusNotOk, match="Deadline Exceeded"),
    ):
        call(client, style, "plain")
    with (
        courier.Client(UNREACHABLE, wait_for_ready=False) as client,
        pytest.raises(StatusNotOk, match="failed to connect to all addresses") as caught,
    ):
        call(client, style, "plain")
    assert caught.value.code == StatusCode.UNAVAILABLE


@pytest.mark.parametrize("style", STYLES)
def test_a_method_that_is_not_there(client: Any, style: str) -> None:
    with pytest.raises(StatusNotOk, match="method missing not found") as caught:
        call(client, style, "missing")
    assert caught.value.code == StatusCode.NOT_FOUND


def test_servers_have_a_port() -> None:
    with courier.Server() as one, courier.Server("other", port=0) as other:
        assert one.address == f"localhost:{one.port}" != other.address
    served = courier_utils.make_courier_server(Served(), thread_pool_size=4)
    with served, courier.Client(served.address) as client:
        assert client.add(1) == 3


def test_clients_travel(client: Any) -> None:
    with pickle.loads(pickle.dumps(client)) as copy:
        assert copy.plain() == 1000


def test_a_batched_handler_does_not_eat_the_threads() -> None:
    """64 callers of batches of 32, at a server of 16 threads."""

    @courier_utils.batched_handler(batch_size=32, timeout=20)
    def double(values: list[int]) -> np.ndarray:
        return 2 * np.array(values)

    server = courier.Server("batches", thread_pool_size=16)
    server.Bind("double", double)
    with server, courier.Client(server.address) as client:
        waiting = [client.futures.double(i) for i in range(64)]
        assert [future.result(20) for future in waiting] == [2 * i for i in range(64)]


class Sums:
    """Adds up what all callers of all batches have given."""

    def __init__(self, batch_size: int) -> None:
        self.compute = lp.batched_handler(batch_size=batch_size)(self.compute)  # type: ignore[method-assign]
        self._sum = np.zeros(2)

    def compute(self, values: list[list[int]]) -> np.ndarray:
        self._sum = self._sum + np.sum(values, axis=0)
        return np.tile(self._sum, (len(values), 1))


def test_a_batch_of_lists() -> None:
    """Lists and texts are gathered, arrays and numbers are stacked."""
    server = courier_utils.make_courier_server(Sums(batch_size=3))

    @lp.batched_handler(batch_size=2, timeout=20, pad_batch=True)
    def mixed(number: Any, pair: Any, array: Any, *, names: Any) -> Any:
        assert (number.tolist(), names) == ([1, 1], [["a"], ["a"]])
        assert pair[0].dtype == np.float64
        assert pair[1].shape == (2, 3)
        return array, [f"{number[0]}", "b"], {"sum": array.sum(axis=1)}

    server.Bind("mixed", mixed)
    with server, courier.Client(server.address) as client:
        waiting = [client.futures.compute([i, i + 1]) for i in range(3)]
        assert [future.result(20).tolist() for future in waiting] == [[3, 6]] * 3
        waiting = [client.futures.mixed(1, (2.0, np.ones(3)), np.ones(2), names=["a"]) for _ in range(2)]
        results = [future.result(20) for future in waiting]
    assert sorted(text for _, text, _ in results) == ["1", "b"]
    assert [(array.tolist(), sums["sum"]) for array, _, sums in results] == [([1, 1], 2)] * 2


def test_handlers_as_the_original_builds_them() -> None:
    """For programs with a `make_courier_server` of their own."""
    handler = pybind.BuildPyCallHandler(Served().add)
    batched = pybind.BuildBatchedHandlerWrapper("double", lambda values: 2 * values, 2, 1, 0, True)
    assert pybind.CallHandler(handler, "add", [1], {"b": 5}) == 6
    assert pybind.CallHandler(batched, "double", [3]) == 6
    server = courier.Server("built")
    server.BindHandler("add", handler)
    server.BindHandler("double", batched)
    with server, courier.Client(server.address) as client:
        assert client.add(1) == 3
        assert client.double(4) == 8


class Lends:
    """Serves functions that are the values of properties."""

    def __init__(self) -> None:
        self.evaluated = 0

    @property
    def handler(self) -> Callable[[int], int]:
        self.evaluated += 1
        return lambda number: number + 1

    @property
    def value(self) -> int:
        return 5

    @property
    def not_yet(self) -> Any:
        raise RuntimeError("whoever evaluates it too early is told so")


def test_a_property_may_be_a_method() -> None:
    lends = Lends()
    server = courier_utils.make_courier_server(lends)
    with server, courier.Client(server.address) as client:
        assert client.handler(1) == client.handler(1) == 2
        assert courier.list_methods(client) == ["handler"]
    assert lends.evaluated == 1


def test_annotations_may_have_parameters() -> None:
    annotations: list[Callable[..., Any]] = [lp.CourierNode[Served], lp.PyClassNode[lp.CourierHandle, Served]]
    annotations += [lp.CourierClient[Served], lp.PyNode[Any, int], lp.CourierHandle[Served], lp.ReverbHandle[Any]]

    class Own(lp.PyClassNode[lp.CourierHandle, Served]):
        """A kind of node with parameters."""

    assert isinstance(Own(Served), lp.PyClassNode)
    assert len(annotations) == 6
