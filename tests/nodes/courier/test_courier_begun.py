"""Calls whose reply the caller reads itself, and may look up from."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

import numpy as np
import pytest

from topology.errors import ConnectionBroken, CourierClosed, DeadlineExceeded, MethodNotFound, PayloadTooLarge
from topology.nodes import courier
from topology.nodes.courier.client import begin

TIMEOUT_S = 20


class Served:
    """Methods that answer at once, or when they are told to."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.futures: list[Future[Any]] = []

    def double(self, value: Any) -> Any:
        return 2 * value

    def fail(self) -> None:
        raise ZeroDivisionError("as asked")

    @courier.asynchronous
    def wait(self) -> Future[Any]:
        self.futures.append(future := Future())
        self.asked.set()
        return future


@pytest.fixture
def served() -> Served:
    return Served()


@pytest.fixture(params=["unix", "tcp"])
def server(served: Served, request: pytest.FixtureRequest) -> Iterator[courier.Server]:
    with courier.Server("begun", port=0 if request.param == "tcp" else None) as server:
        courier.bind_object(server, served)
        yield server


@pytest.fixture
def client(server: courier.Server) -> Iterator[courier.Client]:
    with courier.Client(server.address) as client:
        yield client


def test_results_and_errors_come_one_after_the_other_over_one_connection(client: courier.Client) -> None:
    for i in range(20):
        assert begin(client, "double", i).result(TIMEOUT_S) == 2 * i
    large = np.arange(1_000_000)
    np.testing.assert_array_equal(begin(client, "double", large).result(TIMEOUT_S), 2 * large)
    with pytest.raises(ZeroDivisionError, match="as asked"):
        begin(client, "fail").result()
    with pytest.raises(MethodNotFound):
        begin(client, "nothing").result()
    assert client.double(1) == 2
    assert len(client._core._idle) == 1


def test_who_waits_can_look_up_and_go_on(client: courier.Client, served: Served) -> None:
    call = begin(client, "wait")
    told: list[Any] = []
    call.afterwards(lambda *outcome: told.append(outcome))
    for _ in range(3):
        with pytest.raises(TimeoutError):
            call.result(0.001)
        assert not call.done()
    with pytest.raises(TimeoutError):
        call.result(0)
    assert served.asked.wait(TIMEOUT_S)
    served.futures[0].set_result("there")
    assert call.result(TIMEOUT_S) == call.result(0) == "there"
    assert (call.done(), call.cancel(), told) == (True, False, [("there", None)])
    late: list[Any] = []
    call.afterwards(lambda *outcome: late.append(outcome))
    assert late == told


@pytest.mark.parametrize("is_blocked", [False, True])
def test_a_cancelled_call_is_dropped_by_the_server(client: courier.Client, served: Served, is_blocked: bool) -> None:
    assert begin(client, "double", 1).result() == 2
    call = begin(client, "wait")
    told: list[Any] = []
    call.afterwards(lambda *outcome: told.append(outcome))
    assert served.asked.wait(TIMEOUT_S)
    ends = threading.Event()
    served.futures[0].add_done_callback(lambda _: ends.set())
    ended: list[type[BaseException]] = []

    def read() -> None:
        try:
            call.result(TIMEOUT_S)
        except CancelledError as error:
            ended.append(type(error))

    reader = threading.Thread(target=read)
    if is_blocked:
        reader.start()
    assert call.cancel()
    if not is_blocked:
        reader.start()
    reader.join(TIMEOUT_S)
    assert ended == [CancelledError]
    assert ends.wait(TIMEOUT_S)
    assert served.futures[0].cancelled()
    assert [type(error) for _, error in told] == [CancelledError]
    assert begin(client, "double", 2).result(TIMEOUT_S) == 4


def test_a_call_that_nobody_waits_for_any_more_is_cancelled(client: courier.Client, served: Served) -> None:
    call = begin(client, "double", 1)
    call.result()
    call = begin(client, "wait")
    assert served.asked.wait(TIMEOUT_S)
    ends = threading.Event()
    served.futures[0].add_done_callback(lambda _: ends.set())
    del call
    assert ends.wait(TIMEOUT_S)


def test_the_end_of_the_server_and_of_the_client(
    server: courier.Server, client: courier.Client, served: Served
) -> None:
    client.double(1)
    waiting = begin(client, "wait")
    assert served.asked.wait(TIMEOUT_S)
    server.stop()
    with pytest.raises((ConnectionBroken, CourierClosed)):
        waiting.result(TIMEOUT_S)
    client.close()
    with pytest.raises(CourierClosed):
        begin(client, "double", 1)


def test_a_call_waits_for_a_server_that_is_not_there_yet(tmp_path: Any, served: Served) -> None:
    address = f"unix:{tmp_path}/late"
    with courier.Client(address) as client:
        call = begin(client, "double", 4)
        with pytest.raises(TimeoutError):
            call.result(0.01)
        with courier.Server("late", address=address) as server:
            courier.bind_object(server, served)
            assert call.result(TIMEOUT_S) == 8
        # The next finds the connection gone, and the server in the place of the one before.
        with courier.Server("later", address=address) as server:
            courier.bind_object(server, served)
            assert begin(client, "double", 5).result(TIMEOUT_S) == 10


def test_the_limits_of_the_client_count(server: courier.Server, served: Served) -> None:
    with courier.Client(server.address, call_timeout=0.05) as client:
        call = begin(client, "wait")
        with pytest.raises(TimeoutError) as caught:
            call.result(0)
        assert not isinstance(caught.value, DeadlineExceeded)
        with pytest.raises(DeadlineExceeded):
            call.result()
    with courier.Client(server.address, max_message_bytes=1000) as client:
        with pytest.raises(PayloadTooLarge):
            begin(client, "double", b"x" * 2000)
        with pytest.raises(PayloadTooLarge):
            begin(client, "double", b"x" * 900).result(TIMEOUT_S)
    with courier.Client("unix:/nowhere/at/all", wait_for_ready=False) as client, pytest.raises(ConnectionBroken):
        begin(client, "double", 1).result(TIMEOUT_S)


def test_a_reply_can_be_waited_for_and_unpickled_later(client: courier.Client) -> None:
    call = begin(client, "double", 4)
    told: list[Any] = []
    call.afterwards(lambda value, error: told.append((value, error)))
    call.wait()
    assert not told
    other = begin(client, "double", 5)  # on the same connection, which is free again
    assert call.result() == 8
    call.wait()
    assert (call.result(), other.result(TIMEOUT_S)) == (8, 10)
    assert told == [(8, None)]
    failed = begin(client, "fail")
    failed.wait()
    with pytest.raises(ZeroDivisionError):
        failed.result()
    unread = begin(client, "double", 6)
    unread.wait()
    assert unread.cancel()
    with pytest.raises(CancelledError):
        unread.result()
