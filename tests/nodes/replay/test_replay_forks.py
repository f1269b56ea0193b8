"""After a fork, the child's copies of writers and iterators say that they are the parent's; clients go on, in both."""

import os
import select
import signal
import threading
import warnings

import numpy as np
import pytest

from topology.errors import ReplayError
from topology.nodes import replay
from topology.nodes.replay import reminders, selectors
from topology.nodes.replay.sharding import ShardedClient

WAIT_S = 20


def in_child(action):
    """What `action` returns, or raises, in a forked child, as text."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python's and JAX's: forking beside threads is what is tested
        pid = os.fork()
    if not pid:
        signal.alarm(WAIT_S)
        try:
            answer = repr(action())
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    try:
        assert select.select([reading], [], [], WAIT_S + 5)[0]
        return os.read(reading, 10_000).decode()
    finally:
        os.close(reading)
        os.waitpid(pid, 0)


@pytest.fixture
def client(serve, make_table):
    client = serve(make_table(sampler=selectors.Fifo()), replay.Table.queue("queue", 1000))
    client.insert({"x": 1.0}, {"table": 1.0})
    return client


def write(writer, value):
    writer.append({"x": value})
    writer.create_item("queue", 1.0, {"x": writer.history["x"][-1]})


def test_a_lock_that_was_held_at_the_fork_is_nobody_s_in_the_child(client):
    """A thread of the parent was just sending for the writer, or told when to."""
    writer = client.trajectory_writer(1)
    held, done = threading.Event(), threading.Event()

    def hold():
        with writer._sender.mutex, reminders._reminders.alarms._condition:
            held.set()
            done.wait(WAIT_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(WAIT_S)

    def go_on():
        with pytest.raises(ReplayError, match="make a new one here"):
            write(writer, 0)
        own = client.trajectory_writer(1)
        for value in range(3):
            write(own, value)
        return client.sample_batch("queue", 3, timeout_s=WAIT_S).data["x"].tolist()

    try:
        assert in_child(go_on) == "[0, 1, 2]"
    finally:
        done.set()
        thread.join()
    writer.close()


def test_a_writer_is_its_parent_s_and_nothing_is_written_twice(client):
    with client.trajectory_writer(1) as writer:
        for value in range(250):
            write(writer, value)

        def go_on():
            with pytest.raises(ReplayError, match="the writer belongs to the process that forked this one"):
                write(writer, 250)
            with pytest.raises(ReplayError, match="make a new one here"):
                writer.flush()
            writer.close()  # of the child's copy: the parent's items are not sent by it
            with client.trajectory_writer(1) as own:
                write(own, 1000)

        assert in_child(go_on) == "None"
        write(writer, 250)
    values = client.sample_batch("queue", 252, timeout_s=WAIT_S).data["x"].tolist()
    assert [value for value in values if value != 1000] == list(range(251))
    assert values.count(1000) == 1


def test_clients_go_on_in_both(client):
    local = client.server.localhost_client()
    for each in (client, local):
        each.sample_batch("table", 3, timeout_s=WAIT_S)

        def go_on(each=each):
            each.insert({"x": 2.0}, {"table": 1.0})
            return each.sample_batch("table", 3, timeout_s=WAIT_S).data["x"].tolist()

        assert in_child(go_on) == "[[1.0], [1.0], [1.0]]"
        assert each.sample_batch("table", 1).data["x"].tolist() == [[1.0]]
    assert client.server_info()["table"].current_size == 3


def test_iterators_are_their_parent_s_and_no_reader_waits_for_ever(client):
    dataset = replay.TrajectoryDataset(
        client, "table", {"x": np.float64}, {"x": (1,)}, max_in_flight_samples_per_worker=4
    )
    iterators = [
        client.batches("table", 2, prefetch=3),
        client.server.localhost_client().batches("table", 2),
        iter(dataset),
        iter(dataset.batch(2).prefetch(2)),
    ]
    for iterator in iterators:
        next(iterator)
        assert in_child(lambda iterator=iterator: next(iterator)).startswith("ReplayError: the iterator belongs to")
        assert in_child(iterator.close) == "None"
        next(iterator)
        iterator.close()
    begun_there = in_child(lambda: next(iter(dataset.batch(2).prefetch(2))).data["x"].shape)
    assert begun_there == "(2, 1)"


def test_a_sharded_client_goes_on_in_both(serve, make_table):
    servers = [serve(make_table(sampler=selectors.Fifo())) for _ in range(2)]
    with ShardedClient([client.server_address for client in servers]) as client:
        for value in range(4):
            client.insert({"x": value}, {"table": 1.0})
        sample = lambda: sorted(client.sample_batch("table", 4, timeout_s=WAIT_S).data["x"][:, 0].tolist())  # noqa: E731
        assert sample() == [0, 0, 1, 1]
        assert in_child(sample) == "[0, 0, 1, 1]"
        assert sample() == [0, 0, 1, 1]
