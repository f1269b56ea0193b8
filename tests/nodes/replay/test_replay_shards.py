"""Several servers used as one."""

import concurrent.futures
import itertools
import pickle
import threading

import numpy as np
import pytest

from topology import errors
from topology.handle import dereference
from topology.nodes import replay
from topology.nodes.replay import rate_limiters, selectors, sharded_batch
from topology.nodes.replay.node import ReverbHandle, sharded
from topology.nodes.replay.sharding import ShardedClient
from topology.testing import within

WAIT_S = 20
FIFO = selectors.Fifo()


@pytest.fixture
def cluster(make_table, tmp_path):
    """Servers on fixed addresses that can be stopped and started again, and a client of them all."""
    made = []

    class Cluster:
        def __init__(self, count, **options):
            self.options = options
            addresses = [f"unix:{tmp_path}/{i}" for i in range(count)]
            self.servers = [replay.Server([self.table()], address=address) for address in addresses]
            for server in self.servers:
                server.start()
            self.addresses = [server.address for server in self.servers]
            self.client = ShardedClient(self.addresses)
            made.append(self)

        def table(self):
            return make_table(**{"sampler": FIFO, "max_times_sampled": 1, **self.options})

        def sizes(self):
            return [server.tables["table"].info.current_size for server in self.servers]

    yield Cluster
    for each in made:
        each.client.close()
        for server in each.servers:
            server.stop()


def write(client, values, priority=1.0):
    with client.trajectory_writer(1) as writer:
        for value in values:
            writer.append({"x": value})
            writer.create_item("table", priority, {"x": writer.history["x"][-1]})


def test_writers_go_to_the_servers_in_turn(cluster):
    group = cluster(3)
    for value in range(7):
        group.client.insert({"x": value}, {"table": 1.0})
    assert group.sizes() == [3, 2, 2]
    info = group.client.server_info()["table"]
    assert info.current_size == 7
    assert info.rate_limiter_info.insert_stats.completed == 7


def test_a_batch_has_equal_parts_of_all(cluster):
    group = cluster(3)
    for first in range(0, 30, 10):
        write(group.client, range(first, first + 10))
    batch = group.client.sample_batch("table", 7)
    assert sorted(batch.data["x"].tolist()) == [0, 1, 2, 10, 11, 20, 21]
    assert batch.info.table_size.tolist() == [30] * 7
    assert len(group.client.sample_batch("table", 2).data["x"]) == 2
    with group.client.batches("table", 6, prefetch=1) as batches:
        assert len(next(batches).data["x"]) == 6
    (sample,) = group.client.sample("table", 1, emit_timesteps=False)
    assert len(sample.data) == 1


def test_probabilities_of_a_uniform_batch(cluster):
    group = cluster(2, sampler=selectors.Uniform(), max_times_sampled=0)
    for first in (0, 10):
        write(group.client, range(first, first + 10))
    batch = group.client.sample_batch("table", 4)
    np.testing.assert_allclose(batch.info.probability, 1 / 20)
    distinct = group.client.sample_batch("table", 20, replacement=False)
    assert sorted(distinct.data["x"].tolist()) == list(range(20))


def test_priorities_find_their_server(cluster):
    group = cluster(3, sampler=selectors.MaxHeap(), max_times_sampled=0)
    for first in range(0, 30, 10):
        write(group.client, range(first, first + 10))
    keys = {}
    for _ in range(10):
        batch = group.client.sample_batch("table", 3)
        keys.update(zip(batch.info.key.tolist(), batch.data["x"].tolist(), strict=True))
        assert group.client.update_priorities("table", batch.info.key, np.zeros(3)) == 3
    assert len(keys) == 30
    chosen = [next(key for key, value in keys.items() if value == wanted) for wanted in (4, 17, 28)]
    assert group.client.mutate_priorities("table", updates=dict.fromkeys(chosen, 5.0)) == 3
    assert group.client.sample_batch("table", 3).data["x"].tolist() == [4, 17, 28]
    assert group.client.mutate_priorities("table", deletes=chosen) == 3
    assert group.sizes() == [9, 9, 9]
    assert group.client.mutate_priorities("table", deletes=[*chosen, 255 << 56]) == 0


def test_calls_on_tables_reach_all(cluster):
    group = cluster(2)
    for first in (0, 10):
        write(group.client, range(first, first + 10))
    group.client.resize("table", 5)
    assert group.sizes() == [5, 5]
    group.client.reset("table")
    assert group.sizes() == [0, 0]
    with pytest.raises(errors.TableNotFound):
        group.client.sample_batch("nowhere", 2)
    with pytest.raises(errors.TableNotFound):
        group.client.reset("nowhere")


def test_items_of_several_kinds(cluster):
    group = cluster(2)
    group.client.insert({"x": 1}, {"table": 1.0})
    group.client.insert({"x": 1, "y": 2.0}, {"table": 1.0})
    with pytest.raises(errors.ReplayError, match="do not make one batch"):
        group.client.sample_batch("table", 2)


def test_what_was_drawn_for_a_batch_that_timed_out_is_not_lost(cluster):
    group = cluster(2)
    write(group.client, range(3))
    with pytest.raises(errors.ReplayDeadlineExceeded):
        group.client.sample_batch("table", 4, timeout_s=0.01)
    write(group.client, range(10, 13))
    assert sorted(group.client.sample_batch("table", 4, timeout_s=WAIT_S).data["x"].tolist()) == [0, 1, 10, 11]


def test_close_wakes_a_blocked_reader(cluster, watch):
    group = cluster(2)
    tables = [server.tables["table"] for server in group.servers]
    probes = [watch(table) for table in tables]
    batches = group.client.batches("table", 4, prefetch=0)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reading = pool.submit(list, batches)
        for probe in probes:
            probe.wait_until(lambda info: info.sample_stats.pending == 2)
        batches.close()
        assert reading.result(WAIT_S) == []


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(sharded_batch, "_PATIENCE_S", 0.01)


@pytest.mark.parametrize("batch_size", [1, 5, 8])
def test_where_nobody_writes_nobody_waits(cluster, impatient, batch_size):
    group = cluster(3)
    with group.client.trajectory_writer(1) as writer:  # one writer, so one server
        for value in range(100):
            writer.append({"x": value})
            writer.create_item("table", 1.0, {"x": writer.history["x"][-1]})
    got = []
    for _ in range(40 // batch_size):
        got += group.client.sample_batch("table", batch_size, timeout_s=WAIT_S).data["x"].tolist()
    assert got == list(range(40 // batch_size * batch_size))
    for value in (200, 300, 400):  # now there is something everywhere
        write(group.client, range(value, value + 100))
    with group.client.batches("table", 6) as batches:
        seen = [value for batch in itertools.islice(batches, 8) for value in batch.data["x"].tolist()]
    assert len(set(seen)) == 48
    assert len({value // 100 for value in seen}) > 1


def test_writers_that_all_wait_at_one_server_do_not_hold_up_the_reader(cluster, impatient):
    """Each server has a limiter of its own: its samples let its writers go on, whatever the others have."""
    group = cluster(2, rate_limiter=rate_limiters.Queue(10), max_size=1000)
    writers = [group.client.trajectory_writer(1) for _ in range(3)]  # the second goes to the second server

    def write_on(writer, first):
        for value in range(first, first + 60):
            writer.append({"x": value})
            writer.create_item("table", 1.0, {"x": writer.history["x"][-1]})
            writer.flush(1)
        writer.flush()

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        writing = [pool.submit(write_on, writers[number], first) for number, first in ((0, 0), (2, 100))]
        got = []
        for _ in range(15):
            got += group.client.sample_batch("table", 8, timeout_s=WAIT_S).data["x"].tolist()
        for future in writing:
            future.result(WAIT_S)
    assert sorted(got) == [*range(60), *range(100, 160)]
    for writer in writers:
        writer.close()


def test_what_comes_too_late_for_one_batch_is_part_of_another(cluster, impatient, watch):
    group = cluster(2)
    write(group.client, range(4))
    assert group.client.sample_batch("table", 4, timeout_s=None).data["x"].tolist() == [0, 1, 2, 3]
    (kept,) = [future for futures in group.client._sharded._kept.values() for future in futures]
    assert not kept.done()
    write(group.client, range(10, 14))  # to the second
    assert kept.result(WAIT_S).keys.size == 2
    write(group.client, range(20, 24))
    got = group.client.sample_batch("table", 4, timeout_s=WAIT_S).data["x"].tolist()
    assert {10, 11} < set(got)
    assert set(got) - {10, 11} in ({20, 21}, {12, 13})  # the latter where the first did not answer in time again


def test_the_others_go_on_when_one_goes_away(cluster, caplog):
    group = cluster(3)
    for first in range(0, 30, 10):
        write(group.client, range(first, first + 10))
    keys = group.client.sample_batch("table", 3).info.key
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(group.client.sample_batch, "table", 30)  # more than there is: it is cut off
        group.servers[1].stop()
        write_later = [group.client.trajectory_writer(1) for _ in range(2)]
        for first, writer in zip((40, 60), write_later, strict=True):
            with writer:
                for value in range(first, first + 20):
                    writer.append({"x": value})
                    writer.create_item("table", 1.0, {"x": writer.history["x"][-1]})
        batch = waiting.result(WAIT_S)
    assert len(batch.data["x"]) == 30
    assert group.client.sample_batch("table", 4).info.key.size == 4
    assert "went away" in caplog.text
    assert group.client.update_priorities("table", keys, np.ones(3)) == 0
    assert group.client.server_info()["table"].max_size == 2000


def test_a_server_that_is_back_takes_part_again(cluster):
    group = cluster(2)
    group.client.server_info()
    group.servers[0].stop()
    pause = threading.Event()

    def until_it_is_left_out():
        # A server that is about to end may still answer the question whether it is there.
        while group.client.link.living() != [1]:
            pause.wait(0.005)

    within(WAIT_S, until_it_is_left_out)
    group.servers[0] = replay.Server([group.table()], address=group.addresses[0])
    group.servers[0].start()

    def until_it_is_back():
        while group.client.link.living() != [0, 1]:
            pause.wait(0.005)

    within(WAIT_S, until_it_is_back)
    for value in range(4):
        group.client.insert({"x": value}, {"table": 1.0})
    assert group.sizes() == [2, 2]


def test_a_server_that_is_about_to_end_is_not_taken_for_one_that_is_back(cluster, caplog):
    group = cluster(2)
    group.client.server_info()
    service, asked = group.servers[0]._service, threading.Event()
    present = service.present
    service.present = lambda: (present(), asked.set())[0]
    service.close()  # the first half of its stop: it still takes calls
    assert asked.wait(WAIT_S)
    group.client.link._shards[0].link.submit("server_info").result(WAIT_S)  # comes after an answer to what was asked
    assert group.client.link.living() == [1]
    assert "is back" not in caplog.text


def test_all_gone(cluster):
    group = cluster(2)
    gone = threading.Barrier(3)
    for shard in group.client.link._shards:
        shard._probe = lambda: threading.Thread(target=gone.wait, args=(WAIT_S,)).start()
    group.client.server_info()
    for server in group.servers:
        server.stop()
    gone.wait(WAIT_S)
    with pytest.raises(errors.ConnectionBroken, match="all 2 shards of the replay service went away"):
        group.client.server_info()


def test_pickling_and_bad_arguments(cluster):
    group = cluster(2)
    group.client.insert({"x": 1}, {"table": 1.0})
    with pickle.loads(pickle.dumps(group.client)) as copy:
        assert copy.server_info()["table"].current_size == 1
        assert copy.server_address == ",".join(group.addresses)
    with pytest.raises(ValueError, match="needs 1 to 256 servers, got 0"):
        ShardedClient([])


def test_handles_become_one_client(monkeypatch):
    class FakeAddress:
        def __init__(self, name):
            self.name = name

        def resolve(self):
            return f"unix:/nowhere/{self.name}"

        def secret(self):
            return b""

    client = dereference({"replay": sharded([ReverbHandle(FakeAddress(i)) for i in range(2)])})["replay"]
    assert isinstance(client, ShardedClient)
    assert client.server_address == "unix:/nowhere/0,unix:/nowhere/1"


def test_what_was_drawn_with_repetitions_is_not_given_to_who_wants_none(cluster):
    group = cluster(2, max_times_sampled=0)
    write(group.client, [7])
    for _ in range(2):  # drawn from the first: twice the same; the other has nothing
        with pytest.raises(errors.ReplayDeadlineExceeded):
            group.client.sample_batch("table", 4, timeout_s=0.01)
    with pytest.raises(errors.ReplayDeadlineExceeded):
        group.client.sample_batch("table", 4, timeout_s=0.01, replacement=False)
    for value in (8, 9, 10):
        write(group.client, [value])
    batch = group.client.sample_batch("table", 4, timeout_s=WAIT_S, replacement=False)
    assert len(set(batch.info.key.tolist())) == 4
