"""Forms of items and steps: however many there have been, only those in use take memory, on both sides."""

import gc
import mmap

import numpy as np
import pytest

from topology.errors import ReplayError
from topology.nodes import replay
from topology.nodes.replay import selectors
from topology.nodes.replay.columns import ArrayColumn
from topology.nodes.replay.items import _MOST_POOLS
from topology.nodes.replay.service import ReplayService
from topology.nodes.replay.writers import _MOST_LAYOUTS

FIFO = selectors.Fifo()


@pytest.fixture
def service(make_table):
    service = ReplayService([make_table(sampler=FIFO, max_size=50)])
    yield service
    service.close()


def test_items_of_ever_new_forms_stay_bounded_and_right(service):
    """As where goals are drawn at random from later steps: of 60 steps, 1,770 pairs, again and again."""
    client = replay.Client("memory:x", service=service)
    rng = np.random.default_rng(0)
    core = service.tables["table"]._core
    with client.trajectory_writer(60) as writer:
        writer.append_batch({"x": np.arange(60)})
        history = writer.history["x"]
        for round_number in range(3):
            wanted = []
            for _ in range(1000):
                a, b, c = rng.choice(60, 3, replace=False).tolist()
                writer.create_item("table", 1.0, {"a": history[[a, b]], "b": history[c]})
                wanted.append([a, b, c])
            writer.flush()
            batch = client.sample_batch("table", 50, replacement=False)
            got = np.concatenate([batch.data["a"], batch.data["b"][:, None]], 1)
            assert got.tolist() == wanted[-50:], round_number
        assert len(writer._layout_of) <= _MOST_LAYOUTS
        assert len(writer._sender.outbox._layouts) <= _MOST_LAYOUTS + 400
        assert len(core.items._pools) <= 50 + 100 + _MOST_POOLS
    client.reset("table")
    gc.collect()
    assert len(core.items._pool_of) <= _MOST_POOLS
    assert len(service.store._layouts) <= _MOST_POOLS
    assert service.store.live_rows == 0


def test_steps_of_ever_new_shapes_let_go_of_their_memory(service):
    client = replay.Client("memory:x", service=service)
    for size in range(1, 300):
        client.insert({"x": np.full(size, size)}, {"table": 1.0})
    gc.collect()
    assert len(service.store._groups) <= 50 + _MOST_POOLS
    shapes = [sample.data[0].shape for sample in client.sample("table", 3, emit_timesteps=False)]
    assert shapes == [(1, 250)] * 3
    client.reset("table")
    gc.collect()
    assert len(service.store._groups) <= _MOST_POOLS


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="a system without huge pages")
def test_a_small_column_asks_for_no_huge_pages(monkeypatch):
    asked = []
    monkeypatch.setattr(ArrayColumn, "_ask_for_huge_pages", lambda column, memory: asked.append(len(memory)))
    column = ArrayColumn(np.dtype(np.int64), (8,), segment_bytes=16 << 20)
    column.reserve(1000)
    column.write(np.arange(1000), np.ones((1000, 8), np.int64))
    assert not asked
    column.reserve(100_000)
    assert asked == [16 << 20]
    column.reserve(300_000)
    assert asked == [16 << 20] * 2


def test_without_memory_the_writer_is_told_and_the_table_goes_on(service, monkeypatch):
    client = replay.Client("memory:x", service=service)
    client.insert({"x": 1.0}, {"table": 1.0})

    def refuse(*_, **__):
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as context:
        context.setattr(mmap, "mmap", refuse)
        with pytest.raises(ReplayError, match="no memory for 1 more steps of 80 bytes, where 0 like them are kept"):
            client.insert({"x": np.zeros(10)}, {"table": 1.0})
        client.insert({"x": 2.0}, {"table": 1.0})
    client.insert({"x": np.zeros(10)}, {"table": 1.0})
    assert service.tables["table"].info.current_size == 3
