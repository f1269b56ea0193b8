"""What every memory backend keeps to: one suite over all of them."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from topology.context import NodeContext, StopToken, bind_context
from topology.errors import ProgramStopped, StoreClosed, StoreDeadlineExceeded, StoreFull
from topology.nodes import courier
from topology.nodes.store.memory import open_memory_backend
from topology.nodes.store.memory_remote import MemoryHandlers, RemoteMemory
from topology.nodes.store.memory_service import MemoryService

SOON_S = 0.05  # for what must not come
DEADLINE_S = 20.0  # for what must
NAMES = itertools.count()
KINDS = ["local", "node", "redis", "redis-packed", "replay"]


class Memory:
    """One memory of a kind; `open` gives handles of it, of which all are closed at the end."""

    def __init__(self, kind, request):
        self.kind = kind
        self.request = request
        self.name = f"test-{os.getpid()}-{next(NAMES)}"
        self.handles = []
        self.ends = []
        self.bounds = None

    def begin(self, max_steps=100, max_bytes=1 << 26):
        self.bounds = {"max_steps": max_steps, "max_bytes": max_bytes}
        if self.kind == "replay":
            del self.bounds["max_bytes"]
        if self.kind == "node":
            server = courier.Server("memory")
            courier.bind_object(server, MemoryHandlers(MemoryService(max_steps, max_bytes)))
            server.start()
            self.ends.append(server.stop)
            self.url = server.address
        elif self.kind == "local":
            self.url = "local:"
        elif self.kind == "replay":
            from topology.nodes import replay
            from topology.nodes.store.memory_replay import memory_tables

            server = replay.Server(memory_tables(self.name, max_steps=max_steps))
            server.start()
            self.ends.append(server.stop)
            self.url = f"replay:{server.address}"
        else:
            self.url = self.request.getfixturevalue("redis_server").url
        return self

    def open(self):
        if self.kind == "node":
            handle = RemoteMemory(self.url)
        else:
            options = {"packing": "zlib"} if self.kind == "redis-packed" else {}
            handle = open_memory_backend(self.url, name=self.name, **self.bounds, **options)
        self.handles.append(handle)
        return handle

    def close(self):
        for handle in self.handles:
            try:
                while self.kind == "local" and (left := handle.fetch_available()):
                    handle.acknowledge(left)
            except StoreClosed:
                pass
            handle.close()
        for end in self.ends:
            end()


@pytest.fixture(params=KINDS)
def memory(request):
    memory = Memory(request.param, request)
    yield memory
    memory.close()


@pytest.fixture
def threads():
    with ThreadPoolExecutor(20) as pool:
        yield pool


def steps(number, first=0):
    return {"observation": np.arange(first, first + number), "reward": np.full((number, 2), first, np.float32)}


def numbers(experiences):
    return [int(experience.columns["observation"][0]) for experience in experiences]


def wait_for_blocked(handle, count):
    """Until so many writers wait for room."""
    deadline = threading.Event()
    for _ in range(int(DEADLINE_S / 0.01)):
        if handle.stats().writers_blocked >= count:
            return
        deadline.wait(0.01)
    raise AssertionError(f"not {count} writers wait: {handle.stats()}")


# --- what is stored comes back ----------------------------------------------------------------------------------------


def test_what_is_stored_comes_back_once_in_order(memory):
    writer, reader = memory.begin().open(), memory.open()
    columns = {
        "observation/pixels": np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4),
        "action": np.array([1, -2], np.int32),
        "done": np.array([False, True]),
        "logits": np.array([[0.5, np.nan], [np.inf, 2]], np.float64),
    }
    meta = {"worker": "actor/3", "policy": 7, "fraction": 0.25, "last": True, "nothing": None}
    ids = [writer.store(columns, meta), writer.store(steps(3), {})]
    first, second = reader.fetch(num_steps=5)
    assert [first.id, second.id] == ids
    assert dict(first.meta) == meta
    assert [type(value) for value in first.meta.values()] == [type(value) for value in meta.values()]
    assert not first.whole_episode
    assert first.steps == 2
    assert list(first.columns) == list(columns)
    for name, column in columns.items():
        assert first.columns[name].dtype == column.dtype
        np.testing.assert_array_equal(first.columns[name], column)
    assert second.meta == {}
    assert reader.fetch_available() == []


def test_the_writer_may_change_its_arrays_afterwards(memory):
    handle = memory.begin().open()
    large = np.ones((20, 1000), np.float32)
    handle.store({"x": large})
    large[:] = 0
    handle.store({"x": large})
    first, second = handle.fetch(num_steps=40)
    assert (first.columns["x"].min(), second.columns["x"].max()) == (1, 0)


def test_columns_may_differ_from_one_experience_to_the_next(memory):
    handle = memory.begin().open()
    handle.store({"x": np.zeros((2, 3))})
    handle.store({"x": np.zeros((5, 4), np.uint8), "y": np.zeros(5)})
    handle.store({"x": np.zeros((1, 70_000), np.int16)}, {"text": "a" * 5000})
    first, second, third = handle.fetch(num_steps=8)
    assert [first.columns["x"].shape, second.columns["x"].shape, third.columns["x"].shape] == [
        (2, 3),
        (5, 4),
        (1, 70_000),
    ]
    assert list(second.columns) == ["x", "y"]
    assert third.meta == {"text": "a" * 5000}


def test_arrays_that_are_not_contiguous(memory):
    handle = memory.begin().open()
    array = np.arange(24).reshape(4, 6)
    handle.store({"strided": array[:, ::2], "turned": array[::-1], "fortran": np.asfortranarray(array)})
    (got,) = handle.fetch(num_steps=1)
    np.testing.assert_array_equal(got.columns["strided"], array[:, ::2])
    np.testing.assert_array_equal(got.columns["turned"], array[::-1])
    np.testing.assert_array_equal(got.columns["fortran"], array)


@pytest.mark.parametrize(
    ("columns", "error", "text"),
    [
        ({}, ValueError, "none"),
        ({"x": np.zeros(())}, ValueError, "leading|T"),
        ({"x": np.zeros((0, 2))}, ValueError, "above 0"),
        ({"x": np.zeros(2), "y": np.zeros(3)}, ValueError, r"x \[2\], y \[3\]"),
        ({"x": np.array([{}, 1], object)}, TypeError, "pickled"),
        ({"x": np.zeros(2, [("a", "i4")])}, TypeError, "pickled|array of its own"),
        ({3: np.zeros(2)}, ValueError, "text"),
    ],
)
def test_what_is_no_experience_is_refused(memory, columns, error, text):
    handle = memory.begin().open()
    with pytest.raises(error, match=text):
        handle.store(columns)
    assert handle.fetch_available() == []


@pytest.mark.parametrize("value", [np.zeros(2), {"a": 1}, [1], b"bytes", 1 + 2j])
def test_meta_is_plain(memory, value):
    with pytest.raises(TypeError, match="meta 'it'"):
        memory.begin().open().store(steps(1), {"it": value})


# --- how much is fetched ----------------------------------------------------------------------------------------------


def test_fetch_gives_the_least_that_makes_up_what_was_asked_for(memory):
    handle = memory.begin().open()
    for first in range(0, 20, 5):
        handle.store(steps(5, first))
    assert numbers(handle.fetch(num_steps=6)) == [0, 5]
    assert numbers(handle.fetch(num_steps=1)) == [10]
    assert numbers(handle.fetch_available()) == [15]


def test_fetch_counts_episodes(memory):
    handle = memory.begin().open()
    handle.store(steps(2, 0))
    handle.store_episode(steps(3, 10))
    handle.store(steps(2, 20))
    handle.store_episode(steps(1, 30))
    handle.store_episode(steps(1, 40))
    got = handle.fetch(num_episodes=2)
    assert numbers(got) == [0, 10, 20, 30]
    assert [experience.whole_episode for experience in got] == [False, True, False, True]
    assert numbers(handle.fetch(num_episodes=1)) == [40]


def test_fetch_available_takes_whole_experiences_up_to_a_number_of_steps(memory):
    handle = memory.begin().open()
    for first in range(0, 20, 5):
        handle.store(steps(5, first))
    assert numbers(handle.fetch_available(max_steps=12)) == [0, 5]
    assert numbers(handle.fetch_available(max_steps=1)) == [10]
    assert numbers(handle.fetch_available()) == [15]


def test_fetch_waits_until_enough_is_there(memory, threads):
    handle, writer = memory.begin().open(), memory.open()
    fetched = threads.submit(handle.fetch, num_steps=10, timeout_s=DEADLINE_S)
    for first in range(0, 10, 5):
        assert not fetched.done()
        writer.store(steps(5, first))
    assert numbers(fetched.result(DEADLINE_S)) == [0, 5]


def test_what_does_not_come_in_time_stays(memory):
    handle = memory.begin().open()
    handle.store(steps(5))
    with pytest.raises(StoreDeadlineExceeded, match=r"6 steps.*5 steps"):
        handle.fetch(num_steps=6, timeout_s=SOON_S)
    with pytest.raises(StoreDeadlineExceeded, match="1 episode"):
        handle.fetch(num_episodes=1, timeout_s=0)
    handle.store(steps(5, 5))
    assert numbers(handle.fetch(num_steps=6, timeout_s=DEADLINE_S)) == [0, 5]


@pytest.mark.parametrize(
    "arguments", [{}, {"num_steps": 1, "num_episodes": 1}, {"num_steps": 0}, {"num_episodes": 1.5}]
)
def test_fetch_refuses_what_makes_no_sense(memory, arguments):
    with pytest.raises(ValueError, match="fetch"):
        memory.begin().open().fetch(**arguments)


def test_fetch_refuses_to_wait_for_more_than_there_can_be(memory):
    with pytest.raises(ValueError, match="max_steps=10"):
        memory.begin(max_steps=10).open().fetch(num_steps=11)


# --- the bound --------------------------------------------------------------------------------------------------------


def test_writers_wait_while_the_memory_is_full_of_steps(memory, threads):
    handle, writer = memory.begin(max_steps=10).open(), memory.open()
    for first in (0, 5):
        writer.store(steps(5, first))
    with pytest.raises(StoreFull, match="max_steps=10"):
        writer.store(steps(1, 99), timeout_s=SOON_S)
    stored = threads.submit(writer.store, steps(5, 10), timeout_s=DEADLINE_S)
    wait_for_blocked(handle, 1)
    got = handle.fetch(num_steps=5)
    with pytest.raises(StoreFull):  # delivered is not acknowledged
        writer.store(steps(1, 99), timeout_s=SOON_S)
    assert not stored.done()
    handle.acknowledge(got)
    stored.result(DEADLINE_S)
    assert numbers(handle.fetch(num_steps=10, timeout_s=DEADLINE_S)) == [5, 10]


def test_writers_wait_while_the_memory_is_full_of_bytes(memory, threads):
    if memory.kind == "replay":
        pytest.skip("the replay service counts steps")
    handle = memory.begin(max_steps=1000, max_bytes=100_000).open()
    noise = np.random.default_rng(0).integers(0, 256, (1, 60_000), np.uint8)
    handle.store({"x": noise})
    with pytest.raises(StoreFull, match="max_bytes=100000"):
        handle.store({"x": noise}, timeout_s=SOON_S)
    stored = threads.submit(handle.store, {"x": noise}, timeout_s=DEADLINE_S)
    handle.acknowledge(handle.fetch(num_steps=1))
    stored.result(DEADLINE_S)


def test_what_is_larger_than_the_whole_memory_is_refused(memory):
    handle = memory.begin(max_steps=10).open()
    with pytest.raises(ValueError, match="max_steps=10"):
        handle.store(steps(11))
    handle.store(steps(10))


def test_many_writers_and_a_small_memory(memory, threads):
    handle, writers = memory.begin(max_steps=7).open(), [memory.open() for _ in range(4)]
    each = 12

    def write(number):
        for index in range(each):
            writers[number].store(
                steps(1 + (index + number) % 3), {"from": number, "index": index}, timeout_s=DEADLINE_S
            )

    done = [threads.submit(write, number) for number in range(len(writers))]
    seen = {number: [] for number in range(len(writers))}
    while sum(map(len, seen.values())) < each * len(writers):
        got = handle.fetch(num_steps=1, timeout_s=DEADLINE_S)
        got += handle.fetch_available(max_steps=3)
        for experience in got:
            seen[experience.meta["from"]].append(experience.meta["index"])
        handle.acknowledge(got)
    for future in done:
        future.result(DEADLINE_S)
    assert seen == {number: list(range(each)) for number in range(len(writers))}
    assert handle.stats().waiting_steps == 0


def test_threads_share_a_handle(memory, threads):
    handle = memory.begin(max_steps=1000).open()
    stored = [threads.submit(handle.store, steps(2, number), timeout_s=DEADLINE_S) for number in range(30)]
    ids = [future.result(DEADLINE_S) for future in stored]
    got = handle.fetch(num_steps=60, timeout_s=DEADLINE_S)
    assert len({experience.id for experience in got}) == 30
    assert {experience.id for experience in got} == set(ids)
    assert sorted(numbers(got)) == list(range(30))


# --- acknowledgement --------------------------------------------------------------------------------------------------


def test_what_was_not_acknowledged_is_delivered_again_first(memory):
    reader = memory.begin().open()
    for first in range(0, 20, 5):
        reader.store(steps(5, first))
    a, b, c = reader.fetch(num_steps=15)
    reader.acknowledge([b])
    reader.store(steps(5, 20))
    reader.recover()
    again = reader.fetch(num_steps=20, timeout_s=DEADLINE_S)
    assert numbers(again) == [0, 10, 15, 20]
    assert [again[0].id, again[1].id] == [a.id, c.id]
    np.testing.assert_array_equal(again[0].columns["reward"], a.columns["reward"])
    reader.acknowledge(again)
    reader.recover()
    assert reader.fetch_available() == []


def test_a_new_reader_gets_what_the_old_one_did_not_acknowledge(memory):
    old, new = memory.begin().open(), memory.open()
    old.store(steps(5))
    (first,) = old.fetch(num_steps=5)
    (again,) = new.fetch(num_steps=5, timeout_s=DEADLINE_S)
    assert again.id == first.id
    with pytest.raises(StoreClosed, match="another handle"):
        old.fetch(num_steps=1, timeout_s=SOON_S)
    old.recover()  # it may take the place back
    assert [experience.id for experience in old.fetch(num_steps=5)] == [first.id]


def test_a_reader_that_waits_hears_that_another_took_its_place(memory, threads):
    old, new = memory.begin().open(), memory.open()
    old.fetch_available()
    waiting = threads.submit(old.fetch, num_steps=1, timeout_s=DEADLINE_S)
    new.recover()
    with pytest.raises(StoreClosed, match="another handle"):
        waiting.result(DEADLINE_S)


def test_acknowledging_twice_makes_room_once(memory):
    handle = memory.begin(max_steps=10).open()
    handle.store(steps(5, 0))
    handle.store(steps(5, 5))
    got = handle.fetch(num_steps=5)
    handle.acknowledge(got)
    handle.acknowledge(got)
    handle.acknowledge([*got, *got])
    handle.acknowledge([])
    handle.store(steps(5, 10), timeout_s=DEADLINE_S)
    with pytest.raises(StoreFull):
        handle.store(steps(1), timeout_s=SOON_S)


def test_statistics(memory):
    handle = memory.begin(max_steps=10).open()
    handle.store(steps(3))
    handle.store_episode(steps(4))
    handle.acknowledge(handle.fetch(num_steps=1))
    stats = handle.stats()
    assert (stats.stored, stats.delivered, stats.acknowledged) == (2, 1, 1)
    assert (stats.waiting_steps, stats.waiting_episodes, stats.writers_blocked) == (4, 1, 0)


# --- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["store", "fetch"])
def test_a_call_that_waits_wakes_when_the_program_stops(memory, threads, call):
    context = NodeContext(label="node", index=0, group_size=1, launch_type="test_mt", stop=StopToken())
    with bind_context(context):
        handle = memory.begin(max_steps=5).open()
    handle.fetch_available()
    if call == "store":
        handle.store(steps(5))

    def wait():
        with bind_context(context):
            if call == "store":
                handle.store(steps(5), timeout_s=DEADLINE_S)
            else:
                handle.fetch(num_steps=5, timeout_s=DEADLINE_S)

    waiting = threads.submit(wait)
    if call == "store":
        wait_for_blocked(memory.open(), 1)
    context.stop.set("the test says so")
    with pytest.raises(ProgramStopped):
        waiting.result(DEADLINE_S)


def test_a_call_that_waits_wakes_when_the_handle_is_closed(memory, threads):
    handle = memory.begin(max_steps=5).open()
    handle.store(steps(5))
    waiting = threads.submit(handle.store, steps(5), timeout_s=DEADLINE_S)
    wait_for_blocked(memory.open(), 1)
    handle.close()
    with pytest.raises(StoreClosed):
        waiting.result(DEADLINE_S)
    with pytest.raises(StoreClosed):
        handle.store(steps(1))
    with pytest.raises(StoreClosed):
        handle.fetch_available()
    handle.close()


def test_a_handle_can_be_pickled(memory):
    handle = memory.begin().open()
    handle.store(steps(2))
    with pickle.loads(pickle.dumps(handle)) as again:
        assert numbers(again.fetch(num_steps=2, timeout_s=DEADLINE_S)) == [0]


def test_a_context_manager_closes(memory):
    with memory.begin().open() as handle:
        pass
    with pytest.raises(StoreClosed):
        handle.stats()


def test_other_bounds_are_refused(memory):
    if memory.kind in {"node", "replay"}:
        pytest.skip("its bounds are those of the server")
    memory.begin(max_steps=5).open()
    with pytest.raises(ValueError, match="max_steps=5"):
        open_memory_backend(memory.url, name=memory.name, max_steps=6)


# --- processes that are killed ----------------------------------------------------------------------------------------

PROGRAM = """
import pickle, sys, threading
import numpy as np
handle = pickle.load(sys.stdin.buffer)
def steps(number, first=0):
    return {"observation": np.arange(first, first + number), "reward": np.full((number, 2), first, np.float32)}
"""


def in_a_child(handle, code):
    """A process with the handle, which says a line and then waits to be killed."""
    child = subprocess.Popen([sys.executable, "-c", PROGRAM + code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdin.write(pickle.dumps(handle))
    child.stdin.flush()
    line = child.stdout.readline().decode().strip()
    assert line, f"the child ended with code {child.wait(10)}"
    return child, line


def end(child):
    os.kill(child.pid, signal.SIGKILL)
    child.wait(DEADLINE_S)
    child.stdin.close()
    child.stdout.close()


def test_a_reader_that_is_killed_leaves_what_it_had_not_acknowledged(memory):
    if memory.kind == "local":
        pytest.skip("it is within one process")
    writer = memory.begin().open()
    for first in range(0, 15, 5):
        writer.store(steps(5, first))
    child, line = in_a_child(
        writer,
        "got = handle.fetch(num_steps=10)\nhandle.acknowledge(got[:1])\nprint(len(got), flush=True)\nsys.stdin.read()",
    )
    end(child)
    assert line == "2"
    assert numbers(memory.open().fetch(num_steps=10, timeout_s=DEADLINE_S)) == [5, 10]


def killed_while_it_waits(memory, threads, handle, code):
    """What is fetched between the 10 steps of before and those of a writer who comes when one with `code` is killed."""
    handle.store(steps(10, 0))
    child, _ = in_a_child(handle, code + "print('waits', flush=True)\nsys.stdin.read()")
    wait_for_blocked(handle, 1)
    end(child)
    stored = threads.submit(memory.open().store, steps(10, 1), timeout_s=DEADLINE_S)
    handle.acknowledge(handle.fetch(num_steps=10, timeout_s=DEADLINE_S))
    seen = []
    while not seen or numbers(seen)[-1] != 1:  # what the killed one had sent may come too
        got = handle.fetch(num_steps=1, timeout_s=DEADLINE_S)
        seen += got
        handle.acknowledge(got)
    stored.result(DEADLINE_S)
    return seen[:-1]


def test_a_writer_that_is_killed_while_it_waits_stands_in_nobodys_way(memory, threads):
    if memory.kind == "local":
        pytest.skip("it is within one process")
    handle = memory.begin(max_steps=10).open()
    code = "threading.Thread(target=handle.store, args=(steps(5, 100),), daemon=True).start()\n"
    seen = killed_while_it_waits(memory, threads, handle, code)
    assert numbers(seen) in ([], [100])
    assert all(experience.steps == 5 for experience in seen)


def test_a_writer_that_is_killed_with_several_under_way_stands_in_nobodys_way(memory, threads):
    if memory.kind in {"local", "redis-packed"}:
        pytest.skip("it is within one process, or like redis: that takes seconds, in which the killed one is found out")
    handle = memory.begin(max_steps=10).open()
    code = (
        "writer = handle.writer(max_in_flight=2)\n"
        "for first in (100, 101): writer.store(steps(4, first))\n"
        "threading.Thread(target=writer.store, args=(steps(4, 102),), daemon=True).start()\n"
    )
    seen = numbers(killed_while_it_waits(memory, threads, handle, code))
    assert seen == list(range(100, 100 + len(seen)))


def test_writers_killed_at_any_moment_leave_whole_experience(memory):
    if memory.kind == "local":
        pytest.skip("it is within one process")
    handle = memory.begin(max_steps=60).open()
    seen = {}
    for round_ in range(3):
        child, _ = in_a_child(
            handle,
            f"print('writes', flush=True)\n"
            f"for index in range(100000): handle.store(steps(3, index), {{'round': {round_}, 'index': index}})",
        )
        last = -1
        while last < 20 * (round_ + 1):
            got = handle.fetch(num_steps=3, timeout_s=DEADLINE_S)
            last = max([last, *(e.meta["index"] for e in got if e.meta["round"] == round_)])
            _note(seen, got)
            handle.acknowledge(got)
        end(child)
    while got := handle.fetch_available():
        _note(seen, got)
        handle.acknowledge(got)
    for round_, indices in seen.items():
        assert indices == list(range(len(indices))), f"of writer {round_} something is missing or out of order"
    handle.store(steps(60), timeout_s=DEADLINE_S)  # and the whole memory is free again


def _note(seen, got):
    for experience in got:
        assert experience.steps == 3
        assert experience.columns["observation"][0] == experience.meta["index"]
        seen.setdefault(experience.meta["round"], []).append(experience.meta["index"])


# --- deleted ----------------------------------------------------------------------------------------------------------


def test_a_memory_that_is_deleted_is_empty_for_all_who_have_it_open(memory, threads):
    writer, reader, other = memory.begin(max_steps=10).open(), memory.open(), memory.open()
    for first in range(2):
        writer.store(steps(4, first))
    assert numbers(reader.fetch(num_steps=4)) == [0]
    blocked = threads.submit(writer.store, steps(4, 7), timeout_s=DEADLINE_S)
    wait_for_blocked(other, 1)
    other.delete()
    blocked.result(DEADLINE_S)
    writer.store(steps(4, 8), timeout_s=DEADLINE_S)
    assert numbers(reader.fetch(num_steps=8, timeout_s=DEADLINE_S)) == [7, 8]
    assert reader.fetch_available() == []
    other.delete()
    assert other.fetch_available() == []


# --- several under way ------------------------------------------------------------------------------------------------


def test_a_writer_keeps_the_order_and_flushes_at_its_end(memory):
    handle, reader = memory.begin().open(), memory.open()
    with handle.writer(max_in_flight=3) as writer:
        for first in range(9):
            writer.store(steps(2, first), {"first": first})
        writer.store_episode(steps(2, 9))
    experiences = reader.fetch(num_episodes=1, timeout_s=DEADLINE_S)
    assert numbers(experiences) == list(range(10))
    assert [experience.meta.get("first") for experience in experiences] == [*range(9), None]
    assert handle.stats().stored == 10


def test_a_writer_waits_for_room_and_keeps_the_order(memory, threads):
    handle, reader = memory.begin(max_steps=8).open(), memory.open()

    def write():
        with handle.writer(max_in_flight=3) as writer:
            for first in range(20):
                writer.store(steps(4, first), timeout_s=DEADLINE_S)

    writing = threads.submit(write)
    got = []
    while len(got) < 20:
        batch = reader.fetch(num_steps=8, timeout_s=DEADLINE_S)
        got += numbers(batch)
        reader.acknowledge(batch)
    writing.result(DEADLINE_S)
    assert got == list(range(20))


def test_a_writer_for_whom_there_is_no_room_says_so_and_loses_nothing(memory):
    handle, reader = memory.begin(max_steps=8).open(), memory.open()
    taken = []
    with handle.writer(max_in_flight=2) as writer:
        with pytest.raises(StoreFull):  # noqa: PT012 - sooner or later
            for first in range(9):
                writer.store(steps(4, first), timeout_s=SOON_S)
                taken.append(first)
        assert taken
        got = []
        while len(got) < len(taken):
            batch = reader.fetch(num_steps=4, timeout_s=DEADLINE_S)
            got += numbers(batch)
            reader.acknowledge(batch)
            if len(got) == len(taken) - 2:
                writer.flush(DEADLINE_S)
        writer.store(steps(4, 99), timeout_s=DEADLINE_S)
    assert got == taken
    assert numbers(reader.fetch(num_steps=4, timeout_s=DEADLINE_S)) == [99]


def test_a_writer_refuses_what_makes_no_sense(memory):
    handle = memory.begin(max_steps=8).open()
    with pytest.raises(ValueError, match="max_in_flight"):
        handle.writer(max_in_flight=0)
    with handle.writer() as writer:
        with pytest.raises(ValueError, match="max_steps=8"):
            writer.store(steps(9))
        with pytest.raises(ValueError, match="needs columns"):
            writer.store({})
        writer.store(steps(1, 5))
    assert numbers(memory.open().fetch(num_steps=1, timeout_s=DEADLINE_S)) == [5]
