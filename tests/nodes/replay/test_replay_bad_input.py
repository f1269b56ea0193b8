"""What one client gives in error is its own error: tables, and other clients, stay as they were."""

import threading
import time

import numpy as np
import pytest

from topology.errors import ReplayDeadlineExceeded, ReplayError
from topology.nodes import replay
from topology.nodes.replay import sample_call
from topology.nodes.replay.alarms import Alarms

WAIT_S = 20


def make_table(name="t", **changes):
    fifo, uniform = replay.selectors.Fifo(), replay.selectors.Uniform()
    settings = {"max_size": 100, "rate_limiter": replay.rate_limiters.MinSize(1), **changes}
    return replay.Table(name, uniform, fifo, **settings)


@pytest.fixture
def server():
    with replay.Server([make_table("t"), make_table("u")]) as running:
        yield running


@pytest.fixture
def clients(server):
    with replay.Client(server.address) as one, replay.Client(server.address) as other:
        one.insert({"x": 1.0}, {"t": 1.0, "u": 1.0})
        yield one, other


@pytest.mark.parametrize("batch_size", [2.0, 1.5, float("nan"), "2", None, 0, -1, 1 << 62])
def test_a_batch_size_that_is_none_is_refused_and_nobody_else_is_held_up(clients, batch_size):
    one, other = clients
    for replacement in (True, False):
        with pytest.raises(ValueError, match="table 't': batch_size must be"):
            one.sample_batch("t", batch_size, replacement=replacement)
    assert other.sample_batch("t", 1, timeout_s=WAIT_S).data["x"].shape == (1, 1)
    other.insert({"x": 2.0}, {"t": 1.0})
    assert other.server_info()["t"].current_size == 2
    batch_size = np.int64(2)  # any integer will do
    assert one.sample_batch("t", batch_size, timeout_s=WAIT_S).data["x"].shape == (2, 1)


def test_a_request_that_fails_in_the_table_ends_alone(server, clients, monkeypatch):
    one, other = clients
    core = server.tables["t"]._core
    draw = core._draw_some

    def fail_for_seven(request):
        if request.count == 7:
            raise ArithmeticError("seven")
        return draw(request)

    monkeypatch.setattr(core, "_draw_some", fail_for_seven)
    with pytest.raises(ArithmeticError, match="seven"):
        one.sample_batch("t", 7, timeout_s=WAIT_S)
    assert other.sample_batch("t", 3, timeout_s=WAIT_S).data["x"].shape == (3, 1)


def test_a_time_that_is_not_a_number_is_refused_and_other_times_still_pass(clients):
    one, other = clients
    one.reset("t")
    one.reset("u")
    ahead = one.batches("t", 1, timeout_s=3, prefetch=0)
    waiting = threading.Thread(target=list, args=(ahead,))
    waiting.start()
    with pytest.raises(ValueError, match="timeout_s must be seconds"):
        other.sample_batch("t", 1, timeout_s=float("nan"))
    for table in ("u", "t"):
        with pytest.raises(ReplayDeadlineExceeded, match="no 1 samples"):
            other.sample_batch(table, 1, timeout_s=0.1)
    waiting.join(WAIT_S)
    assert ahead.timed_out
    with pytest.raises(ValueError, match="nan"):
        Alarms().schedule(float("nan"), print)


def test_a_time_beyond_all_timers_is_for_ever(clients):
    assert clients[0].sample_batch("t", 1, timeout_s=float("inf")).data["x"].shape == (1, 1)
    assert clients[0].sample_batch("t", 1, timeout_s=1e300).data["x"].shape == (1, 1)


@pytest.mark.parametrize("address", ["unix:/tmp/nobody-serves-here", "localhost:1"])
def test_the_time_passes_also_where_nobody_answers(address):
    with replay.Client(address) as client:
        began = time.monotonic()
        with pytest.raises(ReplayDeadlineExceeded, match=f"the replay server at {address} did not answer"):
            client.sample_batch("t", 1, timeout_s=0.1)
        with (
            pytest.raises(ReplayDeadlineExceeded, match="did not answer"),
            client.batches("t", 1, timeout_s=0.1) as all_,
        ):
            next(all_)
        assert time.monotonic() - began < WAIT_S


def test_a_client_of_no_address_is_refused():
    for address in ("foo", "", "host:port", "unix:"):
        with pytest.raises(ValueError, match="is no address"):
            replay.Client(address)


@pytest.mark.parametrize("size", [float("nan"), 1.5, "10", 0, 1 << 70])
def test_sizes_are_integers(clients, size):
    with pytest.raises(ValueError, match="table 't': max_size must be"):
        clients[0].resize("t", size)
    assert clients[0].server_info()["t"].max_size == 100
    with pytest.raises(ValueError, match="table 't': max_size must be"):
        make_table(max_size=size)


@pytest.mark.parametrize("times", [1.5, float("nan"), -1])
def test_times_sampled_are_integers(times):
    with pytest.raises(ValueError, match="max_times_sampled must be"):
        make_table(max_times_sampled=times)


def test_limits_are_integers():
    for size in (1.5, float("nan"), 0):
        with pytest.raises(ValueError, match="must be a positive integer"):
            replay.rate_limiters.MinSize(size)


def test_what_is_no_table_and_no_compression_is_refused():
    with pytest.raises(ValueError, match="made by Table"):
        replay.Server([3])
    with pytest.raises(ValueError, match="which column has which codec"):
        replay.Server([make_table()], compression="zlib")
    with pytest.raises(ValueError, match="port=70000"):
        replay.Server([make_table()], port=70_000)


@pytest.mark.parametrize(
    "keys",
    [
        [1.5],
        np.array([1.0]),
        np.array([3], np.uint32),
        np.array([3], np.int32),
        [-1],
        np.array([-1]),
        [1 << 64],
        ["a"],
        [None],
        np.array([True]),
    ],
)
def test_keys_are_integers_of_64_bits(clients, keys):
    one, _ = clients
    by_key = lambda: one.mutate_priorities("t", updates=dict.fromkeys(list(keys), 9.0))  # noqa: E731
    for call in (
        by_key,
        lambda: one.update_priorities("t", keys, [9.0]),
        lambda: one.mutate_priorities("t", updates={0: 9.0}, deletes=keys),
    ):
        if call is by_key and getattr(keys, "dtype", None) in (np.int32, np.uint32):
            continue  # a key of a dict is any integer
        with pytest.raises(ValueError, match="table 't': keys are"):
            call()
    batch = one.sample_batch("t", 1)
    assert batch.info.priority.tolist() == [1.0]
    key = batch.info.key[0]
    assert [one.update_priorities("t", same, [2.0]) for same in ([key], (int(key),), np.array([key], np.int64))] == [
        1
    ] * 3
    assert one.update_priorities("t", [], []) == one.mutate_priorities("t", updates={}, deletes=[]) == 0
    assert one.mutate_priorities("t", deletes=key) == 1


def test_an_insert_into_several_tables_is_into_all_or_none(clients):
    one, _ = clients
    for priorities in (
        {"t": 1.0, "nowhere": 1.0},
        {"t": 1.0, "u": -1.0},
        {"t": 1.0, "u": float("nan")},
        {"t": 1.0, "u": "x"},
    ):
        with pytest.raises((ValueError, ReplayError), match="table"):
            one.insert({"x": 1.0}, priorities)
    assert [info.current_size for info in one.server_info().values()] == [1, 1]


def test_priorities_are_numbers(clients):
    with clients[0].trajectory_writer(1) as writer:
        writer.append({"x": 2.0})
        for wrong in ("high", None, [1.0, 2.0]):
            with pytest.raises((TypeError, ValueError), match="table 't': a priority is a number, got"):
                writer.create_item("t", wrong, writer.history["x"][-1:])
        for period in (0, -1, 1.5):
            with pytest.raises(ValueError, match=r"period .* must be a positive integer"):
                writer.create_items("t", [1.0, 2.0], writer.history["x"][-1:], period=period)


def test_counts_of_writers_and_readers_are_integers(clients):
    one, _ = clients
    for wrong in (1.5, float("nan"), "3", None, 0):
        with pytest.raises(ValueError, match=r"num_keep_alive_refs .* must be a positive integer"):
            one.trajectory_writer(wrong)
        with pytest.raises(ValueError, match=r"max_sequence_length .* must be a positive integer"):
            one.writer(wrong)
    for wrong in (1.5, "3", None, -1):
        with pytest.raises(ValueError, match="table 't': num_samples must be"):
            one.sample("t", wrong)
    assert list(one.sample("t", 0)) == []
    for wrong in (float("nan"), "soon"):
        with pytest.raises(ValueError, match="timeout must be seconds"):
            one.server_info(wrong)
    for wrong in (-1, 1.5, "x"):
        with pytest.raises(ValueError, match="table 't': seed must be"):
            make_table(seed=wrong)
    for wrong in (float("inf"), float("nan"), 0, -1):
        with pytest.raises(ValueError, match="samples_per_insert must be above 0 and finite"):
            replay.rate_limiters.RateLimiter(wrong, 1, 0.0, 1.0)
    with pytest.raises(ValueError, match="keep_latest must be an integer"):
        replay.DefaultCheckpointer("/tmp", keep_latest=1.5)


def test_columns_are_indexed_by_any_integer(clients):
    with clients[0].trajectory_writer(3) as writer:
        for value in range(3):
            writer.append({"x": value})
        column = writer.history["x"][-3:]
        assert column[np.int64(1)].numpy() == 1
        with pytest.raises(IndexError, match=r"TrajectoryColumn x .*: index 3 is out of range, it has 3 steps"):
            column[3]


def test_a_batch_for_which_there_is_no_memory_is_not_lost(serve, monkeypatch):
    client = serve(replay.Table.queue("queue", 10))
    for value in range(4):
        client.insert({"x": value}, {"queue": 1.0})
    gather = sample_call.gather

    def refuse(picks, *options):
        if sum(each.size for each in picks) > 3:
            raise MemoryError("Unable to allocate")
        return gather(picks, *options)

    monkeypatch.setattr(sample_call, "gather", refuse)
    with pytest.raises(ReplayError, match="no memory for a batch of 4 items, 32 bytes: ask for fewer at a time"):
        client.sample_batch("queue", 4, timeout_s=WAIT_S)
    got = [client.sample_batch("queue", 2, timeout_s=WAIT_S).data["x"][:, 0].tolist() for _ in range(2)]
    assert got == [[0, 1], [2, 3]]
