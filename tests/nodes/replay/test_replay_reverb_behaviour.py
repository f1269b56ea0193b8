"""What programs written for Reverb rely on, where no other test looks at it."""

import itertools

import dm_env
import numpy as np
import pytest

from topology.nodes import replay
from topology.nodes.replay import rate_limiters, selectors

FIFO = selectors.Fifo()
SELECTORS = {
    "fifo": FIFO,
    "lifo": selectors.Lifo(),
    "uniform": selectors.Uniform(),
    "prioritized": selectors.Prioritized(1.0),
    "heap": selectors.MinHeap(),
}
LIMITERS = [
    rate_limiters.MinSize(10),
    rate_limiters.Queue(10),
    rate_limiters.Stack(10),
    rate_limiters.SampleToInsertRatio(1.0, 10, 3.0),
]


def test_an_insert_names_a_table_at_least(serve, make_table):
    with pytest.raises(ValueError, match="priorities must contain at least one item"):
        serve(make_table()).insert({"x": 1}, {})


def test_items_of_any_shape_and_dtype_keep_their_order(serve, make_table):
    client = serve(make_table(sampler=FIFO, max_times_sampled=1))
    items = [np.zeros(3, np.int64), np.ones((2, 2), np.float32), [np.int8(1), np.full(2, 2.0)], np.full(1, 7, np.int64)]
    for each in items:
        client.insert(each, {"table": 1.0})
    for each in items:
        (sample,) = client.sample("table", emit_timesteps=False)
        wanted = each if isinstance(each, list) else [each]
        assert len(sample.data) == len(wanted)
        for found, leaf in zip(sample.data, wanted, strict=True):
            assert found.dtype == leaf.dtype
            np.testing.assert_array_equal(found, leaf[None])


def test_keys_after_a_reset_are_new(serve, make_table):
    client = serve(make_table())

    def keys():
        for value in range(10):
            client.insert({"x": value}, {"table": 1.0})
        return set(client.sample_batch("table", 10, replacement=False).info.key.tolist())

    before = keys()
    client.reset("table")
    assert client.server_info()["table"].current_size == 0
    assert before.isdisjoint(keys())


def test_what_may_pass_goes_by_the_limiter_alone(bench, make_table):
    table = make_table(rate_limiter=rate_limiters.SampleToInsertRatio(1.0, 2, (-1.0, 5.0)), max_times_sampled=1)
    assert table.can_insert(5)
    assert not table.can_insert(6)
    assert not table.can_sample(1)
    bench.insert(table, range(3)).result(0)
    assert table.can_sample(4)  # of which only three could be given: a sample takes its item out
    assert not table.can_sample(5)
    assert table.can_insert(2)
    assert not table.can_insert(3)


@pytest.mark.parametrize(("sampler", "remover"), list(itertools.product(SELECTORS, SELECTORS)))
def test_info_tells_every_setting(sampler, remover):
    for limiter in LIMITERS:
        info = replay.Table("t", SELECTORS[sampler], SELECTORS[remover], 123, limiter).info
        assert (info.name, info.max_size, info.current_size) == ("t", 123, 0)
        assert (info.num_episodes, info.num_deleted_episodes, info.signature) == (0, 0, None)
        for kind, options in ((sampler, info.sampler_options), (remover, info.remover_options)):
            assert [name for name in SELECTORS if getattr(options, name)] == [kind]
        found = info.rate_limiter_info
        assert (found.min_diff, found.max_diff) == (limiter.min_diff, limiter.max_diff)


def test_specs_with_bounds_are_signatures(serve, make_table):
    bounded = dm_env.specs.BoundedArray((2,), np.float32, 0.0, 1.0)
    client = serve(make_table(signature={"x": dm_env.specs.BoundedArray((1, 2), np.float32, 0.0, 1.0)}))
    client.insert({"x": bounded.generate_value()}, {"table": 1.0})
    dataset = replay.TrajectoryDataset.from_table_signature(client.server_address, "table", 1)
    assert dataset.element_spec.data["x"].dtype == np.float32
    with iter(dataset.take(1)) as samples:
        assert next(samples).data["x"].shape == (1, 2)
    with client.trajectory_writer(1) as writer:
        writer.append({"x": np.zeros(2)})
        with pytest.raises(ValueError, match="float64"):
            writer.create_item("table", 1.0, {"x": writer.history["x"][:]})


def test_columns_of_different_length_come_back(serve, make_table):
    signature = {"o": replay.Spec((None, 2), np.float32), "a": replay.Spec((None,), np.int64)}
    client = serve(make_table(signature=signature, sampler=FIFO))
    with client.trajectory_writer(4) as writer:
        for value in range(4):
            writer.append({"o": np.full(2, value, np.float32), "a": value})
        writer.create_item("table", 1.0, {"o": writer.history["o"][-4:], "a": writer.history["a"][-4:-1]})
    (sample,) = client.sample("table", emit_timesteps=False, unpack_as_table_signature=True)
    with iter(replay.TrajectoryDataset.from_table_signature(client.server_address, "table", 1)) as samples:
        for data in (sample.data, next(samples).data):
            assert data["o"][:, 0].tolist() == [0, 1, 2, 3]
            assert data["a"].tolist() == [0, 1, 2]


def test_memory_stays_flat_with_demonstrations_beside(serve, make_table):
    client = serve(make_table("demonstrations", max_size=50), make_table("replay", max_size=200))

    def write(table, count):
        with client.trajectory_writer(1) as writer:
            for value in range(count):
                writer.append({"x": np.full(100, value)})
                writer.create_item(table, 1.0, {"x": writer.history["x"][-1:]})

    def draw(count):
        for _ in range(count):
            client.sample_batch("demonstrations", 16)
            client.sample_batch("replay", 16)

    write("demonstrations", 50)
    write("replay", 1000)
    draw(5)
    store = client.server._service.store
    (group,) = store._groups.values()
    high = group._allocator.high
    write("replay", 3000)
    draw(20)
    assert store.live_rows == 250
    assert group._allocator.high <= max(high, 250 + 6 * 100)
