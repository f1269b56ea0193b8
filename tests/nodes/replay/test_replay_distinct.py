"""Samples without replacement, and tables that change their size."""

import itertools

import numpy as np
import pytest

from topology.errors import ReplayDeadlineExceeded, ReplayError
from topology.nodes import replay
from topology.nodes.replay import rate_limiters, selectors
from topology.nodes.replay.requests import SampleRequest
from topology.nodes.replay.service import ReplayService


@pytest.fixture
def open_client():
    services = []

    def start(*tables):
        services.append(ReplayService(tables))
        return replay.Client("memory:x", service=services[-1])

    yield start
    for service in services:
        service.close()


def fill(client, priorities):
    with client.trajectory_writer(1) as writer:
        for value, priority in enumerate(priorities):
            writer.append(value)
            writer.create_item("table", priority, writer.history[-1])


def distinct(client, count, **options):
    return client.sample_batch("table", count, replacement=False, timeout_s=10, **options)


@pytest.mark.parametrize("sampler", [selectors.Uniform(), selectors.Prioritized(1.0)])
def test_no_item_is_twice_in_a_batch(open_client, make_table, sampler):
    client = open_client(make_table(sampler=sampler))
    fill(client, np.logspace(-6, 6, 50))
    for count in (1, 10, 49, 50):
        assert len(set(distinct(client, count).data.tolist())) == count
    info = client.server_info()["table"]
    assert info.rate_limiter_info.sample_stats.completed == 110


def test_the_order_of_draws_is_that_of_successive_sampling(open_client, make_table):
    weights = np.array([1.0, 2.0, 5.0, 0.0])
    client = open_client(make_table(sampler=selectors.Prioritized(1.0)))
    fill(client, weights)
    rounds = 6000
    counts = dict.fromkeys(itertools.permutations(range(3), 2), 0)
    for _ in range(rounds):
        counts[tuple(distinct(client, 2).data.tolist())] += 1
    chi_square = 0.0
    for (first, second), count in counts.items():
        expected = rounds * weights[first] / 8 * weights[second] / (8 - weights[first])
        chi_square += (count - expected) ** 2 / expected
    assert chi_square < 20.5  # five degrees of freedom, one in a thousand
    assert distinct(client, 4).data.tolist()[3] == 3  # without weight, so last


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (selectors.Fifo(), [0, 1, 2]),
        (selectors.Lifo(), [4, 3, 2]),
        (selectors.MinHeap(), [1, 3, 0]),
        (selectors.MaxHeap(), [4, 2, 0]),
    ],
)
def test_where_there_is_an_order_the_first_are_taken(open_client, make_table, sampler, expected):
    client = open_client(make_table(sampler=sampler))
    fill(client, [3.0, 1.0, 4.0, 2.0, 5.0])
    for _ in range(2):
        batch = distinct(client, 3)
        assert batch.data.tolist() == expected
        assert batch.info.probability.tolist() == [1.0] * 3


def test_a_batch_waits_until_there_are_enough_items(make_bench, make_table):
    bench, table = make_bench(), make_table()
    bench.insert(table, [0, 1])
    done = []
    request = SampleRequest(3, lambda picks, error: done.append(picks), distinct=True)
    assert not table.sample(request)
    bench.insert(table, [2])
    values, _ = bench.read(done[0])
    assert sorted(values) == [0, 1, 2]


def test_items_leave_after_their_last_sample(open_client, make_table):
    client = open_client(make_table(max_times_sampled=2))
    fill(client, [1.0] * 10)
    counts = np.bincount(np.concatenate([distinct(client, 5).data for _ in range(3)]), minlength=10)
    assert counts.max() == 2
    assert client.server_info()["table"].current_size == (counts < 2).sum()


def test_more_than_there_can_be(open_client, make_table):
    client = open_client(make_table(max_size=3))
    with pytest.raises(ValueError, match="4 distinct items were asked for, but it holds at most 3"):
        distinct(client, 4)


def test_resize(open_client, make_table):
    client = open_client(make_table(sampler=selectors.Fifo(), max_size=10))
    fill(client, [1.0] * 10)
    client.resize("table", 4)
    assert client.sample_batch("table", 1).data.tolist() == [6]
    info = client.server_info()["table"]
    assert (info.current_size, info.max_size) == (4, 4)
    client.resize("table", 6)
    fill(client, [1.0] * 3)
    assert client.server_info()["table"].current_size == 6
    with pytest.raises(ValueError, match="max_size must be at least 1, got 0"):
        client.resize("table", 0)


def test_a_table_cannot_become_smaller_than_its_limiter_needs(open_client, make_table):
    client = open_client(make_table(rate_limiter=rate_limiters.MinSize(5)))
    with pytest.raises(ValueError, match=r"min_size_to_sample \(5\) is above max_size \(4\)"):
        client.resize("table", 4)
    assert client.server_info()["table"].max_size == 1000


def test_where_the_time_of_a_table_goes(make_bench):
    bench, table = make_bench(), replay.Table.queue("queue", 1)
    bench.insert(table, [1, 2])
    first = table.info.table_worker_time
    assert table.info.table_worker_time.waiting_for_sampling_ms >= first.waiting_for_sampling_ms
    assert first.waiting_for_inserts_ms == 0
    bench.sample(table, 2).result(0)
    bench.sample(table, 1)
    assert table.info.table_worker_time.sleeping_ms >= 0


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_what_was_drawn_for_a_batch_that_was_given_up_is_not_lost(open_client, make_table, limit):
    """Also to those who only ever ask for distinct items; and no item is twice in what they get."""
    client = open_client(make_table(sampler=selectors.Fifo(), max_times_sampled=limit))
    for first in (0, 2, 4):
        with client.trajectory_writer(1) as writer:
            for value in (first, first + 1):
                writer.append(value)
                writer.create_item("table", 1.0, writer.history[-1])
        with pytest.raises(ReplayDeadlineExceeded):
            client.sample_batch("table", first + 3, replacement=False, timeout_s=0.01)
    assert sorted(distinct(client, 6).data.tolist()) == list(range(6))
    if limit == 1:
        assert client.server_info()["table"].rate_limiter_info.sample_stats.completed == 6


def test_samples_left_over_with_repetitions(make_bench, make_table):
    bench, table = make_bench(), make_table(sampler=selectors.Fifo(), max_times_sampled=4, max_size=10)
    sampling = bench.sample(table, 7)
    bench.insert(table, [1])  # four times
    table.cancel(sampling.request, ReplayError("given up"))
    bench.insert(table, [2, 3])
    drawn = []
    request = SampleRequest(3, lambda picks, error: drawn.extend(picks), distinct=True)
    table.sample(request)
    values, picks = bench.read(drawn)
    assert values == [1, 2, 3]
    assert picks.times_sampled.tolist() == [1, 1, 1]
    assert bench.sample(table, 5).result(0)[0] == [1, 1, 1, 2, 2]
