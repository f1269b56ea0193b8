"""The memory in Redis: what its server, its network and others who write there may do to it."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import socket
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from topology.errors import StoreDataError, StoreDeadlineExceeded, StoreDenied, StoreError, StoreFull, StoreUnavailable
from topology.nodes.store import codec, redis_link
from topology.nodes.store.memory import open_memory_backend
from topology.nodes.store.memory_writer import PlainWriter

redis = pytest.importorskip("redis", reason="redis-py is not installed")
DEADLINE_S = 20.0
NAME = "memory"


def steps(number, first=0):
    return {"observation": np.arange(first, first + number)}


def numbers(experiences):
    return [int(experience.columns["observation"][0]) for experience in experiences]


def opened(server, **options):
    return open_memory_backend(server.url, name=NAME, **{"max_steps": 100, "patience_s": DEADLINE_S, **options})


@pytest.fixture
def raw(make_redis):
    """A server, and redis-py's own client of it."""
    server = make_redis()
    with redis.Redis.from_url(server.url) as client:
        yield server, client


# --- the server goes away ---------------------------------------------------------------------------------------------


def test_with_appendonly_nothing_is_lost_when_the_server_is_killed(make_redis):
    server = make_redis("--appendonly", "yes", tcp=True)
    with opened(server) as writer, opened(server) as reader, ThreadPoolExecutor(1) as pool:
        for first in range(0, 15, 5):
            writer.store(steps(5, first))
        held = reader.fetch(num_steps=5)
        server.kill()
        stored = pool.submit(writer.store, steps(5, 15))
        server.start()
        stored.result(DEADLINE_S)
        reader.acknowledge(held)
        assert numbers(reader.fetch(num_steps=15, timeout_s=DEADLINE_S)) == [5, 10, 15]
        reader.recover()
        assert numbers(reader.fetch(num_steps=15, timeout_s=DEADLINE_S)) == [5, 10, 15]


def test_a_server_killed_again_and_again_while_writers_write(make_redis):
    server = make_redis("--appendonly", "yes", tcp=True)
    seen, enough = [], threading.Event()

    def write():
        with opened(server, max_steps=12) as writer:
            for index in range(10_000):
                if enough.is_set():
                    return index
                writer.store(steps(3, index), timeout_s=DEADLINE_S)
        raise AssertionError("nobody said that it is enough")

    with opened(server, max_steps=12) as reader, ThreadPoolExecutor(1) as pool:
        written = pool.submit(write)
        for _ in range(3):
            until = len(seen) + 20
            while len(seen) < until:
                got = reader.fetch(num_steps=3, timeout_s=DEADLINE_S)
                seen += numbers(got)
                reader.acknowledge(got)
            server.kill()
            server.start()
        enough.set()
        while not written.done() or reader.stats().waiting_steps:
            got = reader.fetch_available()
            seen += numbers(got)
            reader.acknowledge(got)
        assert seen == list(range(written.result(DEADLINE_S)))  # each once: what was sent twice was stored once


def test_a_server_that_forgets_is_gone_on_with_and_that_is_said(make_redis, caplog):
    server = make_redis(tcp=True)
    with opened(server) as handle:
        handle.store(steps(5))
        handle.fetch(num_steps=5)
        handle.store(steps(5, 1))
        server.kill()
        server.start()
        handle.store(steps(5, 2))
        assert numbers(handle.fetch(num_steps=5, timeout_s=DEADLINE_S)) == [2]
    assert "forgets all when it is restarted" in caplog.text
    assert "has lost what it kept" in caplog.text


def test_a_server_that_stays_away_is_an_error(make_redis):
    server = make_redis(tcp=True)
    with opened(server, patience_s=0.2) as handle:
        server.kill()
        with pytest.raises(StoreUnavailable, match=r"within|in time"):
            handle.store(steps(1))
        with pytest.raises(StoreUnavailable):
            handle.fetch_available()


def test_a_server_that_is_away_for_longer_than_a_timeout_is_waited_for(make_redis):
    server = make_redis("--appendonly", "yes", "--appendfsync", "always")
    with opened(server) as handle, ThreadPoolExecutor(2) as threads:
        handle.fetch_available()
        server.kill()
        fetching = threads.submit(handle.fetch, num_steps=5, timeout_s=0.01)
        storing = threads.submit(handle.store, steps(5), timeout_s=0.01)
        threading.Event().wait(0.1)  # both timeouts are over
        server.start()
        storing.result(DEADLINE_S)
        with contextlib.suppress(StoreDeadlineExceeded):
            handle.acknowledge(fetching.result(DEADLINE_S))
        assert handle.stats().stored == 1


def test_scripts_that_the_server_has_forgotten_are_sent_again(raw):
    server, client = raw
    with opened(server) as handle:
        handle.store(steps(5))
        client.script_flush()
        handle.store(steps(5, 5))
        assert numbers(handle.fetch(num_steps=10)) == [0, 5]


def test_connections_that_others_kill_are_made_anew(raw):
    server, client = raw
    with opened(server) as handle:
        handle.store(steps(5))
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        handle.store(steps(5, 5))
        assert numbers(handle.fetch(num_steps=10)) == [0, 5]


def test_a_server_whose_memory_is_full_makes_writers_wait(make_redis):
    server = make_redis("--maxmemory", "8mb")
    with opened(server, max_steps=10_000) as handle, redis.Redis.from_url(server.url) as client:
        noise = np.random.default_rng(0).integers(0, 256, (1, 500_000), np.uint8)
        stored = 0
        with pytest.raises(StoreFull, match="maxmemory"):  # noqa: PT012 - which of them it is depends on the server
            for _ in range(100):
                handle.store({"observation": noise}, timeout_s=0.2)
                stored += 1
        assert 2 < stored < 20
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(handle.store, {"observation": noise}, timeout_s=DEADLINE_S)
            handle.acknowledge(handle.fetch(num_steps=stored))  # which takes no memory
            waiting.result(DEADLINE_S)
        assert client.xlen(f"topology:{{{NAME}}}:stream") == 1


def test_a_server_whose_memory_is_full_of_it_is_emptied_by_a_reader_that_begins_anew(make_redis):
    """Nobody else makes room there: opening what is there, reading and the end of the run may not wait for it."""
    server = make_redis()
    with opened(server) as writer, redis.Redis.from_url(server.url) as client:
        writer.store(steps(5))
        client.config_set("maxmemory", 1)
        with opened(server) as reader:
            reader.expire(1000.0)
            assert client.ttl(f"topology:{{{NAME}}}:state") > 0
            reader.recover()
            reader.acknowledge(reader.fetch(num_steps=5, timeout_s=DEADLINE_S))
        assert client.xlen(f"topology:{{{NAME}}}:stream") == 0


class CuttingProxy:
    """Between a client and a server; `cut` swallows the next reply and ends that connection."""

    def __init__(self, port):
        self.port = port
        self.cut = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self.listener.getsockname()[1]}/0"
        self.threads = [threading.Thread(target=self._accept)]
        self.threads[0].start()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.port))
            for arguments in ((client, server, False), (server, client, True)):
                self.threads.append(threading.Thread(target=self._pump, args=arguments))
                self.threads[-1].start()

    def _pump(self, source, sink, replies):
        with source, sink:
            try:
                while data := source.recv(65536):
                    if replies and self.cut.is_set():
                        self.cut.clear()
                        break
                    sink.sendall(data)
            except OSError:
                pass  # the other direction has ended
            for end in (source, sink):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for thread in self.threads:
            thread.join(DEADLINE_S)


@pytest.fixture
def cutting(make_redis):
    proxy = CuttingProxy(make_redis(tcp=True).port)
    yield proxy
    proxy.close()


def test_what_was_stored_though_the_answer_was_lost_is_stored_once(cutting):
    with opened(cutting) as handle:
        handle.store(steps(5, 0))
        cutting.cut.set()
        id_ = handle.store(steps(5, 5))
        assert not cutting.cut.is_set()
        assert handle.stats().stored == 2
        got = handle.fetch(num_steps=10, timeout_s=DEADLINE_S)
        assert numbers(got) == [0, 5]
        assert got[1].id == id_
        handle.acknowledge(got)


def test_what_was_taken_though_the_answer_was_lost_is_delivered_again(cutting):
    with opened(cutting) as handle:
        handle.store(steps(5, 0))
        handle.store(steps(5, 5))
        assert numbers(handle.fetch(num_steps=5)) == [0]
        cutting.cut.set()
        got = handle.fetch(num_steps=5, timeout_s=DEADLINE_S)
        assert not cutting.cut.is_set()
        assert 5 in numbers(got) or numbers(handle.fetch(num_steps=5, timeout_s=DEADLINE_S)) == [5]


def test_who_waits_is_rung(redis_server, monkeypatch):
    monkeypatch.setattr(redis_link, "_SLICE_S", 1000.0)  # nobody looks by himself
    with (
        open_memory_backend(redis_server.url, name="rung", max_steps=10) as handle,
        open_memory_backend(redis_server.url, name="rung", max_steps=10) as reader,
        ThreadPoolExecutor(3) as pool,
    ):
        for number in ({"num_steps": 5}, {"num_episodes": 1}):
            reader.fetch_available()
            fetched = pool.submit(reader.fetch, **number, timeout_s=DEADLINE_S)
            handle.store_episode(steps(5))
            reader.acknowledge(fetched.result(DEADLINE_S))
        handle.store(steps(10))
        stored = [pool.submit(handle.store, steps(5), timeout_s=DEADLINE_S) for _ in range(2)]
        while handle.stats().writers_blocked < 2:
            assert not any(future.done() for future in stored)
        reader.acknowledge(reader.fetch_available())
        for future in stored:
            future.result(DEADLINE_S)
        reader.acknowledge(reader.fetch_available())


# --- who may not come in ----------------------------------------------------------------------------------------------


def test_a_password_opens_the_server(make_redis):
    server = make_redis("--requirepass", "open sesame", tcp=True)
    address = f"127.0.0.1:{server.port}/0"
    for url in (f"redis://{address}", f"redis://:wrong@{address}"):
        with pytest.raises(StoreUnavailable, match=r"password|Authentication|let us"):
            open_memory_backend(url, name=NAME, patience_s=DEADLINE_S)
    with open_memory_backend(f"redis://:open%20sesame@{address}", name=NAME) as handle:
        handle.store(steps(1))
        assert "sesame" not in repr(handle)


def test_a_user_without_the_right_to_write_is_told_so(make_redis):
    server = make_redis(tcp=True)
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@read", "+@connection", "+info")
    with pytest.raises(StoreError, match="NOPERM"):
        open_memory_backend(f"redis://reader:secret@127.0.0.1:{server.port}/0", name=NAME)


def test_no_server(tmp_path):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # bound, and nobody listens
        with pytest.raises(StoreUnavailable, match="refused"):
            open_memory_backend(f"redis://127.0.0.1:{sock.getsockname()[1]}", name=NAME, patience_s=0.1)
    with pytest.raises(StoreUnavailable):
        open_memory_backend(f"unix://{tmp_path}/none", name=NAME, patience_s=0.1)


def test_a_server_that_is_something_else(make_redis):
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        answered = pool.submit(answer)
        with pytest.raises(StoreUnavailable):
            open_memory_backend(f"redis://127.0.0.1:{server.getsockname()[1]}", name=NAME, patience_s=0)
        answered.result(DEADLINE_S)


@pytest.mark.parametrize(
    "url",
    [
        "redis://host:port",
        "redis://host:123456",
        "redis:host",
        "nothing://host",
        "host:6379",
        "redis://host/mine",
        "redis://host?mine=1",
    ],
)
def test_a_url_that_makes_no_sense(url):
    with pytest.raises(ValueError):  # noqa: PT011 - some are told by redis-py, some by us
        open_memory_backend(url, name=NAME, patience_s=0)


def test_a_server_that_throws_away_is_refused(make_redis):
    server = make_redis("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    with pytest.raises(StoreDenied, match=r"allkeys-lru.*noeviction"):  # however often it is tried
        opened(server)


@pytest.mark.parametrize("name", ["a b", "{x}", "new\nline", ""])
def test_a_name_that_cannot_be(redis_server, name):
    with pytest.raises(ValueError, match="name"):
        open_memory_backend(redis_server.url, name=name)


def test_a_key_that_is_something_else(raw):
    server, client = raw
    client.set(f"topology:{{{NAME}}}:stream", "text")
    with pytest.raises(StoreError, match="WRONGTYPE"):
        opened(server)


# --- what others write ------------------------------------------------------------------------------------------------


class Bomb:
    """Unpickling it is noticed."""

    went_off = False

    def __reduce__(self):
        return _go_off, ()


def _go_off():
    Bomb.went_off = True


@pytest.mark.parametrize("bound", [b"", b"many", b"1e309", b"-5"])
def test_bounds_that_are_none_are_refused(raw, bound):
    server, client = raw
    with opened(server) as handle:
        client.hset(f"topology:{{{NAME}}}:state", "max_steps", bound)
        with pytest.raises(StoreDataError, match="its bounds are"):
            opened(server)
        handle.delete()
        handle.store(steps(5), timeout_s=DEADLINE_S)


@pytest.mark.parametrize("name", ["state", "stream", "sizes", "queue", "bell"])
def test_whatever_lies_there_can_be_deleted(raw, name):
    server, client = raw
    with opened(server) as handle:
        handle.store(steps(5))
        client.delete(f"topology:{{{NAME}}}:{name}")
        client.set(f"topology:{{{NAME}}}:{name}", "mine")
        handle.delete()
        handle.store(steps(5, 1), timeout_s=DEADLINE_S)
        assert numbers(handle.fetch(num_steps=5, timeout_s=DEADLINE_S)) == [1]


def test_what_others_put_into_the_stream_is_refused_and_skipped(raw, caplog):
    server, client = raw
    stream = f"topology:{{{NAME}}}:stream"
    with opened(server) as handle:
        handle.store(steps(5, 0))
        client.set("evil", pickle.dumps(Bomb()))
        client.xadd(stream, {"data": "evil"})
        client.xadd(stream, {"anything": pickle.dumps(Bomb())})
        handle.store(steps(5, 5))
        with caplog.at_level(logging.ERROR):
            got = handle.fetch(num_steps=10, timeout_s=DEADLINE_S)
        assert numbers(got) == [0, 5]
        assert caplog.text.count("is refused and skipped: it was not stored by this project") == 2
        assert handle.stats().refused == 2
        handle.acknowledge(got)
        assert client.xlen(stream) == 0
        handle.store(steps(100), timeout_s=DEADLINE_S)  # they take up no room
    assert not Bomb.went_off


@pytest.mark.parametrize(
    "bytes_",
    [
        pickle.dumps(Bomb()),
        b"",
        b"tpf1" + b"\xff" * 60,
        codec.encode_bytes({"observation": np.arange(5)})[:-1],
        codec.encode_bytes({"observation": np.arange(5)}) + b"more",
        codec.encode_bytes({"observation": np.zeros(())}),
        codec.encode_bytes({"x": np.zeros(2), "y": np.zeros(3)}),
        None,
    ],
    ids=["pickle", "empty", "noise", "cut off", "too long", "no steps", "ragged", "gone"],
)
def test_frames_that_were_replaced_are_refused_and_skipped(raw, caplog, bytes_):
    server, client = raw
    with opened(server, max_steps=20) as handle:
        for first in (0, 5, 10):
            handle.store(steps(5, first))
        (_, second, _) = client.xrange(f"topology:{{{NAME}}}:stream")
        key = second[1][b"data"]
        if bytes_ is None:
            client.delete(key)
        else:
            client.set(key, bytes_)
        got = handle.fetch(num_steps=10, timeout_s=DEADLINE_S)  # of which 5 were not there, though promised
        assert numbers(got) == [0, 10]
        assert "is refused and skipped" in caplog.text
        assert handle.stats().refused == 1
        handle.acknowledge(got)
        handle.store(steps(20), timeout_s=DEADLINE_S)
    assert not Bomb.went_off


def test_what_is_missing_for_a_wish_is_waited_for_and_nothing_else_is_lost(raw):
    server, client = raw
    with opened(server) as handle:
        handle.store(steps(5, 0))
        handle.store(steps(5, 5))
        client.delete(client.xrange(f"topology:{{{NAME}}}:stream")[0][1][b"data"])
        with pytest.raises(TimeoutError):
            handle.fetch(num_steps=10, timeout_s=0.05)
        handle.store(steps(5, 10))
        assert numbers(handle.fetch(num_steps=10, timeout_s=DEADLINE_S)) == [5, 10]


# --- what it leaves ---------------------------------------------------------------------------------------------------


def test_nothing_grows_while_experience_passes(raw):
    server, client = raw
    with opened(server) as handle:
        for _ in range(3):
            for first in range(0, 50, 5):
                handle.store(steps(5, first))
            handle.acknowledge(handle.fetch(num_steps=50))
        assert client.keys("*:data:*") == []
        assert client.hlen(f"topology:{{{NAME}}}:sizes") == 0
        assert client.xpending(f"topology:{{{NAME}}}:stream", "trainer")["pending"] == 0
        assert client.xlen(f"topology:{{{NAME}}}:stream") == 0


def test_what_waits_for_room_expires_when_its_writer_is_gone(raw):
    server, client = raw
    with opened(server, max_steps=5) as handle:
        handle.store(steps(5))
        with pytest.raises(StoreFull):
            handle.store(steps(5), timeout_s=0.05)
        assert len(client.keys("*:data:*")) == 1  # what was not stored is gone
        with opened(server, max_steps=5) as other, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(other.store, steps(5))
            while handle.stats().writers_blocked == 0:
                assert not waiting.done()
            other.close()
            with pytest.raises(StoreError):
                waiting.result(DEADLINE_S)
        lives = sorted(client.ttl(key) for key in client.keys("*:data:*"))
        assert lives[0] == -1  # what is stored stays
        assert 0 < lives[1] <= 60


def test_two_memories_in_one_server_do_not_meet(redis_server):
    with (
        open_memory_backend(redis_server.url, name="left") as left,
        open_memory_backend(redis_server.url, name="right") as right,
    ):
        left.store(steps(5))
        assert right.fetch_available() == []
        left.acknowledge(left.fetch_available())


def test_packed_and_plain_writers_may_share_a_memory(raw):
    server, _ = raw
    with opened(server, packing="zlib") as packed, opened(server) as plain:
        zeros = {"observation": np.zeros((4, 1000), np.int32)}
        packed.store(zeros)
        assert plain.stats().waiting_bytes < 1000
        plain.store(zeros)
        assert len(plain.fetch(num_steps=8)) == 2


def test_a_packing_that_is_not_there_is_refused(redis_server):
    with pytest.raises(ValueError, match="no packing 'rar'"):
        open_memory_backend(redis_server.url, name=NAME, packing="rar")


def test_what_nobody_needs_expires_and_what_comes_later_too(redis_server):
    raw = redis.Redis.from_url(redis_server.url)
    memory = open_memory_backend(redis_server.url, name="over", max_steps=10)
    memory.store({"x": np.zeros(3)})
    (first,) = memory.fetch(num_steps=3)
    memory.store({"x": np.zeros(3)})
    memory.expire(1000.0)

    def lives():
        return {key: raw.ttl(key) for key in raw.scan_iter("topology:{over}:*")}

    assert all(ttl > 0 for ttl in lives().values())
    memory.acknowledge([first])
    memory.acknowledge(memory.fetch(num_steps=3))  # the hash of sizes is gone with the last of them
    memory.store_episode({"x": np.zeros(9)})
    with pytest.raises(StoreFull):  # it is in the queue of those who wait for room
        memory.store({"x": np.zeros(5)}, timeout_s=0.1)
    assert all(ttl > 0 for ttl in lives().values())
    memory.recover()
    kept = {key.rpartition(b":")[2] for key, ttl in lives().items() if ttl == -1}
    assert {b"state", b"stream", b"sizes"} <= kept
    (again,) = memory.fetch(num_steps=9)
    assert again.steps == 9
    memory.store({"x": np.zeros(1)})
    memory.close()
    expiring = [key for key, ttl in lives().items() if ttl != -1]
    assert all(b":writer:" in key or b":wake:" in key for key in expiring), expiring
    raw.close()


def test_of_a_memory_that_is_deleted_the_server_keeps_nothing(redis_server):
    import redis

    with open_memory_backend(redis_server.url, name="deleted") as memory:
        for first in range(3):
            memory.store({"x": np.arange(first + 1)})
        memory.acknowledge(memory.fetch(num_steps=1))
        memory.fetch(num_steps=2)
        memory.delete()
        with redis.Redis.from_url(redis_server.url) as client:
            left = [key for key in client.scan_iter("topology:{deleted}:*") if b":writer:" not in key]
            assert left == []
            assert all(client.ttl(key) > 0 for key in client.scan_iter("topology:{deleted}:*"))


def test_a_writer_whose_connection_breaks_again_and_again_stores_each_once_and_in_order(cutting):
    with open_memory_backend(cutting.url, name="cut") as memory, memory.writer(max_in_flight=4) as writer:
        for first in range(60):
            if first % 7 == 3:
                cutting.cut.set()
            writer.store({"x": np.full(2, first)}, timeout_s=DEADLINE_S)
        cutting.cut.clear()
        writer.flush(DEADLINE_S)
        assert [int(each.columns["x"][0]) for each in memory.fetch(num_steps=120, timeout_s=DEADLINE_S)] == [*range(60)]
        assert memory.stats().stored == 60


def test_a_writer_goes_on_when_its_server_is_killed_and_started_again(make_redis):
    server = make_redis("--appendonly", "yes", "--appendfsync", "always")
    with open_memory_backend(server.url, name="killed") as memory, memory.writer(max_in_flight=4) as writer:
        for first in range(40):
            if first % 10 == 5:
                server.kill()
                server.start()
            writer.store({"x": np.full(2, first)}, timeout_s=DEADLINE_S)
        writer.flush(DEADLINE_S)
        assert [int(each.columns["x"][0]) for each in memory.fetch(num_steps=80, timeout_s=DEADLINE_S)] == [*range(40)]


@pytest.mark.parametrize("kind", ["handle", "writer"])
def test_who_is_forked_stores_as_somebody_else(redis_server, kind):
    with open_memory_backend(redis_server.url, name=f"forked-{kind}") as memory:
        writer = memory.writer() if kind == "writer" else PlainWriter(memory._store)
        writer.store({"x": np.zeros(1)})
        writer.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python's and JAX's: forking beside threads is what is tested
            child = os.fork()
        if child == 0:
            try:
                writer.store({"x": np.ones(1)})
                writer.flush()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        writer.store({"x": np.full(1, 2.0)})
        writer.flush()
        writer.close()
        assert [float(each.columns["x"][0]) for each in memory.fetch(num_steps=3, timeout_s=DEADLINE_S)] == [0, 1, 2]
