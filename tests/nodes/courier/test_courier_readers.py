"""Who reads what comes in: threads that stay with a connection in the server, callers and the reader in the client."""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import pickle
import signal
import socket
import threading

import pytest

from topology import errors
from topology.nodes import courier
from topology.nodes.courier import wire
from topology.nodes.courier.transport import parse_address
from topology.testing import Gate, within


def in_thread(function, *args):
    """Calls in a thread of its own; the future tells how it ended."""
    future = concurrent.futures.Future()

    def run():
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)

    future.thread = threading.Thread(target=run, daemon=True)
    future.thread.start()
    return future


def until(condition):
    """Looks every few milliseconds, within thirty seconds, until the condition holds.

    These are states that no event announces. Looking without a pause would keep the interpreter from the threads under
    test, some of which go by how quickly calls follow one another.
    """
    pause = threading.Event()

    def look():
        while not condition():
            pause.wait(0.005)

    within(30, look)


@pytest.fixture
def gate():
    return Gate()


@pytest.fixture
def blocking():
    """Makes the handler `sometimes` block at the gate."""
    return threading.Event()


@pytest.fixture
def server(new_server, address, closing, gate, blocking):
    server = new_server(address=address)
    server.bind("ping", lambda: "pong")
    server.bind("echo", lambda x: x)
    server.bind("hang", gate)
    server.bind("sometimes", lambda: gate() if blocking.is_set() else None)
    server.start()
    closing.callback(gate.release)
    return server


# --- the server -----------------------------------------------------------------------------------------------------


def settle(server, call):
    """Calls until a thread stays with the connection."""

    def spin():
        while not server.stats()["staying"]:
            call()

    within(20, spin)


class Raw:
    """A client by hand, on a unix socket."""

    def __init__(self, server, closing):
        self.sock = closing.enter_context(socket.socket(socket.AF_UNIX))
        self.sock.settimeout(10)
        self.sock.connect(parse_address(server.address).host)
        self._decoder = wire.Decoder(1 << 30)

    @staticmethod
    def request(call_id, name, *args):
        return b"".join(wire.encode(wire.Kind.REQUEST, call_id, name, pickle.dumps((args, {}))))

    def replies(self, count):
        frames = []
        while len(frames) < count:
            data = self.sock.recv(1 << 16)
            assert data, "the server hung up"
            frames += self._decoder.feed(data)
        return frames

    def call(self, name, *args):
        self.sock.sendall(self.request(1, name, *args))
        return pickle.loads(self.replies(1)[0].body)


@pytest.fixture
def raw(new_server, closing, gate, blocking):
    server = new_server()
    server.bind("ping", lambda: "pong")
    server.bind("make", bytes)
    server.bind("sometimes", lambda: gate() if blocking.is_set() else None)
    server.start()
    closing.callback(gate.release)
    client = Raw(server, closing)
    client.server = server
    return client


def test_a_connection_that_calls_without_pause_has_a_thread_until_it_pauses(server, new_client):
    client = new_client(server)
    settle(server, client.ping)
    until(lambda: not server.stats()["staying"])
    until(lambda: not server.stats()["running"])
    assert client.ping() == "pong"


def test_an_asynchronous_handler_that_answers_at_once_is_served_by_such_a_thread_until_it_does_not(
    new_server, new_client
):
    answers = []

    @courier.asynchronous
    def ask(what=None):
        future = concurrent.futures.Future()
        if what == "wait":
            answers.append(future)
        elif what == "cancel":
            future.cancel()
        elif what == "fail":
            future.set_exception(KeyError("no"))
        else:
            future.set_result("at once")
        return future

    server = new_server()
    server.bind("ask", ask)
    server.start()
    client = new_client(server)
    settle(server, client.ask)
    for what, error in (("fail", KeyError), ("cancel", errors.CourierClosed)):
        with pytest.raises(error):
            client.ask(what)
    settle(server, client.ask)
    late = in_thread(lambda: client.ask("wait"))
    until(lambda: answers)
    until(lambda: not server.stats()["staying"])  # so that whatever else comes there is heard
    assert within(10, new_client(server).ask) == "at once"
    answers[0].set_result("late")
    assert late.result(10) == "late"
    assert within(10, client.ask) == "at once"
    given_up = client.futures.ask("wait")
    until(lambda: len(answers) == 2)
    given_up.cancel()
    until(answers[1].cancelled)
    settle(server, client.ask)


def test_a_slow_handler_on_a_connection_with_a_thread_holds_up_nobody(server, new_client, gate):
    client = new_client(server)
    settle(server, client.ping)
    slow = in_thread(client.hang)
    gate.wait_entered()
    assert within(10, client.ping) == "pong"
    assert client.futures.ping().result(10) == "pong"
    assert within(10, new_client(server).ping) == "pong"
    gate.release()
    slow.result(10)


def test_calls_behind_one_that_turns_out_to_be_slow_are_answered(raw, gate, blocking):
    settle(raw.server, lambda: (raw.call(b"sometimes"), raw.call(b"ping")))
    blocking.set()
    pings = range(2, 12)
    raw.sock.sendall(raw.request(1, b"sometimes") + b"".join(raw.request(i, b"ping") for i in pings))
    assert [frame.id for frame in raw.replies(len(pings))] == list(pings)
    gate.wait_entered()
    gate.release()
    assert [frame.id for frame in raw.replies(1)] == [1]


def test_calls_behind_one_that_is_refused_or_unknown_to_be_fast_are_answered(raw):
    raw.server.bind("new", lambda: "new")
    settle(raw.server, lambda: raw.call(b"ping"))
    names = [b"ping", b"unknown", b"new", b"ping"]
    raw.sock.sendall(b"".join(raw.request(i, name) for i, name in enumerate(names)))
    replies = {frame.id: frame for frame in raw.replies(4)}
    assert replies[1].kind == wire.Kind.ERROR
    assert [pickle.loads(replies[i].body) for i in (0, 2, 3)] == ["pong", "new", "pong"]


def test_a_client_with_a_thread_that_does_not_read_holds_up_nobody(raw, closing):
    settle(raw.server, lambda: raw.call(b"make", 10))
    count, size = 400, 50_000
    raw.sock.sendall(b"".join(raw.request(i, b"make", size) for i in range(count)))
    assert Raw(raw.server, closing).call(b"ping") == "pong"
    assert sorted(frame.id for frame in raw.replies(count)) == list(range(count))


@pytest.mark.parametrize("farewell", [b"", b"garbage of more than one header's size" * 3])
def test_a_connection_with_a_thread_that_ends_is_forgotten(raw, farewell):
    settle(raw.server, lambda: raw.call(b"ping"))
    raw.sock.sendall(farewell)
    raw.sock.shutdown(socket.SHUT_WR)
    until(lambda: raw.server.stats()["connections"] == 0)
    assert not raw.sock.recv(1)


def test_more_busy_connections_than_threads(new_server, new_client):
    server = new_server(thread_pool_size=8)
    server.bind("echo", lambda x: x)
    server.start()

    def work(worker):
        client = new_client(server)
        return [client.echo((worker, i)) for i in range(300)] == [(worker, i) for i in range(300)]

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        assert all(pool.map(work, range(12)))
    assert server.stats()["threads"] <= 8 + 2 + 2  # handlers, connections with a thread, the leader, the watchdog


def test_a_small_pool_gives_no_thread_away(new_server, new_client):
    server = new_server(thread_pool_size=1)
    server.bind("ping", lambda: "pong")
    server.start()
    client = new_client(server)
    for _ in range(200):
        client.ping()
        assert server.stats()["staying"] == 0
    assert server.stats()["threads"] <= 3


def test_calls_that_wait_for_a_thread_get_that_of_a_busy_connection(new_server, new_client, closing, gate):
    server = new_server(thread_pool_size=4)
    server.bind("ping", lambda: "pong")
    server.bind("hang", gate)
    server.start()
    closing.callback(gate.release)
    client, over = new_client(server), threading.Event()

    def call_on():
        while not over.is_set():
            client.ping()

    busy = in_thread(call_on)
    until(lambda: server.stats()["staying"])
    slow = [client.futures.hang() for _ in range(4)]
    gate.wait_entered(4)
    over.set()
    gate.release()
    busy.result(10)
    for call in slow:
        call.result(10)


def test_stopping_ends_connections_with_a_thread(server, new_client):
    client = new_client(server)

    def call_on():
        while True:
            client.ping()

    busy = in_thread(call_on)
    until(lambda: server.stats()["staying"])
    within(10, server.stop)
    client.close()
    with pytest.raises(errors.CourierError):
        busy.result(10)


# --- the client -----------------------------------------------------------------------------------------------------


def seat_of(client):
    return client._core._get_channel()._seat


@pytest.fixture
def client(server, new_client):
    return new_client(server)


def read_in_thread(client, future):
    """Has another thread wait for the future, reading for itself."""
    reading = in_thread(future.result)
    until(lambda: seat_of(client).caller == reading.thread.ident)
    return reading


@pytest.fixture
def connected(client):
    assert client.futures.ping().result(10) == "pong"
    assert client.futures.ping().result(10) == "pong"
    return client


def test_a_caller_reads_for_itself_and_the_reader_comes_back(connected):
    futures = [connected.futures.echo(i) for i in range(100)]
    assert [future.result(10) for future in futures] == list(range(100))
    until(lambda: seat_of(connected).reader_seated)
    assert connected.futures.ping().result(10) == "pong"


def test_many_threads_wait_for_results_of_one_client(connected):
    def work(worker):
        window, good = [], True
        for i in range(200):
            window.append(((worker, i), connected.futures.echo((worker, i))))
            if len(window) == 16:
                value, future = window.pop(0)
                good = good and future.result(20) == value
        return good and all(future.result(20) == value for value, future in window)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_callbacks_run_while_a_caller_reads_and_not_in_its_thread(connected, gate):
    hang = connected.futures.hang()
    reading = read_in_thread(connected, hang)
    seen = concurrent.futures.Future()
    connected.futures.echo(5).add_done_callback(
        lambda future: seen.set_result((future.result(), threading.get_ident()))
    )
    value, where = seen.result(10)
    assert value == 5
    assert where != reading.thread.ident
    assert connected.futures.echo(6).result(10) == 6
    gate.release()
    reading.result(10)


def test_a_slow_callback_does_not_hold_up_a_caller_that_reads(connected, server, closing):
    reply, callback = Gate(), Gate()
    closing.callback(reply.release)
    closing.callback(callback.release)
    server.bind("held", reply)
    hang = connected.futures.hang()
    reading = read_in_thread(connected, hang)
    connected.futures.held().add_done_callback(callback)
    reply.release()
    callback.wait_entered()
    assert hang.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        reading.result(10)


def test_waiting_for_several_while_a_caller_reads(connected, gate):
    reading = read_in_thread(connected, connected.futures.hang())
    futures = [connected.futures.echo(i) for i in range(50)]
    done, waiting = concurrent.futures.wait(futures, 10)
    assert (len(done), len(waiting)) == (50, 0)
    futures = [connected.futures.echo(i) for i in range(50)]
    assert sorted(f.result() for f in concurrent.futures.as_completed(futures, 10)) == list(range(50))

    async def gather():
        return await asyncio.gather(*(asyncio.wrap_future(connected.futures.echo(i)) for i in range(10)))

    assert asyncio.run(gather()) == list(range(10))
    gate.release()
    reading.result(10)


def test_looking_whether_a_call_is_done_is_enough(connected):
    future = connected.futures.echo(1)
    until(future.done)
    assert future.result(0) == 1
    assert not future.cancelled()
    assert not future.running()
    assert future.exception(0) is None
    assert not future.cancel()


def test_a_caller_may_give_up_and_ask_again(connected, gate):
    future = connected.futures.hang()
    for _ in range(3):
        with pytest.raises(concurrent.futures.TimeoutError):
            future.result(0.01)
        with pytest.raises(concurrent.futures.TimeoutError):
            future.exception(0)
    assert connected.futures.ping().result(10) == "pong"
    gate.release()
    assert future.exception(10) is None


def test_cancelling_wakes_the_caller_that_reads(connected):
    for _ in range(20):
        future = connected.futures.hang()
        reading = read_in_thread(connected, future)
        assert future.cancel()
        with pytest.raises(concurrent.futures.CancelledError):
            reading.result(10)
    assert connected.futures.ping().result(10) == "pong"


def test_a_thread_that_is_ended_while_it_reads_takes_nothing_with_it(connected, gate):
    hang = connected.futures.hang()
    reading = read_in_thread(connected, hang)
    kill = ctypes.pythonapi.PyThreadState_SetAsyncExc
    assert kill(ctypes.c_ulong(reading.thread.ident), ctypes.py_object(SystemExit)) == 1
    assert connected.futures.echo(1).result(10) == 1  # its reply wakes the thread, which then ends
    with pytest.raises(SystemExit):
        reading.result(10)
    gate.release()
    assert hang.result(10) is None


def test_a_signal_handler_may_interrupt_a_caller_that_reads(connected, gate):
    class Interrupted(Exception):
        pass

    def interrupt(*_):
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        hang = connected.futures.hang()
        main = threading.get_ident()

        def strike():
            until(lambda: seat_of(connected).caller == main)
            signal.pthread_kill(main, signal.SIGUSR1)

        striking = in_thread(strike)
        with pytest.raises(Interrupted):
            hang.result(20)
        striking.result(10)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert connected.futures.ping().result(10) == "pong"
    gate.release()
    assert hang.result(10) is None


def test_a_client_that_only_sends_does_not_block_for_ever(connected, server):
    seen = []

    def take(number, payload):
        seen.append(number)
        return payload

    server.bind("take", take)
    payload = b"x" * 1000

    def send():
        for number in range(10_000):
            connected.futures.take(number, payload)

    within(50, send)
    until(lambda: len(seen) == 10_000)


def test_many_under_way_with_room_for_few(server, new_client):
    client = new_client(server, max_in_flight=3)
    futures = []
    for i in range(300):
        futures.append(client.futures.echo(i))
        if i % 50 == 10:
            assert futures[-1].result(10) == i
    assert [future.result(10) for future in futures] == list(range(300))


class CallsBack:
    def __init__(self, address):
        self.address = address

    def __reduce__(self):
        return _call_back, ()


caller = {}


def _call_back():
    return caller["client"].futures.echo(7).result(10)


def test_unpickling_a_result_may_call_the_same_client(connected, server):
    server.bind("trick", lambda: CallsBack(server.address))
    caller["client"] = connected
    try:
        for _ in range(3):
            assert connected.futures.trick().result(10) == 7
            assert connected.futures.ping().result(10) == "pong"
    finally:
        caller.clear()


def test_a_callback_may_wait_for_another_call_of_the_same_client(connected, server, closing):
    reply = Gate()
    closing.callback(reply.release)
    server.bind("held", reply)
    for drive in (False, True):
        outcome = concurrent.futures.Future()
        futures = [connected.futures.held(), connected.futures.held()]
        futures[0].add_done_callback(
            lambda _, outcome=outcome: outcome.set_result(connected.futures.echo(3).result(10))
        )
        if drive:
            assert connected.futures.ping().result(10) == "pong"
        reply.release()
        assert outcome.result(10) == 3
        assert futures[1].result(10) is None


def test_a_callback_that_waits_hears_of_the_end(server, new_client, closing, gate):
    client = new_client(server)
    outcome = concurrent.futures.Future()

    def wait(_):
        with pytest.raises(errors.ConnectionBroken) as caught:
            client.futures.hang().result(10)
        outcome.set_result(caught.value)

    held = Gate()
    closing.callback(held.release)
    server.bind("held", held)
    client.futures.held().add_done_callback(wait)
    held.release()
    gate.wait_entered()
    server.stop(0.0)
    assert "hang" in str(outcome.result(10))


def test_a_call_has_all_that_the_machinery_of_futures_asks_for(connected):
    done, failed = connected.futures.echo(1), connected.futures.nothing()
    assert done.result(10) == 1
    with pytest.raises(errors.MethodNotFound):
        failed.result(10)
    for future in (done, failed):
        assert "finished" in repr(future)  # takes the lock that this has made
        for name in vars(concurrent.futures.Future()):
            assert hasattr(future, name), "CallFuture has to provide this attribute of the new Future itself"
    assert set(concurrent.futures.wait([done, failed], 0).done) == {done, failed}
