"""The client and the server over a real courier connection."""

import concurrent.futures
import itertools
import logging.handlers
import pickle
import queue
import subprocess
import sys
import time
from typing import NamedTuple

import numpy as np
import pytest

from topology import errors
from topology.context import NodeContext, bind_context
from topology.nodes import replay
from topology.nodes.replay import selectors, stopping
from topology.nodes.replay.service import ReplayService
from topology.testing import ManualClock

FIFO = selectors.Fifo()
WAIT_S = 20


class Transition(NamedTuple):
    observation: object
    action: object
    reward: object


def write(client, values, table="table", **options):
    with client.trajectory_writer(1, **options) as writer:
        for value in values:
            writer.append({"x": value})
            writer.create_item(table, 1.0, {"x": writer.history["x"][-1]})


def test_batches_come_back_in_the_structure_of_the_items(serve, make_table):
    client = serve(make_table(sampler=FIFO, max_times_sampled=1))
    with client.trajectory_writer(3) as writer:
        for t in range(6):
            writer.append(
                {"o": {"pixels": np.full((4, 4), t, np.uint8), "joints": [np.float32(t)]}, "a": t, "r": t / 2}
            )
            if t >= 2:
                history = writer.history
                item = Transition(
                    observation={"pixels": history["o"]["pixels"][-3:], "last": history["o"]["joints"][0][-1]},
                    action=(history["a"][-3:-1], history["a"][-1]),
                    reward=history["r"][-2:],
                )
                writer.create_item("table", 1.0 + t, item)
    sample = client.sample_batch("table", 4)
    assert isinstance(sample, replay.ReplaySample)
    assert type(sample.data) is Transition
    assert sample.data.observation["pixels"].shape == (4, 3, 4, 4)
    assert sample.data.observation["pixels"].flags.c_contiguous
    assert sample.data.observation["pixels"][:, :, 0, 0].tolist() == [[t - 2, t - 1, t] for t in range(2, 6)]
    assert sample.data.observation["last"].tolist() == [2, 3, 4, 5]
    assert sample.data.action[0].tolist() == [[t - 2, t - 1] for t in range(2, 6)]
    assert sample.data.action[1].tolist() == [2, 3, 4, 5]
    assert sample.data.reward.tolist() == [[(t - 1) / 2, t / 2] for t in range(2, 6)]
    info = sample.info
    assert info.key.dtype == np.uint64
    assert info.probability.tolist() == [1.0] * 4
    assert info.priority.tolist() == [3.0, 4.0, 5.0, 6.0]
    assert info.times_sampled.tolist() == [1] * 4
    assert info.table_size.dtype == np.int64


def test_items_of_several_lengths(serve, make_table):
    client = serve(make_table(sampler=FIFO, max_times_sampled=1))
    with client.trajectory_writer(10) as writer:
        for t in range(1, 5):
            writer.append({"x": t})
            writer.create_item("table", 1.0, {"x": writer.history["x"][:]})
    lengths = [len(sample.data[0]) for sample in client.sample("table", 2, emit_timesteps=False)]
    assert lengths == [1, 2]
    with pytest.raises(errors.ReplayError, match=r"2 items drawn do not make one batch.*x int64\[3\]; x int64\[4\]"):
        client.sample_batch("table", 2)


def test_items_of_one_shape_make_a_batch_whatever_steps_they_span(serve, make_table):
    client = serve(make_table(sampler=FIFO, max_times_sampled=1))
    with client.trajectory_writer(10) as writer:
        for t in range(5):
            writer.append({"x": t, **({"late": 1} if t > 2 else {})})
            if t:
                writer.create_item("table", 1.0, {"x": writer.history["x"][[0, t]]})
    assert client.sample_batch("table", 4).data["x"].tolist() == [[0, 1], [0, 2], [0, 3], [0, 4]]


def test_sample_gives_steps_or_trajectories(serve, make_table):
    signature = {"b": replay.Spec((None,), np.int64), "a": replay.Spec((None,), np.float64)}
    client = serve(make_table(sampler=FIFO, signature=signature))
    with client.trajectory_writer(3) as writer:
        for t in range(3):
            writer.append({"a": t / 2, "b": t})
        writer.create_item("table", 2.0, {k: v[:] for k, v in writer.history.items()})
    (steps,) = client.sample("table")
    assert [step.data for step in steps] == [[0.0, 0], [0.5, 1], [1.0, 2]]
    assert type(steps[0].info.key) is int
    assert steps[0].info.priority == 2.0
    (steps,) = client.sample("table", unpack_as_table_signature=True)
    assert steps[2].data == {"a": 1.0, "b": 2}
    (whole,) = client.sample("table", emit_timesteps=False, unpack_as_table_signature=True)
    assert whole.data["b"].tolist() == [0, 1, 2]
    (flat,) = client.sample("table", emit_timesteps=False)
    assert isinstance(flat.data, list)


def test_an_item_without_common_length_has_no_timesteps(serve, make_table):
    client = serve(make_table())
    with client.trajectory_writer(3) as writer:
        writer.append({"o": 0})
        writer.append({"o": 1, "a": 7})
        writer.create_item("table", 1.0, {"o": writer.history["o"][:], "a": writer.history["a"][1:]})
    with pytest.raises(ValueError, match="emit_timesteps=False"):
        next(client.sample("table"))
    data = client.sample_batch("table", 3).data
    assert (data["o"].shape, data["a"].shape) == ((3, 2), (3, 1))


def test_insert_makes_a_trajectory_of_one_step_in_every_table(serve, make_table):
    client = serve(make_table("one"), make_table("two"))
    client.insert({"x": np.ones(3)}, {"one": 1.0, "two": 5.0})
    assert client.sample_batch("one", 1).data["x"].shape == (1, 1, 3)
    assert client.sample_batch("two", 1).info.priority.tolist() == [5.0]
    assert client.server._service.store.live_rows == 1
    with pytest.raises(ValueError, match="at least one"):
        client.insert(1, {})


def test_priorities_change_frequencies_and_unknown_keys_are_ignored(serve, make_table):
    client = serve(make_table(sampler=selectors.Prioritized(1.0)))
    write(client, range(4))
    sample = client.sample_batch("table", 100)
    keys = np.unique(sample.info.key)
    assert keys.size == 4
    assert client.update_priorities("table", keys, [0.0, 0.0, 0.0, 3.0]) == 4
    assert set(client.sample_batch("table", 50).info.key.tolist()) == {int(keys[3])}
    assert client.mutate_priorities("table", updates={int(keys[0]): 3.0, 12345: 9.0}) == 1
    sample = client.sample_batch("table", 400)
    assert set(sample.info.key.tolist()) == {int(keys[0]), int(keys[3])}
    np.testing.assert_array_equal(sample.info.probability, 0.5)
    assert client.mutate_priorities("table", deletes=[int(keys[3]), 99]) == 1
    assert set(client.sample_batch("table", 50).info.key.tolist()) == {int(keys[0])}
    with pytest.raises(ValueError, match=r"must be \[n\] both"):
        client.update_priorities("table", keys, [1.0])
    with pytest.raises(ValueError, match="'table': priorities must be finite"):
        client.update_priorities("table", keys[:1], [np.nan])


def test_unknown_tables_are_named(serve, make_table):
    client = serve(make_table("b"), make_table("a"))
    for call in (
        lambda: client.sample_batch("c", 1),
        lambda: next(client.sample("c")),
        lambda: client.update_priorities("c", [], []),
        lambda: client.reset("c"),
        lambda: client.mutate_priorities("c", deletes=[1]),
        lambda: next(client.batches("c", 1)),
    ):
        with pytest.raises(errors.TableNotFound, match=r"no table 'c'.*a, b"):
            call()


def test_server_info(serve, make_table):
    client = serve(make_table("a"), make_table("b", signature=(replay.Spec((), np.int64),)))
    write(client, range(3), table="a", validate_items=False)
    info = client.server_info(timeout=10)
    assert sorted(info) == ["a", "b"]
    assert info["a"].current_size == 3
    assert info["a"].rate_limiter_info.insert_stats.completed == 3
    assert info["b"].signature == (replay.Spec((), np.int64),)


def test_server_info_of_a_server_that_is_not_there(tmp_path):
    with (
        replay.Client(f"unix:{tmp_path}/nobody") as client,
        pytest.raises(errors.ReplayDeadlineExceeded, match=r"nobody did not answer server_info within 0.05 s"),
    ):
        client.server_info(timeout=0.05)


def test_tables_need_names_of_their_own(make_table):
    with pytest.raises(ValueError, match="at least one table"):
        replay.Server([])
    with pytest.raises(ValueError, match="same name"):
        replay.Server([make_table("a"), make_table("a")])


def test_clients_pickle_and_servers_have_ports(make_table):
    with replay.Server([make_table()], port=0) as server:
        assert server.port > 0
        assert server.address.endswith(f":{server.port}")
        for original in (replay.Client(server.address), server.localhost_client()):
            with original, pickle.loads(pickle.dumps(original)) as client:
                client.insert(1.0, {"table": 1.0})
                assert client.server_address == server.address
        assert server.tables["table"].info.current_size == 2
    assert server.wait(0)


def test_timeouts_of_samples(serve, make_table):
    client = serve(make_table(), replay.Table.queue("queue", 10))
    for timeout_s in (0.0, 0.01):
        with pytest.raises(errors.ReplayDeadlineExceeded, match=r"no 1 samples within .* 'table': 0 of 1000 items"):
            client.sample_batch("table", 1, timeout_s=timeout_s)
    client.insert(1.0, {"queue": 1.0})
    with pytest.raises(errors.ReplayDeadlineExceeded):
        client.sample_batch("queue", 2, timeout_s=0.01)
    client.insert(2.0, {"queue": 1.0})
    assert client.sample_batch("queue", 2, timeout_s=0).data.ravel().tolist() == [1.0, 2.0]


def test_sixteen_threads_write_while_others_sample(serve, make_table):
    client = serve(make_table(sampler=selectors.Prioritized(0.6), max_size=500), replay.Table.queue("queue", 50))
    with concurrent.futures.ThreadPoolExecutor(20) as pool:

        def produce(k):
            with client.trajectory_writer(2) as writer:
                for i in range(60):
                    writer.append({"x": np.full(8, 100 * k + i), "k": k})
                    for table in ("table", "queue"):
                        writer.create_item(table, 1.0, {"x": writer.history["x"][-1:], "k": writer.history["k"][-1]})
                    writer.flush(10)

        def consume():
            got = []
            for _ in range(24):
                data = client.sample_batch("queue", 10).data
                assert (data["x"] == data["x"][:, :, :1]).all()
                assert (data["x"][:, 0, 0] // 100 == data["k"]).all()
                got.append(data["x"][:, 0, 0])
            return np.concatenate(got)

        producers = [pool.submit(produce, k) for k in range(16)]
        consumers = [pool.submit(consume) for _ in range(4)]
        for _ in range(50):
            sample = client.sample_batch("table", 32)
            assert (sample.data["x"] == sample.data["x"][:, :, :1]).all()
            client.update_priorities("table", sample.info.key, np.ones(32))
        for producer in producers:
            producer.result(WAIT_S)
        got = [consumer.result(WAIT_S) for consumer in consumers]
    assert sorted(np.concatenate(got).tolist()) == sorted(100 * k + i for k in range(16) for i in range(60))
    for mine in got:  # first in, first out for each writer, as each consumer sees it
        for k in range(16):
            of_k = mine[mine // 100 == k]
            assert (np.diff(of_k) > 0).all()
    info = client.server_info()
    assert info["table"].current_size == 500
    assert client.server._service.store.live_rows == 500


def test_stop_fails_those_who_wait_within_a_second(watch):
    tables = [replay.Table.queue("empty", 2), replay.Table.queue("full", 2)]
    probes = [watch(each) for each in tables]
    server = replay.Server(tables)
    server.start()
    client = replay.Client(server.address)
    write(client, range(2), table="full")

    def produce():
        writer = client.trajectory_writer(1)
        writer.append({"x": 0})
        writer.create_item("full", 1.0, {"x": writer.history["x"][-1]})
        writer.flush()

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        waiting = [pool.submit(client.sample_batch, "empty", 1) for _ in range(8)]
        waiting += [pool.submit(produce) for _ in range(8)]
        probes[0].wait_until(lambda info: info.sample_stats.pending == 8)
        probes[1].wait_until(lambda info: info.insert_stats.pending == 8)
        start = time.monotonic()
        server.stop()
        for future in waiting:
            with pytest.raises((errors.ReplayError, errors.CourierError)):
                future.result(WAIT_S)
        assert time.monotonic() - start < 1
    client.close()


def test_the_stop_of_the_program_wakes_blocked_calls(watch):
    context = NodeContext(label="actor", index=0, group_size=1, launch_type="test_mt")
    tables = [replay.Table.queue("empty", 2), replay.Table.queue("full", 2)]
    probes = [watch(each) for each in tables]
    with replay.Server(tables) as server, concurrent.futures.ThreadPoolExecutor(3) as pool:
        with bind_context(context):
            client = replay.Client(server.address)
        write(client, range(2), table="full")

        def in_context(function):
            with bind_context(context):
                return function()

        def produce():
            writer = client.trajectory_writer(1)
            writer.append({"x": 0})
            writer.create_item("full", 1.0, {"x": writer.history["x"][-1]})
            writer.flush()

        waiting = [
            pool.submit(in_context, lambda: client.sample_batch("empty", 1)),
            pool.submit(in_context, lambda: next(client.batches("empty", 1))),
            pool.submit(in_context, produce),
        ]
        probes[0].wait_until(lambda info: info.sample_stats.pending == 3)  # one, and two requested ahead
        probes[1].wait_until(lambda info: info.insert_stats.pending == 1)
        context.stop.set()
        for future in waiting:
            with pytest.raises(errors.ProgramStopped):
                future.result(WAIT_S)
        client.close()


@pytest.mark.parametrize("program_stops", [True, False])
def test_a_server_that_stops_first_does_not_make_nodes_fail(program_stops, monkeypatch, watch):
    monkeypatch.setattr(stopping, "GRACE_S", WAIT_S if program_stops else 0.01)
    context = NodeContext(label="actor", index=0, launch_type="test_mt")
    tables = [replay.Table.queue("empty", 2), replay.Table.queue("full", 2)]
    probes = [watch(each) for each in tables]
    server = replay.Server(tables)
    server.start()
    client = replay.Client(server.address)  # made outside the node: it does not hear of the stop by itself
    write(client, range(2), table="full")

    def in_context(function):
        with bind_context(context):
            return function()

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        waiting = [
            pool.submit(in_context, lambda: client.sample_batch("empty", 1)),
            pool.submit(in_context, lambda: next(client.batches("empty", 1, prefetch=0))),
            pool.submit(in_context, lambda: write(client, [1], table="full")),
        ]
        probes[0].wait_until(lambda info: info.sample_stats.pending == 2)
        probes[1].wait_until(lambda info: info.insert_stats.pending == 1)
        server.stop()
        if program_stops:
            context.stop.set()
        expected = errors.ProgramStopped if program_stops else (errors.ReplayError, errors.ConnectionBroken)
        for future in waiting:
            with pytest.raises(expected):
                future.result(WAIT_S)
    client.close()


def test_items_of_a_writer_that_went_away_are_withdrawn(serve, watch):
    table = replay.Table.queue("queue", 2)
    probe = watch(table)
    client = serve(table)
    address = client.server.address
    code = f"""
import sys
from topology.nodes import replay
writer = replay.Client({address!r}).trajectory_writer(1)
for i in range(10):
    writer.append(i)
    writer.create_item("queue", 1.0, writer.history[-1])
try:
    writer.flush(timeout_ms=100)
except replay.client.ReplayDeadlineExceeded:
    print("waiting", flush=True)
sys.stdin.read()
"""
    writer = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout.readline() == "waiting\n"
        assert table.info.rate_limiter_info.insert_stats.pending == 8
    finally:
        writer.kill()
        writer.communicate(timeout=WAIT_S)
    probe.wait_until(lambda info: info.insert_stats.pending == 0)
    assert client.sample_batch("queue", 2).data.tolist() == [0, 1]


def test_same_seed_and_same_inserts_give_the_same_keys(serve, make_table):
    def keys():
        client = serve(make_table(sampler=selectors.Prioritized(0.5), seed=11, max_size=64))
        write(client, range(100))
        return [client.sample_batch("table", 32).info.key.tolist() for _ in range(5)]

    assert keys() == keys()


def test_memory_stays_flat_while_a_full_table_is_overwritten(serve, make_table):
    client = serve(make_table(max_size=200))
    write(client, range(2000))
    store = client.server._service.store
    (group,) = store._groups.values()
    high = group._allocator.high
    write(client, range(5000))
    assert store.live_rows == 200
    assert group._allocator.high == high <= 200 + 6 * 100


@pytest.fixture
def warnings_logged():
    """A queue of the warnings that are logged."""
    records = queue.Queue()
    handler = logging.handlers.QueueHandler(records)
    handler.setLevel(logging.WARNING)
    logging.getLogger("topology.nodes.replay").addHandler(handler)
    yield records
    logging.getLogger("topology.nodes.replay").removeHandler(handler)


def test_calls_that_wait_for_long_are_reported(warnings_logged):
    clock = ManualClock()
    table = replay.Table.queue("queue", 2)
    service = ReplayService([table], clock=clock)
    client = replay.Client("memory:x", service=service)
    sampling = service.sample("queue", 5)
    clock.wait_until_waiting()
    clock.advance(29.0)
    clock.advance(1.5)
    text = warnings_logged.get(timeout=WAIT_S).getMessage()
    assert "a sample of 5 items has waited 30 s (the table waits for inserts)" in text
    assert "'queue': 0 of 2 items, 0 inserts, 0 samples" in text
    assert "min_size_to_sample=1" in text
    write(client, range(7), table="queue", validate_items=False)
    assert sampling.result(WAIT_S).keys.size == 5
    writer = client.trajectory_writer(1, validate_items=False)
    writer.append({"x": 0})
    writer.create_item("queue", 1.0, {"x": writer.history["x"][-1]})
    clock.advance(31.0)
    clock.wait_until_waiting()
    clock.advance(31.0)
    text = warnings_logged.get(timeout=WAIT_S).getMessage()
    assert "an insert of 1 items has waited" in text
    assert "(the table waits for samples)" in text
    assert "2 of 2 items, 7 inserts, 5 samples" in text
    service.close()


def test_importing_replay_imports_neither_jax_nor_tensorflow():
    code = "import sys, topology.nodes.replay; print([m for m in ('jax', 'tensorflow', 'tree') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_inserts_that_wait_hold_up_no_sample_of_the_same_client(serve):
    """More than the 1,024 messages that a connection has under way: they have one of their own."""
    client = serve(replay.Table.queue("full", 1), replay.Table.queue("other", 10))
    writers = [client.trajectory_writer(1) for _ in range(1100)]
    for value, writer in enumerate(writers):
        writer.append(value)
        writer.create_item("full", 1.0, writer.history[-1])
    client.insert(-1, {"other": 1.0})
    assert client.sample_batch("other", 1, timeout_s=WAIT_S).data.tolist() == [[-1]]
    with client.batches("full", 50, timeout_s=WAIT_S) as batches:
        got = [value for batch in itertools.islice(batches, 22) for value in batch.data.tolist()]
    assert sorted(got) == list(range(1100))
    for writer in writers:
        writer.close()
