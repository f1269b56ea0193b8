"""What Reverb's tests check of datasets, through its names, where TensorFlow is not installed.

With it they are TensorFlow's: see test_reverb_tensorflow.py.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from topology.compat import provided
from topology.compat.reverb.missing import has_tensorflow
from topology.nodes.replay import Spec

with provided():
    import reverb
    from reverb import errors

pytestmark = [
    pytest.mark.usefixtures("provided"),
    pytest.mark.skipif(has_tensorflow(), reason="datasets are of TensorFlow here"),
]

TIMEOUT_S = 30
KINDS = ["TrajectoryDataset", "TimestepDataset"]
NEST = {"observation": {"a": (3, 3), "b": ()}, "reward": (1,)}


@pytest.fixture
def client() -> Iterator[Any]:
    """Of a table without signature, of two with one, and of a queue."""
    nest = [Spec((None, 3), np.float32), Spec((None,), np.int64)]
    uniform, fifo, limiter = reverb.selectors.Uniform(), reverb.selectors.Fifo(), reverb.rate_limiters.MinSize(1)
    server = reverb.Server(
        [
            reverb.Table("plain", uniform, fifo, 1000, limiter),
            reverb.Table("steps", uniform, fifo, 1000, limiter, signature=Spec((None, 3), np.float32)),
            reverb.Table("nest", uniform, fifo, 1000, limiter, signature=nest),
            reverb.Table.queue("queue", 100),
        ]
    )
    with reverb.Client(f"localhost:{server.port}") as client:
        yield client
    server.stop()


def fill(client: Any, *tables: str, items: int = 6, length: int = 4) -> None:
    with client.trajectory_writer(length) as writer:
        for i in range(items + length - 1):
            writer.append(np.full(3, i, np.float32))
            if i >= length - 1:
                for table in tables:
                    writer.create_item(table, 1.0, writer.history[-length:])


def dataset(client: Any, kind: str = KINDS[0], table: str = "queue", **options: Any) -> Any:
    shape = (None, 3) if kind == KINDS[0] else (3,)
    given = {"max_in_flight_samples_per_worker": 10, "rate_limiter_timeout_ms": 0, **options}
    return getattr(reverb, kind)(client.server_address, table, np.float32, shape, **given)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("option", "value", "is_valid"),
    [
        ("num_workers_per_iterator", 0, False),
        ("num_workers_per_iterator", 1, True),
        ("num_workers_per_iterator", -1, True),
        ("num_workers_per_iterator", -2, False),
        ("max_samples_per_stream", 0, False),
        ("max_samples_per_stream", 1, True),
        ("max_samples_per_stream", -1, True),
        ("max_samples_per_stream", -2, False),
        ("max_in_flight_samples_per_worker", 0, False),
        ("max_in_flight_samples_per_worker", 1, True),
        ("max_in_flight_samples_per_worker", -1, False),
        ("rate_limiter_timeout_ms", -1, True),
        ("rate_limiter_timeout_ms", -2, False),
    ],
)
def test_options_of_datasets_are_checked(kind: str, option: str, value: int, is_valid: bool) -> None:
    def make() -> Any:
        options = {"max_in_flight_samples_per_worker": 10, option: value}
        return getattr(reverb, kind)("localhost:1", "table", np.float32, (3,), **options)

    if is_valid:
        assert make().element_spec.data.dtype == np.float32
        return
    with pytest.raises(ValueError, match=rf"{option} \({value}\) must be"):
        make()


@pytest.mark.parametrize("kind", KINDS)
def test_elements_of_datasets(client: Any, kind: str) -> None:
    fill(client, "plain")
    data = dataset(client, kind, "plain")
    shape = (4, 3) if kind == KINDS[0] else (3,)
    first, second = iter(data), iter(data)
    for sample in (next(first), next(second), next(data.as_numpy_iterator()), *data.take(2)):
        assert isinstance(sample, reverb.ReplaySample)
        assert [field.dtype for field in sample.info] == ["u8", "f8", "i8", "f8", "i4"]
        assert sample.data.shape == shape
    for batches in (data.batch(2, True), data.map(lambda sample: sample).batch(2, drop_remainder=True)):
        batch = next(iter(batches.prefetch(1)))
        assert batch.info.key.shape == (2,)
        assert batch.data.shape == (2, *shape)
    assert data.batch(2, True).element_spec.data.shape[0] == 2


@pytest.mark.parametrize("timeout_ms", [0, 20])
@pytest.mark.parametrize("kind", KINDS)
def test_the_time_limit_of_a_dataset(client: Any, kind: str, timeout_ms: int, caplog: pytest.LogCaptureFixture) -> None:
    data = dataset(client, kind, rate_limiter_timeout_ms=timeout_ms)
    assert list(data) == list(data.batch(2)) == []
    fill(client, "queue", items=5)
    count = 5 if kind == KINDS[0] else 20
    assert [len(batch.data) for batch in data.batch(3)] == [3] * (count // 3) + [count % 3]
    for _ in range(3):
        fill(client, "queue", items=5)
        assert len(list(data)) == count
    gc.collect()
    assert caplog.text == "", "those that were asked for ahead end without a word"


def test_a_queue_in_order_and_items_of_any_length(client: Any) -> None:
    for length in range(1, 11):
        fill(client, "queue", items=1, length=length)
    fill(client, "queue", items=5)
    found = [sample.data[:, 0].astype(int).tolist() for sample in dataset(client, num_workers_per_iterator=2)]
    assert found == [list(range(length)) for length in range(1, 11)] + [list(range(i, i + 4)) for i in range(5)]


def test_inserted_items_and_nested_ones(client: Any) -> None:
    for i in range(4):
        client.insert([np.full(3, i, np.float32)], {"queue": 1.0})
    steps = dataset(client, KINDS[1])
    assert [batch.data.tolist() for batch in steps.batch(2, True)] == [[[i] * 3, [i + 1] * 3] for i in (0, 2)]
    step = {"observation": {"a": np.zeros((3, 3)), "b": 7}, "reward": np.ones(1)}
    with client.trajectory_writer(2) as writer:
        for _ in range(2):
            writer.append(step)
        history = writer.history
        whole = {"observation": {k: v[:] for k, v in history["observation"].items()}, "reward": history["reward"][:]}
        writer.create_item("queue", 1.0, whole)
    dtypes = {"observation": {"a": np.float64, "b": np.int64}, "reward": np.float64}
    nested = reverb.TimestepDataset(client.server_address, "queue", dtypes, NEST, 4, rate_limiter_timeout_ms=0)
    (batch,) = nested.batch(2)
    assert batch.data["observation"]["a"].shape == (2, 3, 3)
    assert batch.data["observation"]["b"].tolist() == [7, 7]


@pytest.mark.parametrize("count", [1, 3, 20])
def test_as_many_samples_are_asked_for_as_may_be_in_flight(client: Any, count: int) -> None:
    fill(client, "plain")
    options = {"max_in_flight_samples_per_worker": count, "num_workers_per_iterator": 1, "rate_limiter_timeout_ms": -1}
    for i, _ in enumerate(dataset(client, table="plain", **options).take(10), 1):
        assert i <= client.server_info()["plain"].rate_limiter_info.sample_stats.completed < i + 2 * count


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 4])
def test_a_dataset_draws_max_samples_and_no_more(client: Any, kind: str, count: int) -> None:
    fill(client, "plain")
    for each, length in ((dataset(client, kind, "plain", max_samples=count), 1 if kind == KINDS[0] else 4),):
        assert len(list(each)) == count * length
        assert sum(len(batch.data) for batch in each.batch(3)) == count * length
    assert client.server_info()["plain"].rate_limiter_info.sample_stats.completed == 2 * count


def test_what_does_not_fit_the_items_is_refused(client: Any) -> None:
    fill(client, "plain", "steps")
    for table in ("plain", "steps"):
        for dtypes, shapes, text in (
            ([np.float32] * 2, [(None, 3)] * 2, "1 columns?, the dataset was told of 2"),
            ([np.int64], [(None, 3)], r"float32\[4, 3\].*int64\[\?, 3\]"),
            ([np.float32], [(None, 3, 1)], r"float32\[4, 3\].*float32\[\?, 3, 1\]"),
        ):
            wrong = reverb.TrajectoryDataset(client.server_address, table, dtypes, shapes, 1)
            with pytest.raises(ValueError, match=text):
                next(iter(wrong))
    with pytest.raises(ValueError, match="shapes has nothing at"):
        reverb.TrajectoryDataset(client.server_address, "plain", {"x": int}, {"y": ()}, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_datasets_of_signatures(client: Any, kind: str) -> None:
    begin = getattr(reverb, kind).from_table_signature
    address = client.server_address
    with pytest.raises(ValueError, match=r"no table 'nowhere' .* nest, plain, queue, steps"):
        begin(address, "nowhere", 100)
    with pytest.raises(ValueError, match=rf"'plain' at {address} has no signature"):
        begin(address, "plain", 100)
    with pytest.raises(errors.DeadlineExceededError):
        begin("localhost:1", "steps", 100, get_signature_timeout_secs=0.1)
    fill(client, "steps")
    found = begin(address, "steps", 100)
    assert found.element_spec.data.dtype == np.float32
    assert found.element_spec.data.shape == ((None, 3) if kind == KINDS[0] else (3,))
    assert next(iter(found)).data.shape == ((4, 3) if kind == KINDS[0] else (3,))
    assert [spec.dtype for spec in begin(address, "nest", 1).element_spec.data] == [np.float32, np.int64]


def test_closing_an_iterator_wakes_its_reader(client: Any) -> None:
    samples = iter(dataset(client, rate_limiter_timeout_ms=-1))
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(list, samples)
        while not client.server_info(TIMEOUT_S)["queue"].rate_limiter_info.sample_stats.pending:
            assert not reading.done()
        samples.close()
        assert reading.result(TIMEOUT_S) == []


@pytest.mark.parametrize("name", ["TFClient", "PatternDataset"])
def test_what_needs_tensorflow_says_so(name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=rf"reverb\.{name} needs TensorFlow.*rl-topology\[tensorflow\]"):
        getattr(reverb, name)
    with pytest.raises(ModuleNotFoundError, match=r"tf_dtypes\(\) needs TensorFlow"):
        reverb.SampleInfo.tf_dtypes()
