"""What is particular to a memory in a replay service."""

from __future__ import annotations

import os
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from topology.errors import PayloadTooLarge, StoreDataError, StoreFull, StoreUnavailable
from topology.nodes import replay
from topology.nodes.replay.messages import StreamLost
from topology.nodes.store import memory_replay
from topology.nodes.store.memory import open_memory_backend
from topology.nodes.store.memory_replay import memory_tables

NAME = "memory"
SOON_S = 0.05
DEADLINE_S = 20.0


@pytest.fixture
def begin():
    """Starts a server, and gives a function that opens handles."""
    ends = []

    def start(max_steps=1000):
        server = replay.Server(memory_tables(NAME, max_steps=max_steps))
        server.start()
        ends.append(server.stop)

        def open_one(**options):
            handle = open_memory_backend(f"replay:{server.address}", name=NAME, max_steps=max_steps, **options)
            ends.append(handle.close)
            return handle

        open_one.server = server
        return open_one

    yield start
    for end in reversed(ends):
        end()


def steps(number, value=0):
    return {"x": np.full(number, value)}


def values(experiences):
    return [int(experience.columns["x"].flat[0]) for experience in experiences]


def info(memory):
    return memory.server.localhost_client().server_info()[NAME]


# --- not stored means not stored --------------------------------------------------------------------------------------


def test_what_was_given_up_is_not_stored_when_there_is_room_later(begin):
    memory = begin(max_steps=10)
    writer, reader = memory(), memory()
    writer.store(steps(10, 1))
    for _ in range(2):
        with pytest.raises(StoreFull, match="were not stored"):
            writer.store(steps(4, 2), timeout_s=0)
    assert info(memory).rate_limiter_info.insert_stats.pending == 0
    reader.acknowledge(reader.fetch(num_steps=10, timeout_s=DEADLINE_S))
    writer.store(steps(3, 3), timeout_s=DEADLINE_S)
    assert values(reader.fetch_available()) == [3]
    assert reader.stats().stored == 2


def test_what_is_stored_in_the_last_moment_is_not_given_up(begin, monkeypatch):
    memory = begin(max_steps=10)
    writer, reader = memory(), memory()
    writer.store(steps(10, 1))
    got = reader.fetch(num_steps=10, timeout_s=DEADLINE_S)
    take_back = writer._writer.take_back

    def too_late():
        reader.acknowledge(got)
        return take_back()

    monkeypatch.setattr(writer._writer, "take_back", too_late)
    writer.store(steps(4, 2), timeout_s=0)
    assert values(reader.fetch_available()) == [2]


# --- several under way ------------------------------------------------------------------------------------------------


def test_what_is_under_way_is_confirmed_or_waits_but_nobody_waits_for_it_one_by_one(begin, monkeypatch):
    memory = begin(max_steps=20)
    handle = memory()
    answered = threading.Event()
    insert = memory.server._service.insert
    monkeypatch.setattr(memory.server._service, "insert", lambda *args: answered.wait(DEADLINE_S) and insert(*args))
    with ThreadPoolExecutor(1) as pool, handle.writer(max_in_flight=3) as writer:
        stored = [pool.submit(writer.store, steps(2, value), timeout_s=DEADLINE_S) for value in range(3)]
        for future in stored:
            future.result(DEADLINE_S)  # though the server has not answered anything
        assert info(memory).current_size == 0
        fourth = pool.submit(writer.store, steps(2, 3), timeout_s=DEADLINE_S)
        assert not fourth.done()
        answered.set()
        fourth.result(DEADLINE_S)
    assert values(handle.fetch(num_steps=8, timeout_s=DEADLINE_S)) == [0, 1, 2, 3]


def test_experience_of_all_sizes_and_columns_keeps_its_order(begin):
    memory = begin(max_steps=10_000)
    rng = np.random.default_rng(0)
    written = []
    with memory(packing=None).writer() as writer:
        for number in range(40):
            shape = int(rng.integers(1, 9)), int(rng.integers(1, 2000))
            kind = ["u1", "f4", "M8[s]", "U3"][number % 4]
            columns = {"x": np.full(shape[0], number), f"y{number % 3}": np.full(shape, number).astype(kind)}
            writer.store(columns, {"number": number}, timeout_s=DEADLINE_S)
            written.append(columns)
    got = memory().fetch_available()
    assert [experience.meta["number"] for experience in got] == list(range(40))
    for experience, columns in zip(got, written, strict=True):
        assert list(experience.columns) == list(columns)
        for name, column in columns.items():
            assert experience.columns[name].dtype == column.dtype
            assert not experience.columns[name].flags.writeable
            np.testing.assert_array_equal(experience.columns[name], column)


@pytest.mark.parametrize("packing", ["zlib", "auto"])
def test_packed_columns_take_less_and_come_back(begin, packing):
    memory = begin()
    frames = np.full((10, 84, 84), 7, np.uint8)
    with memory(packing=packing).writer() as writer:
        writer.store({"x": frames}, {"a": "b"}, timeout_s=DEADLINE_S)
    (rows,) = memory.server.localhost_client().sample_batch(NAME, 1).data
    if packing != "auto":  # for which a package may be missing
        assert rows.nbytes < frames.nbytes / 10
    (got,) = memory().fetch(num_steps=10, timeout_s=DEADLINE_S)
    np.testing.assert_array_equal(got.columns["x"], frames)
    assert dict(got.meta) == {"a": "b"}


# --- the reader -------------------------------------------------------------------------------------------------------


def test_a_new_reader_gets_much_that_was_delivered_before_in_order_and_first(begin):
    memory = begin()
    old, new = memory(), memory()

    def write(numbers):
        with old.writer() as writer:
            for value in numbers:
                writer.store(steps(1, value), timeout_s=DEADLINE_S)

    write(range(100))
    got = old.fetch(num_steps=70)
    assert values(got) == list(range(70))
    old.acknowledge(got[::2])
    write(range(100, 140))
    new.recover()
    assert values(new.fetch_available(max_steps=35)) == list(range(1, 70, 2))
    assert values(new.fetch_available()) == list(range(70, 140))


def test_a_thread_that_waits_is_woken_by_what_comes_when_another_makes_room(begin, monkeypatch):
    memory = begin(max_steps=10)
    reader, writer = memory(), memory()
    writer.store(steps(10, 1))
    got = reader.fetch(num_steps=10, timeout_s=DEADLINE_S)
    with writer.writer() as late, ThreadPoolExecutor(1) as pool:
        late.store(steps(10, 2), timeout_s=DEADLINE_S)  # waits for room
        reader.fetch_available()
        monkeypatch.setattr(memory_replay, "_SLICE_S", 1000.0)  # nobody looks by himself
        waiting = pool.submit(reader.fetch, num_steps=10, timeout_s=DEADLINE_S)
        watches = memory.server.tables[NAME]._insert_watches
        for _ in range(int(DEADLINE_S / 0.01)):
            if watches._watches:
                break
            threading.Event().wait(0.01)
        assert watches._watches
        reader.acknowledge(got)
        assert values(waiting.result(DEADLINE_S)) == [2]


def test_what_others_have_put_into_the_table_is_told(begin):
    memory = begin()
    memory.server.localhost_client().insert(np.zeros(3, np.uint8), {NAME: 0.0})
    with pytest.raises(StoreDataError, match="not stored as experience"):
        memory().fetch_available()


# --- the server goes away ---------------------------------------------------------------------------------------------


def begin_at(address, max_steps=20):
    server = replay.Server(memory_tables(NAME, max_steps=max_steps), address=address)
    server.start()
    return server


def open_at(address, max_steps=20, **options):
    return open_memory_backend(f"replay:{address}", name=NAME, max_steps=max_steps, **options)


@pytest.fixture
def address(tmp_path):
    return f"unix:{tmp_path}/replay"


def test_what_was_under_way_is_stored_once_and_in_order_by_the_server_that_follows(address):
    server = begin_at(address)
    with open_at(address, patience_s=DEADLINE_S) as handle, handle.writer(max_in_flight=4) as writer:
        for value in range(4):
            writer.store(steps(10, value), timeout_s=DEADLINE_S)  # there is room for two
        assert values(handle.fetch(num_steps=20, timeout_s=DEADLINE_S)) == [0, 1]
        server.stop()
        server = begin_at(address)
        writer.flush(DEADLINE_S)
        got = handle.fetch(num_steps=20, timeout_s=DEADLINE_S)
        assert values(got) == [2, 3]
        writer.store(steps(10, 4), timeout_s=DEADLINE_S)
        handle.acknowledge(got)
        assert values(handle.fetch(num_steps=10, timeout_s=DEADLINE_S)) == [4]
    server.stop()


@pytest.mark.parametrize("before", ["store", "nothing"])
def test_a_server_that_stays_away_is_an_error_and_one_that_comes_back_later_is_gone_on_with(
    address, before, monkeypatch
):
    monkeypatch.setattr(memory_replay, "_SLICE_S", 0.1)
    server = begin_at(address)
    with open_at(address, patience_s=0.2) as handle:
        if before == "store":
            handle.store(steps(5, 0))
        server.stop()
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match=r"0\.2 s"):
                handle.store(steps(5, 1))
        server = begin_at(address)
        handle.store(steps(5, 2))
        # What was given up is not known to be lost: nobody has told its writer that it was not stored.
        assert values(handle.fetch_available())[-1] == 2
    server.stop()


def test_large_experience_comes_whole_though_the_server_has_forgotten_the_memory_it_was_lent(begin):
    memory = begin(max_steps=100)
    writer, reader = memory(packing=None), memory()
    frames = [np.full((10, 20_000), value, np.uint8) for value in range(6)]
    with writer.writer(max_in_flight=2) as pipeline:
        for value, frame in enumerate(frames):
            if value == 3:
                pipeline.flush(DEADLINE_S)
                assert memory.server._service.lent_memory._memory, "nothing was lent"
                memory.server._service.lent_memory._memory.clear()
            pipeline.store({"x": frame}, timeout_s=DEADLINE_S)
    got = reader.fetch(num_steps=60, timeout_s=DEADLINE_S)
    assert len(got) == 6
    for experience, frame in zip(got, frames, strict=True):
        np.testing.assert_array_equal(experience.columns["x"], frame)


def test_a_message_that_is_lost_between_others_comes_again_and_once(begin, monkeypatch):
    memory = begin(max_steps=100)
    handle, service = memory(), memory.server._service
    insert, calls = service.insert, [0]

    def lose_some(batch, visit=0):
        calls[0] += 1
        if calls[0] in {3, 4, 9}:
            raise StreamLost("the test says so")
        return insert(batch, visit)

    monkeypatch.setattr(service, "insert", lose_some)
    with handle.writer(max_in_flight=4) as writer:
        for value in range(10):
            writer.store(steps(2, value), timeout_s=DEADLINE_S)
    assert calls[0] > 12
    assert values(handle.fetch(num_steps=20, timeout_s=DEADLINE_S)) == list(range(10))
    assert handle.stats().stored == 10


def test_what_cannot_be_sent_is_told_and_the_writer_goes_on(begin, monkeypatch):
    memory = begin(max_steps=100)
    handle = memory(packing=None)
    monkeypatch.setattr(handle._client, "submit_insert", lambda _: too_large())

    def too_large():
        raise PayloadTooLarge("the test says so")

    with handle.writer() as writer:
        with pytest.raises(PayloadTooLarge):
            writer.store(steps(2, 1))
        monkeypatch.undo()
        writer.store(steps(2, 2))
    assert values(handle.fetch(num_steps=2, timeout_s=DEADLINE_S)) == [2]


def test_who_was_forked_stores_as_somebody_else(begin):
    memory = begin(max_steps=100)
    handle = memory()
    with handle.writer(max_in_flight=4) as writer:
        writer.store(steps(2, 0), timeout_s=DEADLINE_S)
        with warnings.catch_warnings():
            for warning in (DeprecationWarning, RuntimeWarning):  # of forks with threads, Python's and JAX's
                warnings.simplefilter("ignore", warning)
            pid = os.fork()
        if pid == 0:
            writer.store(steps(2, 1), timeout_s=DEADLINE_S)
            writer.flush(DEADLINE_S)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        writer.store(steps(2, 2), timeout_s=DEADLINE_S)
    got = handle.fetch(num_steps=6, timeout_s=DEADLINE_S)
    assert sorted(values(got)) == [0, 1, 2]  # the first may have been under way still when the child stored
    assert len({experience.id for experience in got}) == 3


# --- what the reader asks ---------------------------------------------------------------------------------------------


def test_a_reader_leaves_what_is_not_enough_where_it_is_and_asks_seldom(begin, monkeypatch):
    memory = begin(max_steps=1000)
    reader, writer = memory(), memory()
    reader.recover()
    asked = []
    link = type(reader._client.link)
    for name in ("call", "submit"):
        original = getattr(link, name)

        def noted(self, method, *args, original=original):
            if self is reader._client.link:
                asked.append(method)
            return original(self, method, *args)

        monkeypatch.setattr(link, name, noted)
    monkeypatch.setattr(memory_replay, "_SLICE_S", 1000.0)  # nobody looks by himself
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reader.fetch, num_steps=20, timeout_s=DEADLINE_S)
        for value in range(10):
            writer.store(steps(2, value), timeout_s=DEADLINE_S)
            assert not (waiting.done() and value < 9)
        assert values(waiting.result(DEADLINE_S)) == list(range(10))
    assert asked.count("sample_marked") <= 2, asked  # one, unless the last came while it looked
    assert len(asked) <= 8, asked


def test_a_reader_goes_on_when_somebody_else_has_emptied_the_table(begin):
    memory = begin(max_steps=100)
    reader, writer = memory(), memory()
    writer.store(steps(10, 0))
    assert values(reader.fetch(num_steps=10, timeout_s=DEADLINE_S)) == [0]
    memory.server.localhost_client().reset(NAME)
    writer.store(steps(4, 1))
    writer.store(steps(4, 2))
    assert values(reader.fetch(num_steps=8, timeout_s=DEADLINE_S)) == [1, 2]
