"""Reverb's datasets, client and specs with TensorFlow, through its names. Skipped where TensorFlow is not installed."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from topology.compat import provided

tf = pytest.importorskip("tensorflow")
bounded = pytest.importorskip("tensorflow.python.framework.tensor_spec").BoundedTensorSpec

with provided():
    import reverb
    from reverb import errors, pattern_dataset, replay_sample, structured_writer, timestep_dataset, trajectory_dataset

pytestmark = [pytest.mark.usefixtures("provided"), pytest.mark.timeout(450)]

TIMEOUT_S = 30
STEP = tf.TensorSpec((None, None), tf.float32)
DATASETS = {"trajectory": trajectory_dataset.TrajectoryDataset, "timestep": timestep_dataset.TimestepDataset}


def make_table(name: str, **options: Any) -> Any:
    defaults: dict[str, Any] = {
        "sampler": reverb.selectors.Prioritized(1.0),
        "remover": reverb.selectors.Fifo(),
        "max_size": 100_000,
        "rate_limiter": reverb.rate_limiters.MinSize(1),
    }
    return reverb.Table(name, **{**defaults, **options})


@pytest.fixture
def server() -> Iterator[Any]:
    tables = [
        make_table("dist"),
        make_table("dist2"),
        make_table("steps", signature=STEP),
        make_table("bounded", signature=bounded((None, None), tf.float32, (0.0, 0.0), (10.0, 10.0))),
        make_table(
            "whole", signature={"x": tf.TensorSpec((None, 2), tf.float32, "x"), "n": tf.TensorSpec((None,), tf.int64)}
        ),
        reverb.Table.queue("queue", 1000),
    ]
    server = reverb.Server(tables)
    yield server
    server.stop()


@pytest.fixture
def client(server: Any) -> Iterator[Any]:
    with reverb.Client(f"localhost:{server.port}") as client:
        yield client


def populate(client: Any, *tables: str, items: int = 20, length: int = 5) -> None:
    """Items of `length` steps of zeros 3x3, as Reverb's first writer makes them."""
    with client.writer(length) as writer:
        for i in range(items + length - 1):
            writer.append([np.full((3, 3), i, np.float32)])
            if i >= length - 1:
                for table in tables:
                    writer.create_item(table, length, 1.0)


def make(kind: str, client: Any, table: str = "dist", **options: Any) -> Any:
    defaults: dict[str, Any] = {
        "dtypes": (tf.float32,),
        "shapes": (tf.TensorShape([3, 3] if kind == "timestep" else [5, 3, 3]),),
        "max_in_flight_samples_per_worker": 100,
    }
    return DATASETS[kind](client.server_address, table, **{**defaults, **options})


def samples_of(client: Any, table: str) -> int:
    return int(client.server_info()[table].rate_limiter_info.sample_stats.completed)


# -- datasets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DATASETS)
@pytest.mark.parametrize(
    ("options", "is_valid"),
    [
        ({}, True),
        ({"num_workers_per_iterator": 0}, False),
        ({"num_workers_per_iterator": 1}, True),
        ({"num_workers_per_iterator": -1}, True),
        ({"num_workers_per_iterator": -2}, False),
        ({"max_samples_per_stream": 0}, False),
        ({"max_samples_per_stream": 1}, True),
        ({"max_samples_per_stream": -2}, False),
        ({"max_in_flight_samples_per_worker": 0}, False),
        ({"max_in_flight_samples_per_worker": -1}, False),
        ({"rate_limiter_timeout_ms": -2}, False),
        ({"shapes": {"x": tf.TensorShape([])}}, False),
    ],
)
def test_options_are_checked(client: Any, kind: str, options: dict[str, Any], is_valid: bool) -> None:
    if is_valid:
        assert isinstance(make(kind, client, **options), tf.data.Dataset)
        return
    with pytest.raises(ValueError, match=r"must be|has nothing"):
        make(kind, client, **options)


@pytest.mark.parametrize("kind", DATASETS)
def test_elements_are_samples_of_scalars_and_batches_of_arrays(client: Any, kind: str) -> None:
    populate(client, "dist")
    step = (3, 3) if kind == "timestep" else (5, 3, 3)
    dataset = make(kind, client)
    for sample in dataset.take(10):
        assert isinstance(sample, replay_sample.ReplaySample)
        assert [field.dtype for field in sample.info] == list(reverb.SampleInfo.tf_dtypes())
        assert [field.shape for field in sample.info] == list(reverb.SampleInfo.tf_shapes())
        assert sample.data[0].shape == step
    for batches in (dataset.batch(2, True), dataset.map(lambda sample: sample).batch(2, True)):
        assert batches.element_spec.data[0].shape == (2, *step)
        batch = next(batches.as_numpy_iterator())
        assert batch.info.key.shape == (2,)
        assert batch.data[0].shape == (2, *step)
    first, second = iter(dataset), iter(dataset)
    assert next(first).info.table_size == next(second).info.table_size == 20


def test_steps_of_an_item_come_one_after_the_other(client: Any) -> None:
    populate(client, "queue", items=3)
    dataset = make("timestep", client, "queue", rate_limiter_timeout_ms=0)
    values = [int(sample.data[0][0, 0]) for sample in dataset]
    assert values == [0, 1, 2, 3, 4, 1, 2, 3, 4, 5, 2, 3, 4, 5, 6]


def test_a_queue_keeps_its_order_in_batches_and_in_pieces(client: Any) -> None:
    for batched in (True, False):
        populate(client, "queue", items=25)
        dataset = make(
            "trajectory",
            client,
            "queue",
            rate_limiter_timeout_ms=0,
            num_workers_per_iterator=3,
            max_in_flight_samples_per_worker=4,
        )
        found = dataset.batch(10) if batched else dataset.map(lambda sample: sample).batch(10)
        first_steps = [int(x) for sample in found for x in sample.data[0][:, 0, 0, 0]]
        assert first_steps == list(range(25))


def test_trajectories_of_any_length(client: Any) -> None:
    with client.trajectory_writer(10) as writer:
        for i in range(10):
            writer.append({"x": np.full(2, i, np.float32), "n": i})
        for length in range(1, 11):
            columns = {"x": writer.history["x"][-length:], "n": writer.history["n"][-length:]}
            writer.create_item("whole", 1.0, columns)
            writer.create_item("queue", 1.0, columns)
    whole = reverb.TrajectoryDataset.from_table_signature(client.server_address, "whole", 10)
    assert whole.element_spec.data == {"x": tf.TensorSpec((None, 2), tf.float32), "n": tf.TensorSpec((None,), tf.int64)}
    lengths: set[int] = set()
    for sample in whole.take(2000):
        assert sample.data["x"].shape[0] == sample.data["n"].shape[0]
        lengths.add(int(sample.data["n"].shape[0]))
        if len(lengths) == 10:
            break
    assert lengths == set(range(1, 11))
    options = {"dtypes": whole.element_spec.data["x"].dtype, "shapes": tf.TensorShape([None, 2])}
    in_order = reverb.TrajectoryDataset(
        client.server_address,
        "queue",
        {"x": tf.float32, "n": tf.int64},
        {"x": options["shapes"], "n": tf.TensorShape([None])},
        4,
        rate_limiter_timeout_ms=0,
    )
    assert [len(sample.data["n"]) for sample in in_order] == list(range(1, 11))
    with pytest.raises(tf.errors.InvalidArgumentError, match="Cannot batch tensors with different shapes"):
        list(whole.batch(64).take(1))


@pytest.mark.parametrize("timeout_ms", [0, 50])
@pytest.mark.parametrize("kind", DATASETS)
def test_a_timeout_ends_the_iteration(client: Any, kind: str, timeout_ms: int) -> None:
    dataset = make(kind, client, rate_limiter_timeout_ms=timeout_ms)
    assert list(dataset) == []
    assert list(dataset.batch(2)) == []
    populate(client, "dist")
    assert len(list(dataset.take(2))) == 2
    populate(client, "queue", items=5)
    sizes = [
        len(batch.info.key)
        for batch in make("trajectory", client, "queue", rate_limiter_timeout_ms=timeout_ms).batch(3)
    ]
    assert sizes == [3, 2]


@pytest.mark.parametrize(
    ("table", "options", "text"),
    [
        (
            "steps",
            {"dtypes": (tf.float32, tf.float64), "shapes": (tf.TensorShape([3, 3]), tf.TensorShape([]))},
            "Inconsistent number of tensors requested from table 'steps'.  Requested 2 tensors, but table signature "
            "shows 1 tensors.",
        ),
        (
            "bounded",
            {"dtypes": (tf.int64,)},
            "Requested incompatible tensor at flattened index 0 from table 'bounded'.  Requested (dtype, shape): "
            "(int64, [3,3]).  Signature (dtype, shape): (float, [?,?])",
        ),
        (
            "steps",
            {"shapes": (tf.TensorShape([3]),)},
            "Requested incompatible tensor at flattened index 0 from table 'steps'.  Requested (dtype, shape): (float, "
            "[3]).  Signature (dtype, shape): (float, [?,?])",
        ),
        (
            "dist",
            {"shapes": (tf.TensorShape([]),)},
            "Specification has (dtype, shape): (float, []).  Tensor has (dtype, shape): (float, [3,3]).",
        ),
        (
            "dist",
            {"dtypes": (tf.float32,) * 2, "shapes": (tf.TensorShape([3, 3]),) * 2},
            "Inconsistent number of tensors received from table 'dist'.  Specification has 2 tensors, but data coming "
            "from the table shows 1 tensors.",
        ),
    ],
)
def test_what_does_not_fit_is_refused(client: Any, table: str, options: dict[str, Any], text: str) -> None:
    populate(client, "dist", "steps", "bounded")
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        next(iter(make("timestep", client, table, **options)))
    assert text in str(caught.value)


@pytest.mark.parametrize("table", ["dist", "steps", "bounded"])
def test_tables_of_steps_with_and_without_signature(client: Any, table: str) -> None:
    populate(client, table)
    for batch in make("timestep", client, table).batch(2, True).take(3):
        assert batch.data[0].shape == (2, 3, 3)


def test_lists_become_tuples_and_names_stay(client: Any) -> None:
    with client.writer(1) as writer:
        writer.append({"b": [np.zeros(2, np.float32), "text"], "a": (np.int32(1),)})
        writer.create_item("dist", 1, 1.0)
    dataset = make(
        "timestep",
        client,
        dtypes={"b": [tf.float32, tf.string], "a": (tf.int32,)},
        shapes={"b": [tf.TensorShape([2]), tf.TensorShape([])], "a": (tf.TensorShape([]),)},
    )
    (sample,) = dataset.take(1)
    assert sample.data["b"][1] == b"text"
    assert isinstance(sample.data["b"], tuple)
    assert sample.data["a"][0] == 1


def test_nested_steps_in_batches(client: Any) -> None:
    with client.writer(3) as writer:
        for i in range(9):
            writer.append(
                {"observation": {"a": np.full((3, 3), i, np.float32), "b": np.int32(i)}, "reward": np.zeros(1)}
            )
            if i % 3 == 2:
                writer.create_item("queue", 3, 1.0)
    dataset = make(
        "timestep",
        client,
        "queue",
        dtypes={"observation": {"a": tf.float32, "b": tf.int32}, "reward": tf.float64},
        shapes={
            "observation": {"a": tf.TensorShape([3, 3]), "b": tf.TensorShape([])},
            "reward": tf.TensorShape([1]),
        },
        rate_limiter_timeout_ms=0,
    )
    batches = list(dataset.batch(4))
    assert [batch.data["observation"]["a"].shape.as_list() for batch in batches] == [[4, 3, 3], [4, 3, 3], [1, 3, 3]]
    assert [int(b) for batch in batches for b in batch.data["observation"]["b"]] == list(range(9))


@pytest.mark.parametrize("batch_size", [None, 5])
def test_items_that_were_inserted_are_of_one_step(client: Any, batch_size: int | None) -> None:
    for i in range(10):
        client.insert([np.full((3, 3), i, np.int32)], {"queue": 1.0})
    types = {"dtypes": (tf.int32,), "shapes": (tf.TensorShape([3, 3]),), "rate_limiter_timeout_ms": 0}
    dataset = make("timestep", client, "queue", **types)
    found = list(dataset if batch_size is None else dataset.batch(batch_size, True))
    assert len(found) == 10 // (batch_size or 1)
    values = np.concatenate([np.atleast_3d(sample.data[0].numpy()).reshape(-1, 9) for sample in found])
    assert values.tolist() == [[i] * 9 for i in range(10)]


def test_columns_of_different_length(client: Any) -> None:
    with client.trajectory_writer(4) as writer:
        for i in range(4):
            writer.append({"x": np.full(2, i, np.float32), "n": i})
        writer.create_item("whole", 1.0, {"x": writer.history["x"][-4:], "n": writer.history["n"][-4:-1]})
    dataset = reverb.TrajectoryDataset.from_table_signature(client.server_address, "whole", 1)
    for each in (dataset, dataset.batch(2)):
        (sample,) = each.take(1)
        assert (sample.data["x"].shape[-2:], sample.data["n"].shape[-1:]) == ((4, 2), (3,))


@pytest.mark.parametrize("count", [1, 3, 20])
def test_samples_are_asked_for_in_portions_of_max_in_flight(client: Any, count: int) -> None:
    populate(client, "dist")
    before = samples_of(client, "dist")
    options = {"max_in_flight_samples_per_worker": count, "num_workers_per_iterator": 1}
    for i, _ in enumerate(make("trajectory", client, **options).take(25), 1):
        drawn = samples_of(client, "dist") - before
        assert drawn % count == 0
        assert i <= drawn <= i + max(count - 1, 1)


@pytest.mark.parametrize(
    ("count", "batch_size", "asked"), [(1, None, [1, 1, 1]), (3, None, [0, 0, 1, 0]), (4, 4, [1, 1]), (1, 4, [0, 0])]
)
def test_what_comes_next_is_asked_for_while_the_program_works(
    client: Any, count: int, batch_size: int | None, asked: list[int]
) -> None:
    """When all that came is handed on, and no more than may be in flight."""
    populate(client, "dist")

    def under_way(**options: Any) -> list[int]:
        """Requests after each of the first elements."""
        dataset = make("trajectory", client, max_in_flight_samples_per_worker=count, **options)
        elements: Any = iter(dataset.batch(batch_size) if batch_size else dataset)
        return [len(elements._session._stream._requests) for _ in zip(asked, elements, strict=False)]

    assert under_way() == asked
    assert set(under_way(rate_limiter_timeout_ms=10_000)) == {0}, "the time is for readers who wait"


@pytest.mark.parametrize("count", [1, 4, 9])
@pytest.mark.parametrize("batched", [False, True])
def test_max_samples_are_fetched_and_no_more(client: Any, count: int, batched: bool) -> None:
    populate(client, "dist")
    before = samples_of(client, "dist")
    dataset = make("trajectory", client, max_samples=count)
    found = [int(k) for batch in dataset.batch(4) for k in batch.info.key] if batched else list(dataset)
    assert len(found) == count
    assert samples_of(client, "dist") - before == count
    steps = make("timestep", client, max_samples=count)
    assert len(list(steps.batch(4).unbatch() if batched else steps)) == count * 5
    assert samples_of(client, "dist") - before == 2 * count


@pytest.mark.parametrize("kind", DATASETS)
def test_from_table_signature(client: Any, kind: str) -> None:
    begin: Callable[..., Any] = DATASETS[kind].from_table_signature
    address = client.server_address
    with pytest.raises(
        ValueError, match=r"does not contain any table named nowhere\. Found: bounded, dist, dist2, queue"
    ):
        begin(address, "nowhere", 100)
    with pytest.raises(ValueError, match=rf"Table dist at {address} does not have a signature\."):
        begin(address, "dist", 100)
    with pytest.raises(errors.DeadlineExceededError, match=r"did not complete within provided timeout of 0\.1s"):
        begin("localhost:1", "dist", 100, get_signature_timeout_secs=0.1)
    for table in ("steps", "bounded"):
        assert begin(address, table, 100).element_spec.data == tf.TensorSpec((None, None), tf.float32)


def test_datasets_can_be_interleaved_repeated_and_made_in_functions(client: Any) -> None:
    populate(client, "dist")

    def make_one(_: Any) -> Any:
        return make("trajectory", client, max_in_flight_samples_per_worker=8).batch(4, drop_remainder=True)

    dataset = (
        tf.data.Dataset.range(2)
        .repeat()
        .interleave(make_one, cycle_length=2, num_parallel_calls=2, deterministic=False)
    )
    for batch in dataset.prefetch(2).take(5):
        assert batch.data[0].shape == (4, 5, 3, 3)

    @tf.function
    def total(count: Any) -> Any:
        result = tf.constant(0.0)
        for sample in make("trajectory", client).take(count):
            result += tf.reduce_sum(tf.ones_like(sample.data[0]))
        return result

    assert total(tf.constant(3, tf.int64)) == 3 * 45
    tensors = tf.constant(client.server_address), tf.constant("dist")
    by_tensor = DATASETS["trajectory"](*tensors, (tf.float32,), (tf.TensorShape([5, 3, 3]),), 10)
    assert next(iter(by_tensor)).data[0].shape == (5, 3, 3)


def numbers(client: Any, count: int) -> Any:
    """A dataset of the numbers from 0 on, which ends when there are no more."""
    for i in range(count):
        client.insert(np.float32(i), {"queue": 1.0})
    types = {"dtypes": tf.float32, "shapes": tf.TensorShape([])}
    return make("timestep", client, "queue", max_in_flight_samples_per_worker=4, rate_limiter_timeout_ms=0, **types)


def test_an_iterator_goes_on_in_functions_where_it_is(client: Any) -> None:
    iterator = iter(numbers(client, 20))
    assert isinstance(iterator, tf.data.Iterator)
    found = [float(next(iterator).data), float(iterator.get_next().data)]
    optional = iterator.get_next_as_optional()
    assert bool(optional.has_value())
    found.append(float(optional.get_value().data))

    @tf.function
    def inside() -> Any:
        return next(iterator).data

    @tf.function
    def given(iterator: Any) -> Any:
        return iterator.get_next().data + tf.zeros([])

    for _ in range(4):
        found += [float(inside()), float(given(iterator)), float(next(iterator).data)]
    found += [float(sample.data) for sample in iterator]
    assert found == list(range(20))
    with pytest.raises(StopIteration):
        next(iterator)


def test_the_end_of_an_iterator(client: Any) -> None:
    dataset = numbers(client, 6)
    iterator = iter(dataset)
    assert [float(sample.data) for sample in iterator] == list(range(6))
    with pytest.raises(tf.errors.OutOfRangeError):
        iterator.get_next()
    assert not iterator.get_next_as_optional().has_value()
    assert iterator.element_spec == dataset.element_spec
    for i in range(5):
        client.insert(np.float32(i), {"queue": 1.0})
    assert [sample.data.tolist() for sample in dataset.as_numpy_iterator()] == list(range(5))


def test_several_threads_read_one_iterator(client: Any) -> None:
    iterator = iter(numbers(client, 200))
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda _: [float(sample.data) for sample in iterator], range(4)))
    assert sorted(itertools.chain(*parts)) == list(range(200))


INTERRUPTED = """
import os, signal, threading
import reverb, tensorflow as tf
server = reverb.Server([reverb.Table.queue("few", 10)])
dataset = reverb.TrajectoryDataset(f"localhost:{server.port}", "few", tf.float32, tf.TensorShape([1]), 4)
sample = server.tables["few"].sample

def interrupt(request):
    threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()
    return sample(request)

for each in (dataset, dataset.batch(2)):
    server.tables["few"].sample = interrupt
    try:
        next(iter(each))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_a_loop_that_waits_can_be_interrupted(tmp_path: Path) -> None:
    assert run_script(tmp_path, INTERRUPTED) == ("interrupted\n" * 2, "", 0)


# -- ends -------------------------------------------------------------------------------------------------------------


def waits(server: Any, table: str) -> threading.Event:
    """Set when a sample of the table waits."""
    waiting = threading.Event()
    found = server.tables[table]
    sample = found.sample

    def notice(request: Any) -> Any:
        ended = sample(request)
        if not ended:
            waiting.set()
        return ended

    found.sample = notice
    return waiting


@pytest.mark.parametrize("stage", ["prefetch", "interleave", "batch"])
def test_an_iterator_that_is_blocked_can_be_deleted(stage: str) -> None:
    server = reverb.Server([reverb.Table.queue("few", 10)])
    waiting = waits(server, "few")
    with reverb.Client(f"localhost:{server.port}") as client:
        dataset = make("trajectory", client, "few")
        if stage == "batch":
            dataset = dataset.batch(3)
        if stage == "interleave":
            dataset = tf.data.Dataset.range(2).interleave(
                lambda _: make("trajectory", client, "few"),
                cycle_length=2,
                num_parallel_calls=2,
                deterministic=False,  # else the first waits for its turn while the other may have taken all items
            )
        populate(client, "few", items=3)
        iterator = iter(dataset.prefetch(8))
        next(iterator)
        assert waiting.wait(TIMEOUT_S)
        del iterator
        assert server.tables["few"].info.rate_limiter_info.sample_stats.pending == 0
    server.stop()


def test_a_server_that_stops_wakes_readers() -> None:
    server = reverb.Server([make_table("empty")])
    waiting = waits(server, "empty")
    with reverb.Client(f"localhost:{server.port}") as client, ThreadPoolExecutor(1) as pool:
        dataset = make("trajectory", client, "empty")
        reading = pool.submit(lambda: next(iter(dataset)))
        assert waiting.wait(TIMEOUT_S)
        server.stop()
        with pytest.raises(tf.errors.OpError, match="replay server was stopped"):
            reading.result(TIMEOUT_S)


def test_a_time_limit_holds_where_no_server_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topology.nodes.replay.links._GRACE_S", 0.1)
    types = (tf.float32,), (tf.TensorShape([1]),)
    dataset = reverb.TrajectoryDataset("localhost:1", "dist", *types, 10, rate_limiter_timeout_ms=0)
    with pytest.raises(tf.errors.OpError, match="is it running"):
        next(iter(dataset))


def test_a_session_is_closed_while_an_operation_waits() -> None:
    server = reverb.Server([make_table("empty")])
    waiting = waits(server, "empty")
    with reverb.Client(f"localhost:{server.port}") as client, tf.Graph().as_default(), ThreadPoolExecutor(1) as pool:
        iterator = tf.compat.v1.data.make_initializable_iterator(make("trajectory", client, "empty"))
        element = iterator.get_next()
        session = tf.compat.v1.Session()
        session.run(iterator.initializer)
        reading = pool.submit(session.run, element)
        assert waiting.wait(TIMEOUT_S)
        session.close()
        with pytest.raises(tf.errors.CancelledError):
            reading.result(TIMEOUT_S)
    server.stop()


def test_iterators_in_graphs(client: Any) -> None:
    populate(client, "dist")
    with tf.Graph().as_default():
        dataset = make("timestep", client)
        initializable = dataset.make_initializable_iterator()
        one_shot = tf.compat.v1.data.make_one_shot_iterator(make("trajectory", client).batch(2))
        elements = initializable.get_next(), one_shot.get_next()
        timed_out = tf.compat.v1.data.make_one_shot_iterator(
            make("trajectory", client, "dist2", rate_limiter_timeout_ms=0)
        )
        nothing = timed_out.get_next()
        with tf.compat.v1.Session() as session:
            session.run(initializable.initializer)
            for _ in range(3):
                sample, batch = session.run(elements)
                assert isinstance(sample, reverb.ReplaySample)
                assert isinstance(sample.info.key, np.uint64)
                assert batch.data[0].shape == (2, 5, 3, 3)
            with pytest.raises(tf.errors.OutOfRangeError, match="End of sequence"):
                session.run(nothing)


def run_script(folder: Path, text: str, *arguments: str) -> tuple[str, str, int]:
    """What a program of somebody says, and how it ends; without what TensorFlow says of the machine it is on."""
    (folder / "script.py").write_text(text)
    command = [sys.executable, "-m", "topology.compat", "script.py", *arguments]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    told = [line for line in done.stderr.splitlines(keepends=True) if not re.search(MACHINE, line)]
    return done.stdout, "".join(told), done.returncode


MACHINE = r"cuda|oneDNN|cpu_feature|cpu_allocator|rebuild TensorFlow|^WARNING: All log messages before absl"

EXIT = """
import sys, threading
import numpy as np, reverb, tensorflow as tf

limiter = reverb.rate_limiters.MinSize(1)
many = reverb.Table("many", reverb.selectors.Uniform(), reverb.selectors.Fifo(), 10, limiter)
server = reverb.Server([many, reverb.Table.queue("few", 10), reverb.Table.queue("full", 1)])
client = reverb.Client(f"localhost:{server.port}")
for table, count in (("many", 3), ("few", 6), ("full", 1)):
    for _ in range(count):
        client.insert(tf.constant(1.0), {table: 1.0})

def make(table="few", **options):
    return reverb.TrajectoryDataset(client.server_address, table, tf.float32, tf.TensorShape([1]), 4, **options)

def beside(function, *arguments):
    reads = threading.Event()
    def run():
        reads.set()
        function(*arguments)
    threading.Thread(target=run, daemon=True).start()
    reads.wait()

"""

ENDS = {
    "stages that wait": """
def interleave(count):
    return tf.data.Dataset.range(count).repeat().interleave(lambda _: make(), cycle_length=2, num_parallel_calls=2)
datasets = make().batch(2), interleave(2), interleave(4).batch(2), make(num_workers_per_iterator=4)
iterators = [iter(dataset.prefetch(2)) for dataset in datasets]
next(iterators[0])
""",
    "stages that are busy": """
iterators = [iter(make("many").map(lambda x: x).prefetch(64)) for _ in range(3)]
iterators.append(iter(make("many", max_samples=3).repeat().prefetch(64)))
for iterator in iterators * 30:
    next(iterator)
""",
    "threads that read": """
def read(dataset):
    for _ in dataset:
        pass
    print("never")
for dataset in (make(), make("many"), make("many").batch(2).prefetch(2)):
    beside(read, dataset)
beside(lambda: list(make().as_numpy_iterator()))
""",
    "iterators in functions": """
iterator, other = iter(make().prefetch(9)), iter(make("many").prefetch(2))
@tf.function
def read(other):
    return next(iterator).data + next(other).data
read(other)
@tf.function
def total():
    found = tf.zeros([1])
    for sample in make():
        found += sample.data
    return found
total.get_concrete_function()  # a thread that is caught in this dies with a word of its own, whatever it reads
beside(total)
""",
    "a session": """
with tf.Graph().as_default():
    element = tf.compat.v1.data.make_one_shot_iterator(make("many").prefetch(9)).get_next()
    session = tf.compat.v1.Session()
    session.run(element)
""",
    "a client that waits": """
tf_client = reverb.TFClient(client.server_address)
def insert(_):
    done = tf_client.insert([tf.ones([])], tf.constant(["full"]), tf.constant([1.0], tf.float64))
    with tf.control_dependencies([done]):
        return 0
iterator = iter(tf.data.Dataset.range(9).map(insert).prefetch(2))
beside(lambda: [tf_client.sample("few", tf.float32) for _ in range(7)])
""",
    "an error": "iterator = iter(make().prefetch(9)); next(iterator); sys.exit(3)",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_process_with_live_iterators_ends_without_a_word(tmp_path: Path, end: str) -> None:
    script = f"{EXIT}{ENDS[end]}\nprint('end', flush=True)\n"
    code = 3 if end == "an error" else 0
    assert run_script(tmp_path, script) == ("" if code else "end\n", "", code)


SERVE = """
import sys, reverb
limiter = reverb.rate_limiters.MinSize(1)
table = reverb.Table("t", reverb.selectors.Uniform(), reverb.selectors.Fifo(), 10, limiter)
server = reverb.Server([table], port=int(sys.argv[1]))
server.localhost_client().insert([float(sys.argv[2])], {"t": 1.0})
print(server.port, flush=True)
server.wait()
"""


def test_a_server_that_is_killed_and_comes_back_is_read_on() -> None:
    def serve(port: int, value: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", SERVE, str(port), str(value)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        ports.append(int(server.stdout.readline()))
        return server

    def end(server: subprocess.Popen[str]) -> None:
        server.kill()
        server.communicate(timeout=TIMEOUT_S)

    ports: list[int] = []
    first = serve(0, 1)
    types = (tf.float64,), (tf.TensorShape([1]),)
    dataset = reverb.TrajectoryDataset(f"localhost:{ports[0]}", "t", *types, 2)
    iterator = iter(dataset)
    assert next(iterator).data[0] == 1.0
    end(first)
    second = serve(ports[0], 2)
    assert 2.0 in [float(next(iterator).data[0][0]) for _ in range(6)]
    del iterator
    end(second)


OF_TENSORFLOW_1 = """
import numpy as np
import reverb
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
signature = {"x": tf.TensorSpec([None, 2], tf.float32, "x")}
limiter = reverb.rate_limiters.MinSize(1)
table = reverb.Table("t", reverb.selectors.Uniform(), reverb.selectors.Fifo(), 10, limiter, signature=signature)
server = reverb.Server([table])
client = reverb.Client(f"localhost:{server.port}")
client.insert({"x": np.ones(2, np.float32)}, {"t": 1.0})
tf_client = reverb.TFClient(client.server_address)
dataset = reverb.TrajectoryDataset.from_table_signature(client.server_address, "t", 4)
explicit = reverb.TrajectoryDataset(client.server_address, "t", {"x": tf.float32}, {"x": tf.TensorShape([None, 2])}, 4)
batch = dataset.batch(3, drop_remainder=True).make_one_shot_iterator().get_next()
single = explicit.make_one_shot_iterator().get_next()
update = tf_client.update_priorities("t", batch.info.key, tf.fill([3], tf.constant(2.0, tf.float64)))
with tf.Session() as session:
    found, one, nothing = session.run((batch, single, update))
    sample = session.run(tf_client.sample("t", {"x": tf.float32}))
print(found.data["x"].shape, one.data["x"].shape, nothing, sample.data["x"].tolist(), sample.info.priority, flush=True)
server.stop()
"""


def test_a_program_of_tensorflow_1(tmp_path: Path) -> None:
    told, complaints, code = run_script(tmp_path, OF_TENSORFLOW_1)
    assert (told, code) == ("(3, 1, 2) (1, 2) None [1.0, 1.0] 2.0\n", 0), complaints


# -- the client -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["eager", "function", "session"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Any]], Any]:
    """Runs what makes operations, in one of three ways; gives their values as arrays."""

    def call(make_operations: Callable[[], Any]) -> Any:
        if request.param == "eager":
            return tf.nest.map_structure(lambda x: x if x is None else x.numpy(), make_operations())
        if request.param == "function":
            outputs: list[Any] = []

            @tf.function
            def function() -> Any:
                made = make_operations()
                outputs.append(made)
                return None if isinstance(made, tf.Operation) else made

            return tf.nest.map_structure(lambda x: x if x is None else x.numpy(), function())
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            return session.run(make_operations())

    return call


def test_the_client_samples(client: Any, run: Callable[..., Any]) -> None:
    data = [np.ones((81, 81), np.float64), "text"]
    client.insert(data, {"dist": 1.0})
    tf_client = reverb.TFClient(client.server_address)
    sample = run(lambda: tf_client.sample("dist", [tf.float64, tf.string]))
    np.testing.assert_array_equal(sample.data[0], data[0])
    assert sample.data[1] == b"text"
    assert sample.info.key != 0
    assert (sample.info.probability, sample.info.table_size, sample.info.times_sampled) == (1.0, 1, 1)
    with pytest.raises(tf.errors.NotFoundError, match="Priority table nowhere was not found"):
        run(lambda: tf_client.sample("nowhere", [tf.float64]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="Got 7 but wanted 6"):
        run(lambda: tf_client.sample("dist", [tf.float64]))
    with pytest.raises((tf.errors.InternalError, tf.errors.InvalidArgumentError), match="float"):
        run(lambda: tf_client.sample("dist", [tf.float32, tf.string]))


def test_the_client_waits_for_the_first_item(server: Any, client: Any, run: Callable[..., Any]) -> None:
    tf_client = reverb.TFClient(client.server_address)
    with ThreadPoolExecutor(1) as pool:
        sampling = pool.submit(run, lambda: tf_client.sample("dist2", [tf.float64]))
        client.insert([np.zeros((81, 81))], {"dist2": 1})
        assert sampling.result(TIMEOUT_S).data[0].shape == (81, 81)


def test_the_client_updates_priorities(client: Any, run: Callable[..., Any]) -> None:
    for i in range(4):
        client.insert([np.array([i], np.uint32)], {"dist": 1})
    key = next(client.sample("dist"))[0].info.key
    tf_client = reverb.TFClient(client.server_address)
    priority = tf.constant([3.0], tf.float64).numpy()
    updates = {
        "table": "dist",
        "keys": np.array(
            [
                key,
            ],
            np.uint64,
        ),
        "priorities": priority,
    }
    assert run(lambda: tf_client.update_priorities(**updates)) is None
    found = {sample[0].info.key: sample[0].info.probability for sample in client.sample("dist", 200)}
    assert found[key] == 0.5
    assert run(lambda: tf_client.update_priorities("dist", np.array([12345], np.uint64), priority)) is None
    with pytest.raises(tf.errors.InvalidArgumentError, match="do not match in shape"):
        run(lambda: tf_client.update_priorities("dist", np.array([1, 2], np.uint64), priority))
    with pytest.raises(tf.errors.NotFoundError, match="nowhere"):
        run(lambda: tf_client.update_priorities("nowhere", np.array([1], np.uint64), priority))
    with pytest.raises(ValueError, match="dtype"):
        run(lambda: tf_client.update_priorities("dist", tf.constant([1], tf.int64), priority))


def test_the_client_inserts(client: Any, run: Callable[..., Any]) -> None:
    tf_client = reverb.TFClient(client.server_address)

    def insert(tables: Any = ("dist", "dist2"), priorities: Any = (1.0, 2.0), dtype: Any = tf.float64) -> Any:
        return tf_client.insert([tf.constant([1, 2, 3], tf.int8)], tf.constant(tables), tf.constant(priorities, dtype))

    assert run(insert) is None
    for table, priority in (("dist", 1.0), ("dist2", 2.0)):
        sample = run(lambda table=table: tf_client.sample(table, [tf.int8]))
        assert sample.data[0].tolist() == [1, 2, 3]
        assert sample.info.priority == priority
    for wrong in (
        {"tables": [["dist"]]},
        {"tables": "dist"},
        {"tables": [1]},
        {"priorities": [[1.0]]},
        {"priorities": 1.0},
        {"dtype": tf.float32},
        {"priorities": [1.0]},
    ):
        with pytest.raises(ValueError, match=r"must be a|must have the same shape"):
            run(lambda wrong=wrong: insert(**wrong))


def test_priorities_are_updated_in_a_map_of_a_dataset(client: Any) -> None:
    for i in range(4):
        client.insert([np.float32(i)], {"dist": 1})
    tf_client = reverb.TFClient(client.server_address)

    def update(batch: Any) -> Any:
        done = tf_client.update_priorities("dist", batch.info.key, tf.fill([8], tf.constant(2.0, tf.float64)))
        with tf.control_dependencies([done]):
            return tf.identity(batch.info.key)

    dataset = make("trajectory", client, shapes=(tf.TensorShape([1]),), max_samples=64).batch(8, drop_remainder=True)
    keys = {int(key) for batch in dataset.map(update) for key in batch}
    assert all(sample[0].info.priority == 2.0 for sample in client.sample("dist", 50) if sample[0].info.key in keys)


# -- specs, tensors, patterns -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "signature",
    [
        tf.TensorSpec((), tf.float32, "scalar"),
        tf.TensorSpec((3, None), tf.uint8, "image"),
        {"nest": (tf.TensorSpec((), tf.string, "s"), [tf.TensorSpec((1, 2), tf.bfloat16, "l")])},
        [bounded((1, 2), tf.float32, [0.0], [1.0], "discount")],
    ],
)
def test_signatures_come_back_as_they_were(signature: Any) -> None:
    table = make_table("t", signature=signature)
    assert table.info.signature == signature
    server = reverb.Server([table])
    for client in (server.localhost_client(), reverb.Client(f"localhost:{server.port}")):
        with client:
            assert client.server_info()["t"].signature == signature
    server.stop()


def test_what_is_inserted_may_have_the_signature_of_a_step() -> None:
    """As a table that hands the latest variables on has it: whoever reads gets them without an axis of time."""
    signature = {"step": tf.TensorSpec((), tf.int64), "w": tf.TensorSpec((2,), tf.float32)}
    server = reverb.Server([make_table("variables", signature=signature, max_size=1)])
    address = f"localhost:{server.port}"
    with reverb.Client(address) as client:
        client.insert({"step": np.int64(1), "w": np.zeros(2, np.float32)}, {"variables": 1.0})
        reverb.TFClient(address).insert(
            [tf.constant(2, tf.int64), tf.ones(2)], tf.constant(["variables"]), tf.constant([1.0], tf.float64)
        )
        (sample,) = reverb.TimestepDataset.from_table_signature(address, "variables", 1).take(1)
        assert sample.data["step"] == 2
        assert sample.data["w"].numpy().tolist() == [1.0, 1.0]
        with pytest.raises(ValueError, match="signature"):
            client.insert({"step": np.int64(1), "w": np.zeros(3, np.float32)}, {"variables": 1.0})
    server.stop()


def test_writers_take_tensors(client: Any) -> None:
    with client.trajectory_writer(2) as writer:
        writer.append({"x": tf.constant([1.0, 2.0]), "n": tf.constant(7, tf.int64)})
        np.testing.assert_array_equal(writer.history["x"][-1].numpy(), [1.0, 2.0])
        writer.create_item("whole", 1.0, {"x": writer.history["x"][:], "n": writer.history["n"][:]})
    client.insert({"x": tf.constant([3.0, 4.0]), "n": tf.constant(8, tf.int64)}, {"whole": 1.0})
    found = {
        int(sample.data["n"][0])
        for sample in client.sample("whole", 50, emit_timesteps=False, unpack_as_table_signature=True)
    }
    assert found == {7, 8}


def test_inferred_signatures_are_tensor_specs() -> None:
    reference = structured_writer.create_reference_step({"a": None, "b": {"c": None}})
    configs = [
        structured_writer.create_config({"x": reference["a"][-3:-1], "y": {"z": reference["b"]["c"][-1]}}, "table"),
        structured_writer.create_config({"x": reference["a"][-3:], "y": {"z": reference["b"]["c"][-2]}}, "table"),
    ]
    steps = {"a": np.zeros([3, 3], np.float32), "b": {"c": np.zeros([], np.int32)}}
    assert structured_writer.infer_signature(configs, steps) == {
        "x": tf.TensorSpec([None, 3, 3], tf.float32, "x"),
        "y": {"z": tf.TensorSpec([], tf.int32, "y/z")},
    }


def patterned(steps: Any, pattern: Any, *, respect: bool = True, ends: Any = None, conditions: Any = ()) -> list[Any]:
    config = structured_writer.create_config(pattern, "any", conditions)
    dataset = pattern_dataset.PatternDataset(
        tf.data.Dataset.from_tensor_slices(steps), [config], respect, ends or (lambda _: False)
    )
    assert isinstance(dataset, tf.data.Dataset)
    return [tf.nest.map_structure(lambda x: x.numpy().tolist(), each) for each in dataset]


SINGLE = structured_writer.pattern_from_transform(None, lambda step: step[-1])


def test_a_pattern_dataset_applies_patterns_and_conditions() -> None:
    nested = {
        "observation": {"f": [0, 1, 2, 3], "g": [0, 1, 2, 3]},
        "action": [0, 1, 2, 3],
        "is_last": [False] * 4,
    }
    first = [structured_writer.Condition.step_index() <= 2]
    ends = lambda step: step["is_last"]  # noqa: E731
    assert patterned(nested, SINGLE, conditions=first, ends=ends) == [0, 1, 2]
    pairs = [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert patterned(pairs, SINGLE, conditions=first) == pairs[:3]
    double = structured_writer.pattern_from_transform(None, lambda step: step[-2:])
    assert patterned(pairs, double) == [pairs[i : i + 2] for i in range(3)]
    reference = structured_writer.create_reference_step({"observation": {"f": 0, "g": 0}, "action": 0, "is_last": 0})
    moved = {
        "observation": {"f": reference["observation"]["f"][-2]},
        "next_observation": {"f": reference["observation"]["f"][-1]},
    }
    assert patterned(nested, moved, ends=ends) == [
        {"observation": {"f": i}, "next_observation": {"f": i + 1}} for i in range(3)
    ]


def test_a_pattern_dataset_minds_the_ends_of_episodes_if_asked() -> None:
    steps = {"data": [0, 1, 2, 3, 4, 5, 6], "is_last": [False, False, False, True, False, False, True]}
    reference = structured_writer.create_reference_step({"data": 0, "is_last": 0})
    pair = (reference["data"][-2], reference["data"][-1])
    ends = lambda step: step["is_last"]  # noqa: E731
    assert patterned(steps, pair, ends=ends) == [(0, 1), (1, 2), (2, 3), (4, 5), (5, 6)]
    assert patterned(steps, pair, ends=ends, respect=False) == list(itertools.pairwise(range(7)))


def test_a_pattern_dataset_with_several_configs_of_different_lengths() -> None:
    reference = structured_writer.create_reference_step([0])
    configs = [structured_writer.create_config((reference[0][-n:],), "t") for n in (1, 3)]
    dataset = pattern_dataset.PatternDataset(
        tf.data.Dataset.from_tensor_slices(([0, 1, 2, 3],)), configs, True, lambda *_: False
    )
    assert dataset.element_spec == (tf.TensorSpec((None,), tf.int32, "0"),)
    assert [each.numpy().tolist() for (each,) in dataset] == [[0], [1], [2], [0, 1, 2], [3], [1, 2, 3]]
    with pytest.raises(ValueError, match="must return `bool`"):
        pattern_dataset.PatternDataset(
            tf.data.Dataset.range(3), [structured_writer.create_config(SINGLE, "t")], True, lambda x: x
        )


def test_samples_of_patterns_have_zeros_for_info() -> None:
    config = structured_writer.create_config(SINGLE, "t", [structured_writer.Condition.step_index() <= 2])
    steps = tf.data.Dataset.from_tensor_slices({"data": [0, 1, 2, 3]})
    found = list(pattern_dataset.pattern_dataset_with_info(steps, [config], True, lambda _: False))
    assert [int(sample.data) for sample in found] == [0, 1, 2]
    assert all(tuple(sample.info) == tuple(reverb.SampleInfo.zeros()) for sample in found)
