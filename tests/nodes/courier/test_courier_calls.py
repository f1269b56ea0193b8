"""What a caller may rely on, on every transport: the behaviours of the original courier, and those it left open."""

from __future__ import annotations

import concurrent.futures
import contextlib
import datetime
import logging
import pickle
import threading

import numpy as np
import pytest

from topology import errors
from topology.nodes.courier import Client, Server, asynchronous, bind_object, list_methods
from topology.testing import Gate, within


class Thing:
    def __init__(self):
        self.value = 1

    def get(self):
        return self.value

    def add(self, a, b=10, *, c=100):
        return a + b + c

    def _hidden(self):
        raise AssertionError

    @property
    def evaluated(self):
        raise AssertionError("binding must not evaluate properties")

    def __call__(self, x):
        return ("called", x)


@pytest.fixture
def server(new_server, address):
    server = new_server(address=address)
    server.start()
    return server


@pytest.fixture
def client(new_client, server):
    return new_client(server)


def test_functions_and_methods_are_called_by_name(server, client):
    server.bind("twice", lambda x: 2 * x)
    server.bind("get", Thing().get)
    assert client.twice(21) == 42
    assert client.get() == 1


def test_defaults_of_the_server_apply_and_keywords_travel(server, client):
    server.bind("add", Thing().add)
    assert client.add(1) == 111
    assert client.add(1, 2) == 103
    assert client.add(1, b=2, c=3) == 6


def test_the_object_itself_is_callable_blocking_and_as_future(server, client):
    bind_object(server, Thing())
    assert client(3) == ("called", 3)
    assert client.futures(4).result(10) == ("called", 4)


def test_an_object_exposes_its_public_methods(server, client):
    bind_object(server, Thing())
    assert client.list_methods() == list_methods(client) == ["__call__", "add", "get"]


class Wrapper:
    """Gives what another object has, and says so."""

    def __init__(self, wrapped):
        self._wrapped = wrapped

    def __dir__(self):
        return ["__call__", "gone"]

    def __getattr__(self, name):
        return getattr(self._wrapped, name)


def test_an_object_exposes_what_its_getattr_gives_and_its_dir_names(server, client):
    bind_object(server, Wrapper({"key": 7}.copy))  # a method of a builtin, which has no __dict__ to look into
    assert client.list_methods() == ["__call__"]
    assert client() == {"key": 7}


def test_rebinding_takes_effect_at_once_and_unbinding_hides(server, client):
    server.bind("rebind", lambda: "first")
    assert client.rebind() == "first"
    server.bind("rebind", lambda: "second")
    assert client.rebind() == "second"
    server.unbind("rebind")
    with pytest.raises(errors.MethodNotFound, match="method rebind not found"):
        client.rebind()
    server.bind("rebind", lambda: "third")
    assert client.rebind() == "third"


@pytest.mark.parametrize("style", ["blocking", "future"])
def test_an_unknown_method_is_an_error_that_names_it_and_the_known_ones(server, client, style):
    server.bind("known", lambda: None)
    call = client.unknown if style == "blocking" else lambda: client.futures.unknown().result(10)
    with pytest.raises(errors.MethodNotFound, match=r"method unknown not found.*known"):
        call()


@pytest.mark.parametrize("value", [b"\x00\xff", "ünï-\N{SNOWMAN}", None, 1.5, 2**200, {"a": (1, [2])}, "", b""])
def test_values_come_back_as_they_went(server, client, value):
    server.bind("echo", lambda x: x)
    result = client.echo(value)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize("size", [0, 1, 4_000, 100_000, 10_000_000])
def test_arrays_travel_both_ways_and_may_be_written_to(server, client, size):
    server.bind("echo", lambda x: x)
    array = np.arange(size, dtype=np.uint8)
    for result in (client.echo(array), client.futures.echo(array).result(20)):
        np.testing.assert_array_equal(result, array)
        assert result.flags.writeable
        assert result.flags.aligned


def test_a_handler_may_write_to_its_arguments_without_touching_the_callers(server, client):
    def clear(array):
        array[:] = 0
        return array.sum()

    server.bind("clear", clear)
    array = np.ones(50_000)
    assert client.clear(array) == 0
    assert array.all()


class CustomError(Exception):
    def __init__(self, message, code):
        super().__init__(message, code)
        self.code = code


class UnloadableError(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} {two}")  # pickle will call the constructor with one argument


def test_a_handlers_exception_comes_with_type_fields_and_remote_traceback(server, client):
    def handler_that_fails():
        raise CustomError("no luck", 7)

    server.bind("fail", handler_that_fails)
    with pytest.raises(CustomError, match="no luck") as caught:
        client.fail()
    assert caught.value.code == 7
    assert "in handler_that_fails" in str(caught.value.__cause__)
    future = client.futures.fail()
    assert isinstance(future.exception(10), CustomError)
    with pytest.raises(CustomError):
        future.result(10)


def test_an_exception_that_cannot_be_pickled_is_told_about(server, client):
    def fail():
        error = ValueError("has a lock")
        error.lock = threading.Lock()
        raise error

    server.bind("fail", fail)
    with pytest.raises(errors.RemoteError, match="ValueError: has a lock") as caught:
        client.fail()
    assert caught.value.type_name == "ValueError"
    assert "in fail" in caught.value.remote_traceback


def test_an_exception_that_cannot_be_unpickled_is_told_about(server, client):
    def fail():
        raise UnloadableError("one", "two")

    server.bind("fail", fail)
    with pytest.raises(errors.RemoteError, match="UnloadableError: one two"):
        client.fail()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_handler_cannot_end_its_caller(server, client, error):
    def leave():
        raise error

    server.bind("leave", leave)
    server.bind("ping", lambda: "pong")
    with pytest.raises(errors.RemoteError, match=type(error).__name__):
        client.leave()
    assert client.ping() == "pong"


def test_arguments_that_cannot_be_pickled_raise_at_once_in_the_caller(client):
    with pytest.raises(TypeError, match="lock") as caught:
        client.anything(threading.Lock())
    assert any("anything" in note for note in caught.value.__notes__)
    with pytest.raises(TypeError):
        client.futures.anything(threading.Lock())


def test_a_result_that_cannot_be_pickled_is_an_error_of_the_call(server, client):
    server.bind("lock", threading.Lock)
    with pytest.raises(TypeError, match="pickle"):
        client.lock()


def test_lambdas_travel(server, client):
    server.bind("apply", lambda f, x: f(x))
    offset = 5
    assert client.apply(lambda x: x + offset, 1) == 6


def test_a_future_gives_the_result_and_runs_its_callbacks(server, client):
    server.bind("twice", lambda x: 2 * x)
    done = Gate()
    done.release()
    future = client.futures.twice(4)
    future.add_done_callback(done)
    assert isinstance(future, concurrent.futures.Future)
    assert future.result(10) == 8
    done.wait_entered()


def test_futures_of_one_client_keep_their_own_results(server, client):
    server.bind("echo", lambda x: x)
    futures = [client.futures.echo(i) for i in range(3000)]
    assert [future.result(20) for future in futures] == list(range(3000))


def test_a_cancelled_future_is_cancelled_and_its_server_side_future_too(server, client):
    waiting = concurrent.futures.Future()
    began, cancelled = threading.Event(), threading.Event()

    @asynchronous
    def wait():
        began.set()
        waiting.add_done_callback(lambda _: cancelled.set())
        return waiting

    server.bind("wait", wait)
    future = client.futures.wait()
    assert began.wait(10)
    assert future.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(10)
    assert cancelled.wait(10)
    assert waiting.cancelled()


def test_an_asynchronous_handler_answers_when_its_future_is_done(server, client):
    waiting = {}

    @asynchronous
    def wait(key):
        return waiting.setdefault(key, concurrent.futures.Future())

    server.bind("wait", wait)
    server.bind("ready", lambda: len(waiting))
    futures = [client.futures.wait(key) for key in range(100)]
    while within(10, client.ready) < 100:
        pass
    for key, future in waiting.items():
        future.set_result(key) if key else future.set_exception(ValueError("zero"))
    assert [future.result(10) for future in futures[1:]] == list(range(1, 100))
    with pytest.raises(ValueError, match="zero"):
        futures[0].result(10)


def test_a_callback_may_call_the_same_client(server, client):
    server.bind("echo", lambda x: x)
    outcome = concurrent.futures.Future()

    def again(future):
        client.futures.echo(future.result() + 1).add_done_callback(
            lambda second: outcome.set_result((second.result(), client.echo(7)))
        )

    client.futures.echo(1).add_done_callback(again)
    assert outcome.result(10) == (2, 7)


def test_a_failed_future_that_nobody_looks_at_is_logged_once(server, client, caplog):
    def fail():
        raise ValueError("unseen")

    server.bind("fail", fail)
    caplog.set_level(logging.ERROR, "topology")
    seen = client.futures.fail()
    assert isinstance(seen.exception(10), ValueError)
    del seen
    unseen = client.futures.fail()
    concurrent.futures.wait([unseen], 10)
    del unseen
    client.list_methods()  # the reader has dropped its reference by then
    client.close()
    assert [record.args for record in caplog.records] == [("fail",)]


def test_a_client_travels_as_its_address_and_options(server, new_client, closing):
    server.bind("ping", lambda: "pong")
    client = new_client(server, call_timeout=5)
    copy = closing.enter_context(pickle.loads(pickle.dumps(client)))
    assert copy.address == client.address
    assert copy.ping() == "pong"


def test_a_method_taken_from_a_client_works_when_the_client_is_gone(server):
    server.bind("ping", lambda: "pong")
    ping = Client(server.address).ping
    assert ping() == "pong"


def test_private_names_are_not_remote(client):
    for name in ("_private", "__len__", "__array__"):
        assert not hasattr(client, name)
        assert not hasattr(client.futures, name)


def test_many_threads_share_one_client(server, client):
    server.bind("echo", lambda x: x)

    def work(worker):
        values = [(worker, i) for i in range(100)]
        futures = [client.futures.echo(value) for value in values]
        assert [client.echo(value) for value in values] == values
        return [future.result(20) for future in futures] == values

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(16)))


# --- deadlines ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [None, 0, 0.0, datetime.timedelta(0)])
def test_no_timeout_means_no_deadline(new_client, timeout):
    assert new_client("localhost:1", call_timeout=timeout)._core.options.call_timeout_s is None


@pytest.mark.parametrize("style", ["blocking", "future"])
@pytest.mark.parametrize("timeout", [0.05, 1 / 16, datetime.timedelta(milliseconds=50)])
def test_a_call_over_its_deadline_fails_and_the_client_goes_on(server, new_client, closing, timeout, style):
    gate = Gate()
    closing.callback(gate.release)
    server.bind("hang", gate)
    server.bind("ping", lambda: "pong")
    client = new_client(server, call_timeout=timeout)
    with pytest.raises(errors.DeadlineExceeded, match=r"Deadline Exceeded.*hang"):
        client.hang() if style == "blocking" else client.futures.hang().result(10)
    gate.wait_entered()
    assert sooner_or_later(client.ping) == "pong"
    assert sooner_or_later(lambda: client.futures.ping().result(10)) == "pong"


def sooner_or_later(call):
    """What it returns once it is in time: on a machine with much else to do, not every call takes less than 50 ms."""

    def again():
        while True:
            with contextlib.suppress(errors.DeadlineExceeded):
                return call()

    return within(20, again)


def test_an_idle_connection_outlives_the_timeout_of_calls(server, new_client):
    server.bind("ping", lambda: "pong")
    client = new_client(server, call_timeout=0.05)
    assert sooner_or_later(lambda: client.futures.ping().result(10)) == "pong"
    assert not threading.Event().wait(0.2)
    assert sooner_or_later(lambda: client.futures.ping().result(10)) == "pong"
    assert server.stats()["connections"] == 1


@pytest.mark.parametrize("style", ["blocking", "future"])
@pytest.mark.parametrize("where", ["localhost:1", "unix:/nowhere/s", "memory:nowhere"])
def test_an_address_where_nobody_is_ends_at_the_deadline(new_client, where, style):
    client = new_client(where, call_timeout=0.1)
    with pytest.raises(errors.DeadlineExceeded, match="Deadline Exceeded"):
        client.ping() if style == "blocking" else client.futures.ping().result(10)


@pytest.mark.parametrize("style", ["blocking", "future"])
@pytest.mark.parametrize("where", ["localhost:1", "unix:/nowhere/s", "memory:nowhere"])
def test_without_waiting_a_dead_address_fails_at_once(new_client, where, style):
    client = new_client(where, wait_for_ready=False)
    with pytest.raises(errors.ConnectionBroken, match="failed to connect to all addresses"):
        client.ping() if style == "blocking" else client.futures.ping().result(10)


@pytest.mark.parametrize("style", ["blocking", "future"])
def test_a_call_waits_for_the_server_to_start(new_server, new_client, address, style):
    server = new_server(address=address)
    server.bind("ping", lambda: "pong")
    client = new_client(server)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(client.ping) if style == "blocking" else client.futures.ping()
        with pytest.raises(concurrent.futures.TimeoutError):
            future.result(0.02)
        server.start()
        assert future.result(10) == "pong"


def test_a_negative_timeout_is_refused():
    with pytest.raises(ValueError, match="call_timeout=-1"):
        Client("localhost:1", call_timeout=-1)


def test_names_of_the_original_courier():
    server = Server("original")
    server.Bind("ping", lambda: "pong")
    server.Start()
    with Client(server.address) as client:
        assert client.ping() == "pong"
    server.Unbind("ping")
    server.Stop()
    assert server.Join() is True


@pytest.mark.parametrize("ending", ["result", "error", "cancel"])
@pytest.mark.parametrize("read_by", ["caller", "reader"])
def test_what_is_to_run_afterwards_runs_once_with_the_outcome(new_server, new_client, address, ending, read_by):
    gate = Gate()

    def work():
        gate()
        if ending == "error":
            raise ValueError("no")
        return 7

    server = new_server(address=address)
    server.bind("work", work)
    server.start()
    client = new_client(server)
    outcomes = []
    future = client.futures.work()
    future.afterwards(lambda value, error: outcomes.append((value, error)))
    if ending == "cancel":
        assert future.cancel()
        gate.release()
        assert isinstance(outcomes[0][1], concurrent.futures.CancelledError)
    else:
        assert not outcomes
        gate.release()
        if read_by == "reader":
            concurrent.futures.wait([future], 20)
        error = future.exception(20)
        assert outcomes == [(None, error) if ending == "error" else (7, None)]
        assert isinstance(error, ValueError) is (ending == "error")
    late = []
    future.afterwards(lambda value, error: late.append((value, error)))
    assert len(outcomes) == len(late) == 1
    assert type(late[0][1]) is type(outcomes[0][1])
