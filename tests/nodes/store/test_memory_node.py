"""A memory as a node: between the nodes of one program, as threads and as processes."""

from __future__ import annotations

import importlib.metadata
import pickle
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import topology as lp
from topology.errors import StoreClosed, StoreDeadlineExceeded, StoreFull, StoreUnavailable
from topology.nodes import courier
from topology.nodes.store.memory import open_memory_backend
from topology.nodes.store.memory_local import LocalMemory
from topology.nodes.store.memory_offers import Ticket
from topology.nodes.store.memory_remote import MemoryHandlers, RemoteMemory
from topology.nodes.store.memory_service import MemoryService
from topology.nodes.store.node import MemoryNode
from topology.nodes.store.shelf import Wish

EACH, WRITERS, TIMEOUT_S = 6, 2, 60.0


class Worker:
    def __init__(self, memory, number):
        self._memory = open_memory_backend(memory, name="ignored: it is there")
        self._number = number

    def run(self):
        for index in range(EACH):
            self._memory.store({"x": np.full(3, index)}, {"from": self._number}, timeout_s=TIMEOUT_S)
        lp.wait_for_stop(TIMEOUT_S)


class Trainer:
    def __init__(self, memory):
        self._memory = memory

    def run(self):
        seen = []
        while len(seen) < EACH * WRITERS:
            got = self._memory.fetch(num_steps=3, timeout_s=TIMEOUT_S)
            seen += [(experience.meta["from"], int(experience.columns["x"][0])) for experience in got]
            self._memory.acknowledge(got)
        assert sorted(seen) == [(number, index) for number in range(WRITERS) for index in range(EACH)], seen
        lp.stop("all is there")


@pytest.mark.parametrize("launch_type", ["test_mt", "test_mp"])
def test_nodes_share_a_memory(launch_type):
    program = lp.Program("memory")
    with program.group("memory"):
        memory = program.add_node(MemoryNode(max_steps=10))
    with program.group("trainer"):
        program.add_node(lp.CourierNode(Trainer, memory))
    with program.group("worker"):
        for number in range(WRITERS):
            program.add_node(lp.CourierNode(Worker, memory, number))
    lp.launch(program, launch_type).wait(TIMEOUT_S)


def test_a_node_refuses_a_bound_that_makes_no_sense():
    with pytest.raises(ValueError, match="max_bytes must be an integer of at least 1, got 0"):
        MemoryNode(max_bytes=0)


def test_a_node_says_what_it_is():
    program = lp.Program("memory")
    with program.group("memory"):
        program.add_node(MemoryNode(max_steps=10))
    assert "max_steps=10" in str(program.graph())


def test_a_local_memory_is_not_for_other_processes():
    with LocalMemory("here", 10, 1000) as handle:
        text = pickle.dumps(handle)
        reopen, (process, *arguments) = handle.__reduce__()
        with pytest.raises(StoreUnavailable, match="local to process"):
            reopen(process + 1, *arguments)
        with pickle.loads(text) as again:
            again.store({"x": np.zeros(1)})
        handle.acknowledge(handle.fetch_available())


def test_a_local_memory_outlives_its_handles_while_something_is_in_it():
    with LocalMemory("kept", 10, 1000) as handle:
        handle.store({"x": np.zeros(1)})
    with LocalMemory("kept", 10, 1000) as handle:
        got = handle.fetch_available()
        assert len(got) == 1
        handle.acknowledge(got)
    with LocalMemory("kept", 20, 1000) as handle:  # it was gone: other bounds are no contradiction
        assert handle.fetch_available() == []


@pytest.fixture
def served():
    """A memory that a server keeps, and a function that opens handles of it."""
    service, handles = MemoryService(1000, 1 << 20), []
    with courier.Server("memory") as server:
        courier.bind_object(server, MemoryHandlers(service))

        def open_one(**options):
            handles.append(RemoteMemory(server.address, **options))
            return handles[-1]

        yield service, open_one
        for handle in handles:
            handle.close()


@pytest.mark.parametrize("packing", [None, "zlib", "auto"])
def test_a_served_memory_keeps_columns_as_they_are_sent(served, packing):
    service, open_one = served
    frames = np.full((10, 84, 84), 7, np.uint8)
    with pickle.loads(pickle.dumps(open_one(packing=packing))) as handle, handle.writer() as writer:
        writer.store({"x": frames}, {"a": "b"}, timeout_s=TIMEOUT_S)
        handle.store_episode({"x": frames, "y": np.zeros(10)}, timeout_s=TIMEOUT_S)
    kept = service.stats().waiting_bytes
    if packing == "zlib":
        assert kept < frames.nbytes / 10
    elif packing is None:
        assert kept == 2 * frames.nbytes + 80
    first, second = open_one().fetch(num_episodes=1, timeout_s=TIMEOUT_S)
    assert (first.steps, dict(first.meta), second.whole_episode, list(second.columns)) == (
        10,
        {"a": "b"},
        True,
        ["x", "y"],
    )
    for experience in (first, second):
        np.testing.assert_array_equal(experience.columns["x"], frames)


def test_a_writer_of_a_served_memory_waits_for_no_answer_until_enough_is_under_way(served):
    service, open_one = served
    filling, handle, reader = open_one(), open_one(packing=None), open_one()
    filling.store({"x": np.zeros(1000)}, timeout_s=TIMEOUT_S)
    with handle.writer(max_in_flight=3) as writer:
        for value in range(3):
            writer.store({"x": np.full(10, value)}, timeout_s=TIMEOUT_S)
        with pytest.raises(StoreFull, match="they wait for it still, and nothing more was taken"):
            writer.store({"x": np.full(10, 3)}, timeout_s=0)
        with pytest.raises(StoreFull):
            writer.flush(0)
        reader.acknowledge(reader.fetch(num_steps=1000, timeout_s=TIMEOUT_S))
    assert [int(e.columns["x"][0]) for e in reader.fetch(num_steps=30, timeout_s=TIMEOUT_S)] == [0, 1, 2]
    assert service.stats().stored == 4


def test_a_writer_whose_server_goes_away_says_so(served):
    service, open_one = served
    writer = open_one().writer(max_in_flight=3)
    service.store(Ticket("filling", 1), parcel(1000))
    for _ in range(2):
        writer.store({"x": np.zeros(10)}, timeout_s=TIMEOUT_S)
    service.close()
    with pytest.raises(StoreClosed):
        writer.flush(TIMEOUT_S)
    writer.flush(TIMEOUT_S)  # it has told of all that was under way
    writer.close()
    with pytest.raises(StoreClosed, match="this writer is closed"):
        writer.store({"x": np.zeros(10)})


@pytest.mark.parametrize("url", ["local", "local:x", "nowhere:1", ""])
def test_an_address_that_is_none(url):
    with pytest.raises(ValueError, match=r"local:|known kinds"):
        open_memory_backend(url, name="x")


def test_other_packages_offer_backends_by_entry_point(monkeypatch):
    made = []

    def open_elsewhere(url, *, name, max_steps, max_bytes, **options):
        made.append((url, name, max_steps, max_bytes, options))
        return LocalMemory("elsewhere", max_steps, max_bytes)

    monkeypatch.setitem(sys.modules, "elsewhere", types.SimpleNamespace(open=open_elsewhere))
    point = importlib.metadata.EntryPoint("kafka", "elsewhere:open", "topology.memory_backends")
    points = importlib.metadata.EntryPoints([point])
    monkeypatch.setattr(importlib.metadata, "entry_points", points.select)
    with open_memory_backend("kafka://broker", name="x", max_steps=5, max_bytes=7, topic="t"):
        assert made == [("kafka://broker", "x", 5, 7, {"topic": "t"})]
    with pytest.raises(ValueError, match="known kinds are kafka, local, redis"):
        open_memory_backend("carrier-pigeon:", name="x")


@pytest.mark.parametrize("bounds", [{"max_steps": 0}, {"max_bytes": -1}, {"max_steps": 1.5}])
def test_bounds_that_make_no_sense(bounds):
    with pytest.raises(ValueError, match="at least 1"):
        open_memory_backend("local:", name="x", **bounds)


# --- the service behind it --------------------------------------------------------------------------------------------


def parcel(steps, *, whole=False):
    from topology.nodes.store.parcel import Parcel

    return Parcel({"x": np.zeros(steps)}, {}, whole, steps)


def test_what_is_sent_again_is_stored_once():
    service = MemoryService(10, 1000)
    first = service.store(Ticket("w", 1), parcel(3)).result(0)
    assert service.store(Ticket("w", 1), parcel(3)).result(0) == first
    assert service.stats().stored == 1
    assert service.withdraw(Ticket("w", 1)) == first
    assert service.withdraw(Ticket("w", 2)) is None


def test_a_small_one_does_not_overtake_a_large_one_that_waits():
    service = MemoryService(10, 1000)
    reader = service.attach()
    service.store(Ticket("a", 1), parcel(8))
    large, small = service.store(Ticket("b", 1), parcel(5)), service.store(Ticket("c", 1), parcel(1))
    assert [large.done(), small.done()] == [False, False]
    large.cancel()
    service.acknowledge([])  # anything that happens lets the next one pass
    assert small.done()
    assert [e.steps for e in service.take_available(reader, None)] == [8, 1]


def test_a_withdrawn_offer_makes_way():
    service = MemoryService(10, 1000)
    service.store(Ticket("a", 1), parcel(8))
    service.store(Ticket("b", 1), parcel(5))
    small = service.store(Ticket("c", 1), parcel(1))
    service.withdraw(Ticket("b", 1))
    assert small.done()


def test_who_comes_too_late_waits_again():
    service = MemoryService(10, 1000)
    reader, wish = service.attach(), Wish(3, of_episodes=False)
    waits = [service.wait(reader, wish) for _ in range(2)]
    service.store(Ticket("a", 1), parcel(3))
    assert [wait.done() for wait in waits] == [True, True]
    assert len(service.take(reader, wish)) == 1
    assert service.take(reader, wish) is None


def stored(service, reader):
    return [experience.steps for experience in service.take_available(reader, None)]


def test_one_that_overtook_another_is_put_behind_it():
    service = MemoryService(100, 1 << 20)
    reader = service.attach()
    third, second = service.store(Ticket("w", 3, after=2), parcel(3)), service.store(Ticket("w", 2, after=1), parcel(2))
    other = service.store(Ticket("v", 1), parcel(4))
    assert [third.done(), second.done(), other.done()] == [False, False, True]
    service.store(Ticket("w", 1), parcel(1))
    assert [third.done(), second.done()] == [True, True]
    service.store(Ticket("w", 4, after=3), parcel(5))
    assert stored(service, reader) == [4, 1, 2, 3, 5]


def test_one_stays_behind_another_that_waits_for_room():
    service = MemoryService(10, 1 << 20)
    reader = service.attach()
    service.store(Ticket("v", 1), parcel(8))
    first, second = service.store(Ticket("w", 1), parcel(5)), service.store(Ticket("w", 2, after=1), parcel(1))
    assert [first.done(), second.done()] == [False, False]
    assert service.stats().writers_blocked == 1
    service.acknowledge([experience.id for experience in service.take_available(reader, None)])
    assert stored(service, reader) == [5, 1]


def test_of_a_writer_that_went_away_nothing_waits_for_what_never_comes():
    service = MemoryService(10, 1 << 20)
    early = service.store(Ticket("w", 2, after=1), parcel(2))
    assert not service.is_empty()
    early.cancel()
    assert service.is_empty()
    late = service.store(Ticket("w", 3, after=2), parcel(2))
    service.close()
    with pytest.raises(StoreClosed):
        late.result(0)


def test_closing_the_service_ends_every_wait():
    service = MemoryService(3, 1000)
    reader = service.attach()
    service.store(Ticket("a", 1), parcel(3))
    waits = [service.store(Ticket("b", 1), parcel(1)), service.wait(reader, Wish(1, of_episodes=True))]
    service.close()
    for wait in waits:
        with pytest.raises(StoreClosed):
            wait.result(0)
    with pytest.raises(StoreClosed):
        service.store(Ticket("b", 2), parcel(1))


def test_threads_of_one_reader_share_what_comes():
    with LocalMemory("threads", 1000, 1 << 20) as handle, ThreadPoolExecutor(4) as pool:
        handle.fetch_available()
        fetched = [pool.submit(handle.fetch, num_steps=5, timeout_s=TIMEOUT_S) for _ in range(4)]
        for first in range(4):
            handle.store({"x": np.full(5, first)})
        got = [future.result(TIMEOUT_S) for future in fetched]
        assert sorted(int(e.columns["x"][0]) for (e,) in got) == [0, 1, 2, 3]
        with pytest.raises(StoreDeadlineExceeded):
            handle.fetch(num_steps=1, timeout_s=0)
        for each in got:
            handle.acknowledge(each)
