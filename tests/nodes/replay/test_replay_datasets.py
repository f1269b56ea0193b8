"""Datasets: the chain, and those over tables."""

import concurrent.futures
import gc
import threading

import numpy as np
import pytest

from topology import errors
from topology.nodes import replay
from topology.nodes.replay import selectors
from topology.nodes.replay.chain import Dataset
from topology.nodes.replay.datasets import DatasetOptions, TimestepDataset, TrajectoryDataset

WAIT_S = 20
SIGNATURE = {"x": replay.Spec((None,), np.int64), "r": replay.Spec((None,), np.float64)}


def fill(client, count, table="table", length=1, first=0):
    with client.trajectory_writer(length) as writer:
        for value in range(first, first + count + length - 1):
            writer.append({"x": value, "r": value / 2})
            if value >= first + length - 1:
                writer.create_item(table, 1.0, {k: v[-length:] for k, v in writer.history.items()})


@pytest.fixture
def server():
    table = replay.Table.queue("table", 1000, SIGNATURE)
    with replay.Server([table, replay.Table.queue("plain", 1000)]) as running, running.localhost_client() as client:
        running.client = client
        running.table = table
        yield running


def dataset(server, kind=TrajectoryDataset, in_flight=1, **options):
    options.setdefault("rate_limiter_timeout_ms", 0)
    return kind.from_table_signature(server.address, "table", in_flight, **options)


def completed(server):
    return server.table.info.rate_limiter_info.sample_stats.completed


# --- the chain -------------------------------------------------------------------------------------------------------


class Numbers:
    def __init__(self, count, log=None):
        self.values = iter(range(count))
        self.log = [] if log is None else log
        self.closed = False

    def __next__(self):
        if self.closed:
            raise StopIteration
        value = next(self.values)
        self.log.append(value)
        return value

    def close(self):
        self.closed = True


def numbers(count, log=None):
    return Dataset(lambda: Numbers(count, log), replay.Spec((), np.int64))


def test_chain():
    assert list(numbers(5)) == [0, 1, 2, 3, 4]
    assert list(numbers(5).map(lambda x: x * x)) == [0, 1, 4, 9, 16]
    assert list(numbers(5).take(2)) == [0, 1]
    assert list(numbers(5).take(-1)) == [0, 1, 2, 3, 4]
    assert list(numbers(2).repeat(3)) == [0, 1] * 3
    assert list(numbers(2).repeat().take(5)) == [0, 1, 0, 1, 0]
    assert list(numbers(0).repeat()) == []
    assert list(numbers(5).prefetch(2)) == [0, 1, 2, 3, 4]
    assert [batch.tolist() for batch in numbers(5).batch(2)] == [[0, 1], [2, 3], [4]]
    assert [batch.tolist() for batch in numbers(5).batch(2, drop_remainder=True)] == [[0, 1], [2, 3]]
    assert [batch.tolist() for batch in numbers(5).batch(2, drop_remainder=True).batch(2)] == [[[0, 1], [2, 3]]]
    assert next(numbers(5).as_numpy_iterator()) == 0
    data = numbers(3)
    assert list(data) == list(data) == [0, 1, 2]


def test_specs_of_the_chain():
    data = numbers(5)
    assert data.batch(2).element_spec == replay.Spec((None,), np.int64)
    assert data.batch(2, drop_remainder=True).take(3).repeat().prefetch().element_spec == replay.Spec((2,), np.int64)
    assert data.map(str).element_spec is None


def test_batches_keep_structures():
    data = numbers(4).map(lambda x: replay.ReplaySample(x, {"a": np.full(2, x)})).batch(2)
    first = next(iter(data))
    assert type(first) is replay.ReplaySample
    assert first.data["a"].tolist() == [[0, 0], [1, 1]]


def test_take_asks_for_nothing_beyond():
    log = []
    assert list(numbers(5, log).take(2)) == [0, 1]
    assert log == [0, 1]


def test_bad_sizes():
    for make in (lambda: numbers(1).batch(0), lambda: numbers(1).prefetch(0)):
        with pytest.raises(ValueError, match="must be at least 1"):
            make()


def test_prefetch_is_bounded_and_puts():
    log, reached, go_on = [], threading.Event(), threading.Event()

    def put(value):
        if value == 2:
            reached.set()
            assert go_on.wait(WAIT_S)
        return -value

    with iter(numbers(50, log).prefetch(3, put=put)) as values:
        assert next(values) == 0
        assert reached.wait(WAIT_S)
        go_on.set()
        assert next(values) == -1
        assert [next(values) for _ in range(3)] == [-2, -3, -4]
        assert len(log) <= 5 + 4
        assert threading.current_thread() is threading.main_thread()
    assert list(values) == []


def test_errors_pass_through_a_prefetch():
    def fail(value):
        raise KeyError(value)

    with iter(numbers(3).map(fail).prefetch(1)) as values, pytest.raises(KeyError):
        next(values)


def test_an_iterator_that_is_dropped_ends_its_thread():
    before = threading.active_count()
    values = iter(numbers(1000).prefetch(2))
    next(values)
    assert threading.active_count() == before + 1
    del values
    gc.collect()
    assert threading.active_count() == before


# --- over tables -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"max_in_flight_samples_per_worker": 0}, "max_in_flight_samples_per_worker"),
        ({"max_in_flight_samples_per_worker": -1}, "max_in_flight_samples_per_worker"),
        ({"num_workers_per_iterator": 0}, "num_workers_per_iterator"),
        ({"num_workers_per_iterator": -2}, "num_workers_per_iterator"),
        ({"max_samples_per_stream": 0}, "max_samples_per_stream"),
        ({"max_samples_per_stream": -2}, "max_samples_per_stream"),
        ({"max_samples": 0}, "max_samples"),
        ({"rate_limiter_timeout_ms": -2}, "rate_limiter_timeout_ms"),
    ],
)
def test_options(options, match):
    with pytest.raises(ValueError, match=match):
        TrajectoryDataset("unix:/x", "table", np.int64, (), **{"max_in_flight_samples_per_worker": 1, **options})
    assert DatasetOptions(max_in_flight_samples_per_worker=3, num_workers_per_iterator=2).in_flight == 6


def test_items_in_order(server):
    fill(server.client, 20)
    data = dataset(server, in_flight=7, num_workers_per_iterator=2)
    assert data.element_spec.data == SIGNATURE
    samples = list(data)
    assert [sample.data["x"].tolist() for sample in samples] == [[i] for i in range(20)]
    info = samples[0].info
    assert info.key.dtype == np.uint64
    assert info.key.shape == ()


def test_items_of_any_length(server):
    for length in (1, 3, 10):
        fill(server.client, 2, length=length)
    assert [len(sample.data["x"]) for sample in dataset(server)] == [1, 1, 3, 3, 10, 10]


def test_batches_are_those_of_the_server(server):
    fill(server.client, 20, length=3)
    data = dataset(server, in_flight=16).batch(8, drop_remainder=True)
    assert data.element_spec.data["x"] == replay.Spec((8, None), np.int64)
    batches = list(data)
    assert [batch.data["x"].shape for batch in batches] == [(8, 3), (8, 3)]
    assert batches[1].data["x"][:, 0].tolist() == list(range(8, 16))
    assert batches[0].info.priority.shape == (8,)
    # What was drawn for the batch that did not become full is for the next reader.
    assert [sample.data["x"][0] for sample in dataset(server)] == [16, 17, 18, 19]


def test_the_rest_at_a_timeout(server):
    fill(server.client, 20)
    batches = list(dataset(server).batch(8))
    assert [len(batch.data["x"]) for batch in batches] == [8, 8, 4]
    assert batches[2].data["x"].ravel().tolist() == [16, 17, 18, 19]
    assert list(dataset(server).batch(8)) == []


@pytest.mark.parametrize(
    ("in_flight", "batch", "drawn"), [(1, None, 1), (5, None, 5), (1, 4, 4), (8, 4, 8), (13, 4, 12)]
)
def test_no_more_is_drawn_than_allowed(server, in_flight, batch, drawn):
    fill(server.client, 50)
    data = dataset(server, in_flight=in_flight, rate_limiter_timeout_ms=-1)
    with iter(data if batch is None else data.batch(batch)) as samples:
        next(samples)
        server.client.server_info()
        replay.Client(server.address).__enter__().close()
        samples.close()
        assert completed(server) <= drawn


@pytest.mark.parametrize("count", [1, 7, 16])
@pytest.mark.parametrize("in_flight", [1, 3, 100])
def test_max_samples(server, count, in_flight):
    fill(server.client, 20)
    assert len(list(dataset(server, in_flight=in_flight, max_samples=count))) == count
    assert completed(server) == count


def test_max_samples_of_batches(server):
    fill(server.client, 20)
    sizes = [len(b.data["x"]) for b in dataset(server, in_flight=8, max_samples=10).batch(4)]
    assert sizes == [4, 4, 2]
    assert completed(server) == 10
    sizes = [len(b.data["x"]) for b in dataset(server, in_flight=8, max_samples=7).batch(4, drop_remainder=True)]
    assert sizes == [4]
    assert completed(server) == 14


def test_timeouts_end_the_iteration(server):
    assert list(dataset(server)) == []
    assert list(dataset(server, rate_limiter_timeout_ms=20).batch(2)) == []
    fill(server.client, 1)
    assert len(list(dataset(server, rate_limiter_timeout_ms=20))) == 1


def test_close_wakes_a_blocked_reader(server, watch):
    probe = watch(server.table)
    for chain in (lambda d: d, lambda d: d.batch(2).prefetch(1), lambda d: d.map(lambda x: x).repeat()):
        samples = iter(chain(dataset(server, rate_limiter_timeout_ms=-1)))
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            reading = pool.submit(list, samples)
            probe.wait_until(lambda info: info.sample_stats.pending > 0)
            samples.close()
            assert reading.result(WAIT_S) == []
            probe.wait_until(lambda info: info.sample_stats.pending == 0)


def test_two_iterators_share_the_items(server):
    fill(server.client, 20)
    data = dataset(server)
    first, second = iter(data), iter(data)
    values = [int(next(each).data["x"][0]) for _ in range(10) for each in (first, second)]
    assert sorted(values) == list(range(20))
    first.close()
    second.close()


def test_steps(server):
    fill(server.client, 3, length=4)
    data = dataset(server, TimestepDataset)
    assert data.element_spec.data["x"] == replay.Spec((), np.int64)
    steps = list(data)
    assert [int(step.data["x"]) for step in steps] == [i + t for i in range(3) for t in range(4)]
    assert len({int(step.info.key) for step in steps}) == 3
    fill(server.client, 3, length=4)
    assert next(iter(data.batch(6))).data["x"].tolist() == [0, 1, 2, 3, 1, 2]


def test_an_item_that_is_no_sequence_of_steps(server):
    with server.client.trajectory_writer(3) as writer:
        for value in range(3):
            writer.append({"x": value, "r": value / 2})
        writer.create_item("plain", 1.0, {"x": writer.history["x"][:], "r": writer.history["r"][-2:]})
    data = TimestepDataset(
        server.client, "plain", {"x": np.int64, "r": np.float64}, {"x": (), "r": ()}, max_in_flight_samples_per_worker=1
    )
    with pytest.raises(ValueError, match="not a sequence of steps: use TrajectoryDataset"):
        next(iter(data))


def test_what_was_told_is_compared_with_what_comes(server):
    fill(server.client, 5, table="plain")
    make = lambda dtypes, shapes: next(  # noqa: E731
        iter(TrajectoryDataset(server.client, "plain", dtypes, shapes, max_in_flight_samples_per_worker=1))
    )
    assert make({"x": np.int64, "r": np.float64}, {"x": [None], "r": (1,)}).data["x"].tolist() == [0]
    with pytest.raises(ValueError, match="the items have 2 columns, the dataset was told of 1"):
        make({"x": np.int64}, {"x": [None]})
    with pytest.raises(ValueError, match=r"column x is <int64\[1\]>, the dataset was told <int32\[\?\]>"):
        make({"x": np.int32, "r": np.float64}, {"x": [None], "r": [None]})
    with pytest.raises(ValueError, match=r"column r is <float64\[1\]>, the dataset was told <float64\[2\]>"):
        make({"x": np.int64, "r": np.float64}, {"x": [None], "r": [2]})
    with pytest.raises(ValueError, match="shapes has nothing at r"):
        make({"x": np.int64, "r": np.float64}, {"x": [None]})


def test_signatures_that_cannot_be_had(server):
    with pytest.raises(errors.TableNotFound, match=r"no table 'nowhere' at .*; its tables are plain, table"):
        TrajectoryDataset.from_table_signature(server.address, "nowhere", 1)
    with pytest.raises(ValueError, match=r"'plain' at .* has no signature"):
        TrajectoryDataset.from_table_signature(server.address, "plain", 1)
    with pytest.raises(errors.ReplayDeadlineExceeded):
        TrajectoryDataset.from_table_signature("unix:/nowhere/s", "table", 1, get_signature_timeout_secs=0.05)


def test_over_several_servers(make_table):
    servers = [
        replay.Server([make_table(sampler=selectors.Fifo(), max_times_sampled=1, signature=SIGNATURE)])
        for _ in range(2)
    ]
    for server in servers:
        server.start()
        with server.localhost_client() as client:
            fill(client, 4)
    addresses = ",".join(server.address for server in servers)
    with iter(TrajectoryDataset.from_table_signature(addresses, "table", 4).batch(4)) as batches:
        got = [next(batches).data["x"].ravel().tolist() for _ in range(2)]
    assert got == [[0, 1, 0, 1], [2, 3, 2, 3]]
    for server in servers:
        server.stop()


def test_a_local_loop_that_looks_first_never_blocks(make_table):
    """A program of one thread asks `can_sample` before it samples; nothing may be drawn ahead of it."""
    limiter = replay.rate_limiters.SampleToInsertRatio(2.0, 4, 8.0)
    table = make_table(rate_limiter=limiter, signature=SIGNATURE)
    with replay.Server([table]) as server, server.localhost_client() as client:
        data = TrajectoryDataset.from_table_signature(client, "table", 1, rate_limiter_timeout_ms=0)
        sampled = 0
        with iter(data.batch(2, drop_remainder=True)) as batches:
            for step in range(50):
                if table.can_insert(1):
                    fill(client, 1, first=step)
                while table.can_sample(2):
                    assert next(batches).info.key.size == 2
                    sampled += 2
        assert completed_of(table) == sampled > 60


def completed_of(table):
    return table.info.rate_limiter_info.sample_stats.completed
