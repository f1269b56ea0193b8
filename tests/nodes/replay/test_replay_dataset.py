import concurrent.futures

import pytest

from topology import errors
from topology.nodes import replay
from topology.nodes.replay.dataset import BatchIterator
from topology.nodes.replay.links import SampleCallArguments
from topology.testing import ManualClock


def fill(client, values, table="queue"):
    with client.trajectory_writer(1) as writer:
        for value in values:
            writer.append(value)
            writer.create_item(table, 1.0, writer.history[-1])


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_batches_come_in_order(serve, prefetch):
    client = serve(replay.Table.queue("queue", 100))
    fill(client, range(60))
    with client.batches("queue", 5, prefetch=prefetch) as batches:
        got = [next(batches).data.tolist() for _ in range(12)]
    assert [value for batch in got for value in batch] == list(range(60))


def test_prefetch_takes_so_many_batches_and_no_more(serve, watch):
    table = replay.Table.queue("queue", 100)
    probe = watch(table)
    client = serve(table)
    fill(client, range(60))
    with client.batches("queue", 5, prefetch=2) as batches:
        next(batches)
        probe.wait_until(lambda info: info.sample_stats.completed >= 15)
        client.server_info()
        assert table.info.rate_limiter_info.sample_stats.completed == 15
    client = serve(table := replay.Table.queue("queue", 100))
    fill(client, range(60))
    with client.batches("queue", 5, prefetch=0) as batches:
        next(batches)
        assert table.info.rate_limiter_info.sample_stats.completed == 5


def test_close_wakes_a_blocked_reader_and_loses_nothing(serve, watch):
    table = replay.Table.queue("queue", 100)
    probe = watch(table)
    client = serve(table)
    fill(client, range(3))
    batches = client.batches("queue", 5, prefetch=1)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reading = pool.submit(list, batches)
        probe.wait_until(lambda info: info.sample_stats.pending == 7)
        batches.close()
        assert reading.result(10) == []
    assert list(batches) == []
    probe.wait_until(lambda info: info.sample_stats.pending == 0)  # what comes before the server knows is the reader's
    fill(client, range(3, 5))
    assert client.sample_batch("queue", 5, timeout_s=10).data.tolist() == [0, 1, 2, 3, 4]


def test_timeout_ends_the_iteration(serve):
    client = serve(replay.Table.queue("queue", 100))
    fill(client, range(10))
    assert [batch.data.tolist() for batch in client.batches("queue", 5, timeout_s=0)] == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8, 9],
    ]


def test_errors_reach_the_reader(serve, watch):
    client = serve(replay.Table.queue("queue", 100))
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        next(client.batches("queue", 0))
    with pytest.raises(ValueError, match="prefetch"):
        client.batches("queue", 1, prefetch=-1)
    probe = watch(*client.server.tables.values())
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reading = pool.submit(next, client.batches("queue", 1))
        probe.wait_until(lambda info: info.sample_stats.pending == 2)
        client.server.stop()
        with pytest.raises((errors.ReplayError, errors.CourierError)):
            reading.result(10)


def test_within_the_process_too(make_table):
    with replay.Server([make_table()]) as server, server.localhost_client() as client:
        fill(client, range(10), table="table")
        with client.batches("table", 4, prefetch=2) as batches:
            assert all(len(next(batches).data) == 4 for _ in range(20))


def test_a_batch_tells_how_old_it_may_be(serve):
    client = serve(replay.Table.queue("queue", 100))
    fill(client, range(20))
    clock = ManualClock()
    request = SampleCallArguments("queue", 2, None)
    batches = BatchIterator(lambda: client.link.submit_sample(request), client.assemble, prefetch=1, clock=clock)
    ages = []
    for _ in range(4):
        next(batches)
        ages.append(batches.age_s)
        clock.advance(3.0)
    batches.close()
    assert ages == [0.0, 3.0, 3.0, 3.0]
