"""When things go wrong: peers that die, stop, lie, flood or hang."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from topology import errors
from topology.context import NodeContext, StopToken, bind_context
from topology.nodes import courier
from topology.nodes.courier import asynchronous, wire
from topology.nodes.courier.engine import Engine
from topology.nodes.courier.transport import Listener, parse_address
from topology.testing import Gate, no_leaks, within


def in_thread(function, *args):
    """Calls in a thread of its own; the future tells how it ended."""
    future = concurrent.futures.Future()

    def run():
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


@pytest.fixture
def server(new_server, address):
    server = new_server(address=address)
    server.bind("ping", lambda: "pong")
    server.bind("echo", lambda x: x)
    server.start()
    return server


CHILD = """
import os, sys, threading
from topology.nodes.courier import Server
server = Server("child", address=sys.argv[1])
begun = []
server.bind("hang", lambda: (begun.append(1), threading.Event().wait(60)))
server.bind("begun", lambda: len(begun))
server.bind("pid", os.getpid)
server.start()
print(server.address, flush=True)
sys.stdin.read()
"""


def start_child(closing, where):
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    closing.enter_context(child)
    closing.callback(child.kill)
    return child, child.stdout.readline().strip()


@pytest.mark.parametrize("scheme", ["unix", "tcp"])
def test_a_killed_server_fails_calls_at_once_and_its_successor_is_found(closing, new_client, tmp_path, scheme):
    child, where = start_child(closing, f"unix:{tmp_path}/s" if scheme == "unix" else "localhost:0")
    client = new_client(where)
    first = client.pid()
    calls = [in_thread(client.hang), client.futures.hang()]
    while within(10, client.begun) < len(calls):
        pass
    os.kill(child.pid, signal.SIGKILL)
    for call in calls:
        with pytest.raises(errors.ConnectionBroken, match="hang"):
            call.result(5)
    child.wait()
    later = [in_thread(client.pid), client.futures.pid()]
    _, again = start_child(closing, where)
    assert again == where
    assert first not in {call.result(20) for call in later}


def test_a_restarted_server_is_found_without_an_error(new_server, new_client, tmp_path):
    where = f"unix:{tmp_path}/s"
    client = new_client(where, call_timeout=10)
    for generation in range(3):
        server = new_server(address=where)
        server.bind("generation", lambda generation=generation: generation)
        server.start()
        assert client.generation() == generation
        assert client.futures.generation().result(10) == generation
        server.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the end of a socket does not tell what was read")
def test_a_call_to_a_server_that_ends_unread_goes_to_its_successor(new_server, new_client, tmp_path):
    path = f"{tmp_path}/s"
    with socket.socket(socket.AF_UNIX) as dying:
        dying.bind(path)
        dying.listen()
        answer = in_thread(new_client(f"unix:{path}").ping)
        dying.settimeout(10)
        connection, _ = dying.accept()
        connection.settimeout(10)
        connection.recv(1, socket.MSG_PEEK)  # the request has come, and nobody reads it
        os.unlink(path)
        successor = new_server(address=f"unix:{path}")
        successor.bind("ping", lambda: "pong")
        successor.start()
        connection.close()
        assert answer.result(10) == "pong"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the end of a socket does not tell what was read")
@pytest.mark.parametrize(("patient", "times"), [(True, 4), (False, 1)])
def test_a_server_that_reads_nothing_is_not_asked_for_ever(new_client, tmp_path, patient, times):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/s")
        listener.listen()
        listener.settimeout(10)
        answer = in_thread(new_client(f"unix:{tmp_path}/s", wait_for_ready=patient).ping)
        for _ in range(times):
            connection, _ = listener.accept()
            connection.settimeout(10)
            connection.recv(1, socket.MSG_PEEK)
            connection.close()
        assert isinstance(answer.exception(10), errors.ConnectionBroken)


def test_a_call_is_never_run_twice(new_server, new_client, tmp_path):
    calls = []
    server = new_server(address=f"unix:{tmp_path}/s")
    gate = Gate()
    server.bind("once", lambda: (calls.append(1), gate()))
    server.start()
    client = new_client(server)
    call = in_thread(client.once)
    gate.wait_entered()
    stopping = in_thread(server.stop)
    with pytest.raises(errors.ConnectionBroken, match="not repeated"):
        call.result(10)
    gate.release()
    stopping.result(10)
    again = new_server(address=server.address)
    again.bind("once", lambda: calls.append(2))
    again.start()
    client.once()
    assert calls == [1, 2]


def test_stopping_fails_every_call_that_waits(server, new_client):
    gate = Gate()
    entered = threading.Semaphore(0)

    @asynchronous
    def wait():
        entered.release()
        return concurrent.futures.Future()

    server.bind("hang", gate)
    server.bind("wait", wait)
    client = new_client(server)
    calls = [in_thread(client.hang), client.futures.hang(), client.futures.wait(), in_thread(client.wait)]
    gate.wait_entered(2)
    assert entered.acquire(timeout=10)
    assert entered.acquire(timeout=10)
    server.stop(0.0)
    for call in calls:
        with pytest.raises(errors.ConnectionBroken):
            call.result(10)
    gate.release()


def test_stop_is_idempotent_and_a_handler_may_call_it(server, new_client):
    server.bind("end", server.stop)
    client = new_client(server)
    with pytest.raises(errors.ConnectionBroken):
        within(10, client.end)
    assert server.join(10)
    server.stop()
    with pytest.raises(errors.CourierClosed, match="make a new one"):
        server.start()


def test_closing_a_client_fails_its_calls(server, new_client):
    gate = Gate()
    server.bind("hang", gate)
    client = new_client(server)
    calls = [in_thread(client.hang), client.futures.hang()]
    gate.wait_entered(2)
    client.close()
    for call in calls:
        with pytest.raises(errors.CourierClosed):
            call.result(10)
    for use in (client.ping, client.futures.ping):
        with pytest.raises(errors.CourierClosed):
            use()
    gate.release()


# --- the program's stop ---------------------------------------------------------------------------------------------


@pytest.fixture
def stop():
    token = StopToken()
    with bind_context(NodeContext(label="actor", index=0, launch_type="test", stop=token)):
        yield token


def test_the_stop_wakes_blocked_calls(stop, server, new_client):
    gate = Gate()
    server.bind("hang", gate)
    client = new_client(server)
    calls = [in_thread(client.hang), client.futures.hang()]
    gate.wait_entered(2)
    stop.set()
    for call in calls:
        with pytest.raises(errors.ProgramStopped):
            call.result(10)
    assert client.ping() == "pong"
    assert client.futures.ping().result(10) == "pong"
    gate.release()


def test_the_stop_wakes_calls_that_wait_for_a_server(stop, new_client):
    client = new_client("unix:/nowhere/s")
    calls = [in_thread(client.ping), client.futures.ping()]
    stop.set()
    for call in calls:
        with pytest.raises(errors.ProgramStopped):
            call.result(10)
    for late in (client.ping, lambda: client.futures.ping().result(10)):
        with pytest.raises(errors.ProgramStopped):
            late()


def test_a_call_after_the_stop_is_bounded(stop, server, new_client, monkeypatch):
    monkeypatch.setattr("topology.nodes.courier.core.AFTER_STOP_S", 0.1)
    monkeypatch.setattr("topology.nodes.courier.channel.AFTER_STOP_S", 0.1)
    gate = Gate()
    server.bind("hang", gate)
    client = new_client(server)
    assert client.ping() == "pong"
    stop.set()
    for call in (client.hang, lambda: client.futures.hang().result(10)):
        with pytest.raises(errors.ProgramStopped):
            within(10, call)
    gate.release()


def test_a_client_that_is_gone_is_not_kept_by_the_token(stop, server, new_client):
    client = new_client(server)
    client.ping()
    client.close()
    assert "0 listeners" in repr(stop)


# --- threads --------------------------------------------------------------------------------------------------------


def test_a_blocked_handler_holds_up_nobody(server, new_client):
    gate = Gate()
    blocking = threading.Event()
    server.bind("sometimes", lambda: gate() if blocking.is_set() else None)
    client = new_client(server)
    for _ in range(50):
        client.sometimes()  # so that it is thought to be fast
    blocking.set()
    stuck = [client.futures.sometimes(), in_thread(client.sometimes)]
    assert client.futures.ping().result(10) == "pong"
    assert within(10, client.ping) == "pong"
    gate.wait_entered(2)
    gate.release()
    for call in stuck:
        call.result(10)


def test_the_size_of_the_pool_bounds_handlers_that_run(server, new_server, new_client):
    del server
    server = new_server(thread_pool_size=2)
    gate = Gate()
    server.bind("hang", gate)
    server.bind("fast", lambda: None)
    server.start()
    client = new_client(server)
    for _ in range(20):
        client.fast()
    calls = [client.futures.hang() for _ in range(5)]
    gate.wait_entered(2)
    fast = client.futures.fast()
    client.list_methods()
    assert gate.entered == 2
    assert not fast.done()
    gate.release()
    for call in [*calls, fast]:
        call.result(10)
    assert server.stats()["threads"] <= 4  # two workers, the leader, the watchdog


def test_one_thread_means_one_handler_at_a_time(new_server, new_client):
    server = new_server(thread_pool_size=1)
    running, worst = [], []

    def handler():
        running.append(1)
        worst.append(len(running))
        time.sleep(0)  # gives others the chance to run
        running.pop()

    server.bind("handler", handler)
    server.start()
    client = new_client(server)
    futures = [client.futures.handler() for _ in range(200)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: client.handler(), range(200)))
    for future in futures:
        future.result(10)
    assert max(worst) == 1


def test_calls_that_wait_for_one_another_do_not_deadlock_the_default_pool(new_server, new_client):
    server = new_server()
    arrived = threading.Barrier(20)
    server.bind("meet", lambda: arrived.wait(20))
    server.start()
    client = new_client(server)
    calls = [client.futures.meet() for _ in range(20)]
    assert sorted(call.result(20) for call in calls) == list(range(20))


def test_a_thousand_idle_clients_cost_no_threads(new_server):
    server = new_server()
    server.bind("ping", lambda: "pong")
    server.start()
    before = server.stats()["threads"]
    path = parse_address(server.address).host
    clients = []
    try:
        for _ in range(1000):
            sock = socket.socket(socket.AF_UNIX)
            clients.append(sock)
            sock.connect(path)
        for sock in clients:
            sock.sendall(b"".join(wire.encode(wire.Kind.LIST, 0, b"", b"")))
        for sock in clients:
            assert sock.recv(1 << 16)
        assert server.stats()["connections"] == 1000
        assert server.stats()["threads"] <= before + 1
    finally:
        for sock in clients:
            sock.close()


# --- limits ---------------------------------------------------------------------------------------------------------


def test_messages_over_the_limit_are_refused_with_limit_and_option(new_server, new_client):
    server = new_server(max_message_bytes=100_000)
    server.bind("echo", lambda x: x)
    server.bind("make", lambda n: np.zeros(n, np.uint8))
    server.start()
    small, large = new_client(server, max_message_bytes=50_000), new_client(server)
    for call in (small.echo, small.futures.echo):
        with pytest.raises(errors.PayloadTooLarge, match=r"limit of 50000.*max_message_bytes"):
            call(np.zeros(60_000, np.uint8))
    for call in (large.echo, lambda x: large.futures.echo(x).result(10)):
        with pytest.raises(errors.PayloadTooLarge, match=r"limit of 100000.*max_message_bytes"):
            call(np.zeros(5_000_000, np.uint8))
        assert large.echo(1) == 1
        with pytest.raises(errors.PayloadTooLarge, match=r"limit of 100000.*max_message_bytes"):
            large.make(200_000)
    with pytest.raises(errors.PayloadTooLarge, match=r"limit of 50000.*max_message_bytes"):
        small.make(60_000)
    assert small.echo(1) == 1


def test_futures_under_way_are_bounded_at_the_client(server, new_client):
    gate = Gate()
    server.bind("hang", gate)
    client = new_client(server, max_in_flight=3)
    calls = [client.futures.hang() for _ in range(3)]
    fourth = in_thread(client.futures.hang)
    gate.wait_entered(3)
    assert client.ping() == "pong"
    assert not fourth.done()
    gate.release()
    assert fourth.result(10).result(10) is None
    for call in calls:
        call.result(10)


def test_bytes_under_way_are_bounded_at_the_client_but_one_large_call_passes(server, new_client):
    client = new_client(server, max_in_flight_bytes=1000)
    futures = [client.futures.echo(np.zeros(size, np.uint8)) for size in (10, 900, 5000, 300_000, 20)]
    assert [len(future.result(10)) for future in futures] == [10, 900, 5000, 300_000, 20]


def test_a_server_stops_reading_from_a_client_that_floods_it(new_server):
    server = new_server(max_in_flight_bytes=1 << 20)
    server.bind("echo", lambda x: x)
    server.start()
    request = b"".join(wire.encode(wire.Kind.REQUEST, 1, b"echo", _arguments(np.zeros(60_000, np.uint8))))
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(parse_address(server.address).host)
        sock.settimeout(0.3)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 200 * len(request):  # no reply is read: the server must not take all of it
                sent += sock.send(request)
        assert sent < 100 * len(request)
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(parse_address(server.address).host)
            other.settimeout(10)
            other.sendall(b"".join(wire.encode(wire.Kind.LIST, 0, b"", b"")))
            assert other.recv(1 << 16)  # nobody else is held up


def _arguments(*args):
    import pickle

    return pickle.dumps((args, {}))


@pytest.mark.parametrize("size", [10_000, 3_000_000])
def test_more_in_both_directions_than_any_buffer_holds_does_not_deadlock(server, new_client, size):
    client = new_client(server)
    array = np.zeros(size, np.uint8)

    def flood():
        return sum(len(f.result(30)) for f in [client.futures.echo(array) for _ in range(40_000_000 // size)])

    floods = [in_thread(flood) for _ in range(2)]
    assert [flood.result(30) for flood in floods] == [40_000_000 // size * size] * 2


def test_calls_made_by_callbacks_in_numbers_do_not_deadlock(server, new_client):
    client = new_client(server, max_in_flight=4)
    array = np.zeros(200_000, np.uint8)
    done = threading.Semaphore(0)

    def again(_):
        client.futures.echo(array).add_done_callback(lambda _: done.release())

    for _ in range(100):
        client.futures.echo(array).add_done_callback(again)
    for _ in range(100):
        assert done.acquire(timeout=20)


def test_an_array_may_be_changed_as_soon_as_the_call_is_made(new_server, new_client):
    server = new_server()
    server.bind("total", lambda x: int(x.sum()))
    client = new_client(server)
    array = np.ones(100_000, np.uint8)
    early = [client.futures.total(array) for _ in range(3)]  # nobody is there to send it to
    array[:] = 0
    server.start()
    assert [future.result(20) for future in early] == [100_000] * 3
    for value in range(50):
        array[:] = value
        early.append(client.futures.total(array))
    assert [future.result(20) for future in early[3:]] == [100_000 * value for value in range(50)]


def test_calls_of_one_thread_arrive_in_the_order_they_were_made(new_server, new_client):
    server = new_server(thread_pool_size=1)
    seen = []
    server.bind("see", lambda number, payload: seen.append(number))
    server.start()
    client = new_client(server)
    small, large = b"x", np.zeros(100_000, np.uint8)
    futures = [client.futures.see(number, large if number % 7 == 0 else small) for number in range(500)]
    for future in futures:
        future.result(20)
    assert seen == list(range(500))


# --- strangers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n" * 10, b"\x00" * 100, b"\xc7" * 1000])
def test_garbage_does_not_hurt_the_server(server, new_client, garbage):
    address = parse_address(server.address)
    if address.scheme == "memory":
        pytest.skip("nobody but this process reaches it")
    family = socket.AF_UNIX if address.scheme == "unix" else socket.AF_INET
    with socket.socket(family) as sock:
        sock.settimeout(10)
        sock.connect(address.host if address.scheme == "unix" else ("localhost", address.port))
        sock.sendall(garbage)
        while sock.recv(1 << 16):
            pass  # until the server hangs up
    assert new_client(server).ping() == "pong"


class Trap:
    def __reduce__(self):
        return _spring, ()


sprung = threading.Event()


def _spring():
    sprung.set()


@pytest.mark.parametrize(("ours", "theirs"), [(b"right", b"wrong"), (b"right", b""), (b"", b"wrong")])
def test_a_wrong_secret_is_refused_before_anything_is_unpickled(new_server, new_client, ours, theirs):
    server = new_server(port=0, secret=ours)
    server.bind("take", lambda x: None)
    server.start()
    client = new_client(server, secret=theirs)
    for call in (client.take, lambda x: client.futures.take(x).result(10)):
        with pytest.raises(errors.ConnectionBroken, match="secret"):
            within(10, call, Trap())
    assert not sprung.is_set()
    new_client(server, secret=ours).take(Trap())
    assert sprung.is_set()
    sprung.clear()


def test_a_request_before_the_proof_is_not_run(new_server):
    server = new_server(port=0, secret=b"secret")
    server.bind("take", lambda x: None)
    server.start()
    request = b"".join(wire.encode(wire.Kind.REQUEST, 1, b"take", _arguments(Trap())))
    with socket.create_connection(("localhost", server.port), 10) as sock:
        sock.sendall(request)
        received = b""
        while chunk := sock.recv(1 << 16):
            received += chunk
    assert received[1] == wire.Kind.DENIED
    assert not sprung.is_set()


@pytest.mark.parametrize("style", ["blocking", "future"])
def test_a_server_that_goes_away_during_the_handshake_is_waited_for(new_server, new_client, style):
    with socket.create_server(("localhost", 0)) as listener:
        listener.settimeout(10)
        port = listener.getsockname()[1]
        client = new_client(f"localhost:{port}")
        call = in_thread(client.ping) if style == "blocking" else client.futures.ping()
        sock, _ = listener.accept()
        assert sock.recv(1 << 16)
        sock.close()
    server = new_server(port=port)
    server.bind("ping", lambda: "pong")
    server.start()
    assert call.result(20) == "pong"


def test_serving_beyond_this_machine_needs_a_secret(new_server):
    with pytest.raises(errors.LaunchError, match="without a secret"):
        new_server(address="0.0.0.0:0")
    assert new_server(address="0.0.0.0:0", secret=b"secret").port > 0


def test_a_port_in_use_is_named(new_server):
    server = new_server(port=0)
    server.start()
    with pytest.raises(errors.LaunchError, match=rf"port {server.port}.*another port"):
        new_server(port=server.port)


def test_two_servers_that_take_one_port_before_either_starts(new_server):
    first = new_server(port=0)
    second = new_server(port=first.port)
    first.start()
    with pytest.raises(errors.LaunchError, match=f"port {first.port}"):
        second.start()


def test_a_unix_path_that_is_served_is_not_taken_over(new_server, new_client, tmp_path):
    server = new_server(address=f"unix:{tmp_path}/s")
    server.bind("ping", lambda: "pong")
    server.start()
    with pytest.raises(errors.LaunchError, match="in use"):
        new_server(address=server.address)
    assert new_client(server).ping() == "pong"


def test_a_socket_file_left_by_a_killed_server_is_replaced(new_server, new_client, tmp_path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{tmp_path}/s")
    server = new_server(address=f"unix:{tmp_path}/s")
    server.bind("ping", lambda: "pong")
    server.start()
    assert new_client(server).ping() == "pong"


def test_fresh_sockets_are_in_a_directory_of_ones_own(new_server):
    server = new_server()
    directory = os.path.dirname(parse_address(server.address).host)
    assert os.stat(directory).st_mode & 0o777 == 0o700
    server.stop()
    assert not os.path.exists(directory)


def test_a_path_too_long_for_a_socket_says_so(new_server, tmp_path):
    with pytest.raises(errors.LaunchError, match="shorter"):
        new_server(address=f"unix:{tmp_path}/{'x' * 120}")


def test_a_listener_that_is_closed_lets_nobody_in():
    listener = Listener(parse_address("memory:closed"))
    listener.listen()
    listener.close()
    listener.close()
    first, second = (Listener(parse_address("memory:twice")) for _ in range(2))
    first.listen()
    with pytest.raises(errors.LaunchError, match="in use"):
        second.listen()
    first.close()
    second.close()


# --- forks ----------------------------------------------------------------------------------------------------------


FORK = """
import os, signal, sys
from topology.nodes.courier import Client, Server
server = Server("parent", address=sys.argv[1])
server.bind("echo", lambda x: x)
server.start()
client = Client(server.address)
assert client.echo(1) == client.futures.echo(1).result(10) == 1
pid = os.fork()
if pid == 0:
    signal.alarm(20)
good = all(client.echo(i) == client.futures.echo(i).result(10) == i for i in range(100))
if pid == 0:
    os._exit(0 if good else 1)
assert good
assert os.waitpid(pid, 0)[1] == 0
ready, tell = os.pipe()
holder = os.fork()
if holder == 0:
    os.write(tell, b"x")
    signal.pause()
os.read(ready, 1)
server.stop()
again = Server("again", address=server.address)  # the child did not keep the port
again.start()
os.kill(holder, signal.SIGKILL)
os.waitpid(holder, 0)
again.stop()
client.close()
print("good")
"""


@pytest.mark.parametrize("scheme", ["unix", "tcp"])
def test_a_forked_child_has_connections_of_its_own(tmp_path, scheme):
    where = f"unix:{tmp_path}/s" if scheme == "unix" else "localhost:0"
    # In a process of its own: forking this one would fork what other tests have left in it, jax for one.
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK, where],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "good\n", "")


ERRORS_IN_CYCLES = """
import gc
import numpy as np
from topology.nodes.courier import Client, Server

def fail(array):
    raise ValueError("on purpose")

with Server("errors") as server:
    server.bind("fail", fail)
    client = Client(server.address)
    for size in (1, 1_000, 100_000, 3_000_000):
        array = np.zeros(size, np.uint8)
        for call in (client.fail, client.missing, lambda a: client.futures.fail(a).result()):
            for _ in range(5):
                try:
                    call(array)
                except Exception as error:
                    error.myself = error  # what `self.last_error = error` amounts to
    gc.collect()
    client.close()
print("fine")
"""


def test_errors_that_users_keep_crash_no_garbage_collection():
    """CPython before 3.13 crashes when it collects a memoryview that a `PickleBuffer` exports; see its issue 77894."""
    command = [sys.executable, "-c", ERRORS_IN_CYCLES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "fine\n", done.stderr


def test_a_callback_that_ends_its_thread_does_not_end_the_replies_of_others(caplog):
    with courier.Server("exit") as server:
        server.bind("slow", lambda: time.sleep(0.05))
        server.bind("echo", lambda: 1)
        server.start()
        with courier.Client(server.address) as client:
            future = client.futures.slow()
            future.add_done_callback(lambda _: sys.exit())
            concurrent.futures.wait([future], 20)
            later = [client.futures.echo() for _ in range(5)]
            assert not concurrent.futures.wait(later, 20).not_done
            assert [each.result(20) for each in later] == [1] * 5
    assert "wanted to end the thread" in caplog.text


class EndsTheThread:
    def __reduce__(self):
        return sys.exit, ()


def test_a_reply_that_ends_the_thread_that_unpickles_it_is_one_lost_connection():
    with courier.Server("exit") as server:
        server.bind("bad", EndsTheThread)
        server.bind("echo", lambda: 1)
        server.start()
        with courier.Client(server.address) as client:
            future = client.futures.bad()
            concurrent.futures.wait([future], 20)  # the reader's thread unpickles it
            with pytest.raises(errors.ConnectionBroken):
                future.result(20)
            later = [client.futures.echo() for _ in range(5)]
            assert not concurrent.futures.wait(later, 20).not_done


def test_a_time_limit_beyond_all_timers_is_none():
    with courier.Server("echo") as server:
        server.bind("echo", lambda: 1)
        server.start()
        for limit in (float("inf"), 1e300, 86_400.0 * 200):
            with courier.Client(server.address, call_timeout=limit) as client:
                assert client.echo() == client.futures.echo().result(20) == 1


def test_a_name_too_long_for_a_frame_is_refused():
    with courier.Client("unix:/tmp/nobody-serves-here") as client:
        for caller in (client, client.futures):
            with pytest.raises(AttributeError, match="at most 65,535 bytes"):
                getattr(caller, "x" * 65_536)


@pytest.mark.parametrize("step", ["stop", "join"])
def test_a_stop_that_is_cut_short_ends_everything_all_the_same(monkeypatch, step):
    """Stop handlers throw `SystemExit` at threads of nodes, wherever these are."""
    whole, calls = getattr(Engine, step), []

    def cut_short(engine, *args):
        calls.append(args)
        if len(calls) == 1:
            raise SystemExit
        whole(engine, *args)

    monkeypatch.setattr(Engine, step, cut_short)
    with no_leaks():
        server = courier.Server("cut short")
        server.bind("one", lambda: 1)
        server.start()
        with courier.Client(server.address) as client:
            assert client.one() == 1
        with pytest.raises(SystemExit):
            server.stop()
    assert len(calls) == 2


@pytest.mark.parametrize("stops", [True, False], ids=["stopped", "left running"])
def test_a_script_leaves_no_directory_of_its_server_and_its_forks_take_none_away(tmp_path, stops):
    script = """
import os, sys
from topology.nodes import courier
server = courier.Server("left")
server.bind("ping", lambda: "pong")
server.start()
child = os.fork()
if not child:
    sys.exit(0)  # with all that is done at the end of an interpreter
assert os.waitpid(child, 0)[1] == 0
with courier.Client(server.address) as client:
    print(client.ping(), len(os.listdir(os.environ["TMPDIR"])))
if {stops}:
    server.stop()
"""
    command = [sys.executable, "-W", "ignore", "-c", script.replace("{stops}", str(stops))]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=False)
    assert (done.stdout, done.stderr) == ("pong 1\n", "")
    assert list(tmp_path.iterdir()) == []
