"""`AsyncRequestsManager`: turns, refusals, workers that come and go, errors, and many calls."""

import gc
import threading
import weakref

import pytest

from topology.context import NodeContext, bind_context
from topology.errors import ConnectionBroken, ProgramStopped
from topology.nodes.courier import Client, Server, bind_object
from topology.nodes.flow import AsyncRequestsManager, ParallelIteratorWorker, host
from topology.nodes.flow.actors import Actor
from topology.nodes.flow.shards import HOST_OPTIONS
from topology.testing import within


class Worker(ParallelIteratorWorker):
    """Answers at once, or when its gate is opened."""

    def __init__(self, number, gate=None):
        super().__init__(iter(()))
        self.number = number
        self.gate = gate
        self.calls = 0

    def answer(self, *args, **kwargs):
        if self.gate is not None and not self.gate.wait(30):
            raise TimeoutError("nobody opened the gate")
        self.calls += 1
        return self.number, args, kwargs

    def fail(self):
        raise LookupError(f"worker {self.number} has nothing")


@pytest.fixture
def hosted():
    actors = []

    def make(*workers):
        new = [host(worker, f"worker/{worker.number}") for worker in workers]
        actors.extend(new)
        return new

    yield make
    for actor in actors:
        actor.end()


def drain(manager, count):
    """The numbers of the workers of the next `count` results."""
    numbers = []
    while len(numbers) < count:
        ready = manager.get_ready(timeout_s=30)
        assert ready
        numbers += [result[0] for results in ready.values() for result in results]
    return numbers


def test_calls_take_turns_and_are_refused_where_there_is_no_room(hosted):
    gate = threading.Event()
    actors = hosted(*(Worker(number, gate) for number in range(2)))
    manager = AsyncRequestsManager(actors, max_remote_requests_in_flight_per_worker=2)
    assert [manager.call("answer") for _ in range(4)] == [True] * 4
    assert not manager.call("answer")
    assert not manager.call("answer", actor=actors[0])
    assert manager.call_on_all_available("answer") == 0
    assert manager.get_ready() == {}
    gate.set()
    assert sorted(drain(manager, 4)) == [0, 0, 1, 1]  # two each, and none of those refused
    assert manager.get_ready(timeout_s=30) == {}  # at once: nothing is under way
    expected = {
        "num_requests_called": 4,
        "num_requests_ready": 4,
        "num_requests_failed": 0,
        "num_requests_in_flight": 0,
    }
    assert manager.get_manager_statistics() == expected


def test_turns_pass_over_those_that_are_full(hosted):
    gate = threading.Event()
    actors = hosted(*(Worker(number, gate) for number in range(3)))
    manager = AsyncRequestsManager(actors, max_remote_requests_in_flight_per_worker=2)
    for _ in range(2):
        manager.call("answer", actor=actors[1])
    assert [actor.name for actor in manager.workers] == ["worker/0", "worker/1", "worker/2"]
    assert manager.call("answer")
    assert manager.call("answer")  # worker/2
    assert [actor.name for actor in manager.workers] == ["worker/0", "worker/1", "worker/2"]
    gate.set()
    assert sorted(drain(manager, 4)) == [0, 1, 1, 2]


def test_arguments_arrive(hosted):
    actors = hosted(Worker(0), Worker(1))
    manager = AsyncRequestsManager(actors)
    manager.call("answer", fn_args=[1, 2], fn_kwargs={"x": 3})
    assert manager.get_ready(timeout_s=30) == {actors[0]: [(0, (1, 2), {"x": 3})]}
    assert manager.call_on_all_available("answer", fn_args=("all",)) == 2
    assert sorted(drain(manager, 2)) == [0, 1]


def test_results_of_one_worker_are_in_the_order_of_its_calls(hosted):
    gate = threading.Event()
    actors = hosted(Worker(0, gate))
    manager = AsyncRequestsManager(actors, 8)
    for number in range(8):
        manager.call("answer", fn_args=(number,))
    gate.set()
    arrived = []
    while len(arrived) < 8:
        arrived += [result[1][0] for result in manager.get_ready(timeout_s=30)[actors[0]]]
    assert arrived == list(range(8))


def test_workers_come_and_go(hosted):
    gate = threading.Event()
    first, second, third = hosted(Worker(0, gate), Worker(1, gate), Worker(2))
    manager = AsyncRequestsManager([first, second], 1)
    manager.call_on_all_available("answer")
    manager.remove_workers([first], remove_in_flight_requests=True)
    manager.remove_workers([second, third])  # what is under way arrives as ever; the third was never here
    with pytest.raises(ValueError, match=r"worker/0.*not one of the 0 workers"):
        manager.call("answer", actor=first)
    assert not manager.call("answer")
    manager.add_workers([third, third])
    assert manager.call("answer", actor=third)
    assert not manager.call("answer", actor=third)
    gate.set()
    assert sorted(drain(manager, 2)) == [1, 2]
    manager.add_workers([first])
    assert manager.call("answer", actor=first)
    assert drain(manager, 1) == [0]


def test_what_a_worker_raised_takes_no_other_results_with_it(hosted):
    gate = threading.Event()
    good, bad = hosted(Worker(0, gate), Worker(1))
    manager = AsyncRequestsManager([good, bad])
    manager.call("answer", actor=good)
    manager.call("fail", actor=bad)
    manager.call("fail", actor=bad)
    for _ in range(2):
        with pytest.raises(LookupError, match="worker 1 has nothing") as caught:
            manager.get_ready(timeout_s=30)
        assert "raised by worker/1" in caught.value.__notes__
    gate.set()
    assert drain(manager, 1) == [0]
    assert manager.get_manager_statistics()["num_requests_failed"] == 2


@pytest.fixture
def place(tmp_path):
    """A worker whose server can go away under its client."""
    gate = threading.Event()
    server = Server("worker", address=f"unix:{tmp_path}/worker", **HOST_OPTIONS)
    bind_object(server, Worker(7, gate))
    server.start()
    client = Client(server.address)
    yield Actor(client, "worker/7"), server, gate
    gate.set()
    client.close()
    server.stop()


def test_a_worker_that_dies_is_told_of_and_can_be_left_out(hosted, place):
    actor, server, gate = place
    (other,) = hosted(Worker(0))
    manager = AsyncRequestsManager([actor, other])
    actor.futures.ping().result(30)  # connected: what is called from now on is sent at once, and not for a successor
    manager.call("answer", actor=actor)
    manager.call("answer", actor=actor)
    server.stop(0.0)
    with pytest.raises(ConnectionBroken) as caught:
        manager.get_ready(timeout_s=30)
    assert caught.value.__notes__.count("raised by worker/7") == 1
    [(source, [error])] = manager.get_ready(timeout_s=30, return_exceptions=True).items()
    assert source == actor
    assert isinstance(error, ConnectionBroken)
    manager.remove_workers([source])
    assert manager.call_on_all_available("answer") == 1
    assert drain(manager, 1) == [0]
    assert manager.get_manager_statistics()["num_requests_failed"] == 2
    gate.set()


def test_what_comes_after_a_wait_has_ended_is_not_lost(hosted):
    gate = threading.Event()
    manager = AsyncRequestsManager(hosted(Worker(0, gate)))
    manager.call("answer")
    assert manager.get_ready(timeout_s=0.01) == {}
    assert manager.get_manager_statistics()["num_requests_in_flight"] == 1
    gate.set()
    assert list(manager.get_ready(timeout_s=None).values()) == [[(0, (), {})]]
    with pytest.raises(ValueError, match="timeout_s must be"):
        manager.get_ready(timeout_s=-1)


def test_the_stop_of_the_program_ends_a_wait(hosted, tmp_path):
    gate, context = threading.Event(), NodeContext(label="loop", index=0, launch_type="test_mt")
    server = Server("worker", address=f"unix:{tmp_path}/stopped", **HOST_OPTIONS)
    bind_object(server, Worker(0, gate))
    server.start()
    with bind_context(context):
        client = Client(server.address)
        manager = AsyncRequestsManager([client])
        manager.call("answer")
        threading.Timer(0.05, context.stop.set).start()
        try:
            with pytest.raises(ProgramStopped):
                within(20, manager.get_ready, timeout_s=None)
        finally:
            gate.set()
            client.close()
            server.stop()


def test_workers_that_were_left_out_are_not_kept():
    """Those that are objects of this process are served as long as somebody has them."""
    manager = AsyncRequestsManager([Worker(0), Worker(1)], 1)
    first, second = manager.workers
    manager.call("answer", actor=second)
    assert drain(manager, 1) == [1]
    kept = [weakref.ref(first), weakref.ref(second)]
    manager.remove_workers([first, second])
    del first, second
    gc.collect()
    assert [one() for one in kept] == [None, None]


def test_many_calls_are_all_answered(hosted):
    workers = [Worker(number) for number in range(8)]
    manager = AsyncRequestsManager(hosted(*workers), 4)
    taken = 0
    for _ in range(500):
        manager.call_on_all_available("answer")
        taken += sum(map(len, manager.get_ready(timeout_s=30).values()))
    statistics = manager.get_manager_statistics()
    taken += len(drain(manager, statistics["num_requests_in_flight"]))
    assert taken == statistics["num_requests_called"] == sum(worker.calls for worker in workers)
    assert taken >= 500


@pytest.mark.parametrize("wrong", [0, 1.5, None])
def test_how_many_at_once_is_checked(wrong):
    with pytest.raises(ValueError, match="max_remote_requests_in_flight_per_worker"):
        AsyncRequestsManager([], wrong)
