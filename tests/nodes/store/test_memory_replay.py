"""What is particular to a memory in a replay service."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from topology.errors import StoreDataError, StoreFull
from topology.nodes import replay
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
