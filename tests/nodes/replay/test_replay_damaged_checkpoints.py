"""Whatever has become of a checkpoint: it is restored as it was, or refused with an error that says so."""

import json
import os
import shutil

import numpy as np
import pytest

from topology.nodes import replay
from topology.nodes.replay import rate_limiters, selectors
from topology.nodes.replay.checkpointers import CheckpointError, DefaultCheckpointer
from topology.nodes.replay.service import ReplayService

FIFO = selectors.Fifo()


def make_table():
    return replay.Table("table", FIFO, selectors.MinHeap(), 100, rate_limiters.MinSize(1), seed=0)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of items of two forms, with numbers and text."""
    root = tmp_path_factory.mktemp("saved")
    service = ReplayService([make_table()], checkpointer=DefaultCheckpointer(root))
    client = replay.Client("memory:x", service=service)
    with client.trajectory_writer(3) as writer:
        for value in range(6):
            writer.append({"x": np.full(3, value), "name": f"step {value}"})
            writer.create_item("table", value, {"x": writer.history["x"][-1:], "name": writer.history["name"][-1]})
        writer.create_item("table", 9.0, {"x": writer.history["x"][-3:]})
    path = client.checkpoint()
    service.close()
    return path


@pytest.fixture
def copy(saved, tmp_path):
    """A copy of it in a directory of its own."""
    return shutil.copytree(saved, tmp_path / "000000000001")


def restore(path):
    """What the items hold, and what is known of the table."""
    service = ReplayService([make_table()], checkpointer=DefaultCheckpointer(os.path.dirname(path)))
    try:
        client = replay.Client("memory:x", service=service)
        info = client.server_info()["table"]
        items = [
            [np.asarray(leaf).tolist() for leaf in item.data]
            for item in client.sample("table", 7, emit_timesteps=False)
        ]
        return items, info.current_size, info.rate_limiter_info.insert_stats.completed
    finally:
        service.close()


@pytest.mark.parametrize("name", ["index.json", "arrays.bin"])
def test_bytes_that_changed(copy, name):
    expected = restore(copy)
    path = os.path.join(copy, name)
    with open(path, "rb") as file:
        whole = file.read()
    rng = np.random.default_rng(0)
    refused = 0
    for place in rng.choice(len(whole), 60).tolist():
        changed = bytearray(whole)
        changed[place] ^= 1 << int(rng.integers(8))
        with open(path, "wb") as file:
            file.write(changed)
        try:
            assert restore(copy) == expected
        except CheckpointError:
            refused += 1
    assert refused > 40  # a space may become another one


@pytest.mark.parametrize("name", ["index.json", "arrays.bin"])
def test_files_that_were_cut_off(copy, name):
    path = os.path.join(copy, name)
    size = os.path.getsize(path)
    for left in (size - 1, size // 2, 1, 0):
        os.truncate(path, left)
        with pytest.raises(CheckpointError):
            restore(copy)
    os.remove(path)
    with pytest.raises(CheckpointError):
        restore(copy)


def _set(*keys, value):
    def change(index):
        for key in keys[:-1]:
            index = index[key]
        index[keys[-1]] = value

    return change


def _swap_arrays(one, other):
    def change(index):
        arrays = index["tables"]["table"]["arrays"]
        arrays[one], arrays[other] = arrays[other], arrays[one]

    return change


@pytest.mark.parametrize(
    "change",
    [
        _set("tables", "table", "counts", "inserts", value=70),
        _set("tables", "table", "counts", "samples", value=-1),
        _set("tables", "table", "counts", value={}),
        _set("tables", "table", "parts", value=[]),
        _set("tables", "table", "parts", 0, "layout", value=1),
        _set("tables", "table", "parts", 0, "layout", value=5),
        _set("tables", "table", "rng", value={"state": 1}),
        _set("tables", "table", "arrays", value={}),
        _set("tables", "table", value=None),
        _set("tables", value=[]),
        _set("groups", value=[]),
        _set("groups", 0, "rows", value=1 << 30),
        _set("groups", 0, "columns", 0, "shape", value=[4]),
        _set("groups", 0, "columns", 0, "dtype", value="<f4"),
        _set("groups", 0, "columns", 0, "dtype", value="no dtype"),
        _set("groups", 0, "columns", 0, "blocks", value=[]),
        _set("layouts", 0, "leaves", 0, 0, value=7),
        _set("layouts", 0, "leaves", value=[]),
        _set("layouts", 0, "paths", value=[]),
        _set("layouts", 0, "group", value=3),
        _set("layouts", 0, "structure", value="?"),
        _swap_arrays("slots", "priority"),
        _swap_arrays("sampler_order", "episode"),
        _swap_arrays("generations", "times_sampled"),
        lambda index: index["tables"]["table"]["arrays"]["slots"].update(bytes=1 << 62),
        lambda index: index["tables"]["table"]["arrays"]["slots"].update(shape=[1 << 40]),
        lambda index: index.update(version="1"),
    ],
)
def test_what_contradicts_itself(copy, change):
    """As somebody may write it, or an early release of this one: without a checksum of the index."""
    path = os.path.join(copy, "index.json")
    with open(path) as file:
        index = json.load(file)
    del index["crc32"]
    with open(path, "w") as file:
        json.dump(index, file)
    assert restore(copy)[1] == 7  # as it is, it is fine
    change(index)
    with open(path, "w") as file:
        json.dump(index, file)
    with pytest.raises(CheckpointError):
        restore(copy)


@pytest.mark.parametrize("text", ["[]", "null", "7", "[" * 100_000, '{"version": 1}', "\udcff"])
def test_indices_of_something_else(copy, text):
    with open(os.path.join(copy, "index.json"), "wb") as file:
        file.write(text.encode(errors="surrogateescape"))
    with pytest.raises(CheckpointError):
        restore(copy)


def test_only_into_new_tables(saved):
    table = make_table()
    service = ReplayService([table])
    replay.Client("memory:x", service=service).insert({"x": 1.0}, {"table": 1.0})
    with pytest.raises(CheckpointError, match="table 'table' is in use: a checkpoint is restored into new tables only"):
        DefaultCheckpointer(os.path.dirname(saved)).load_latest(service.tables, service.store)
    assert table.info.current_size == 1
    service.close()


def test_a_path_one_level_too_high_is_warned_of(saved, tmp_path, caplog):
    shutil.copytree(saved, tmp_path / "group" / "000000000001")
    service = ReplayService([make_table()], checkpointer=DefaultCheckpointer(tmp_path))
    assert service.tables["table"].info.current_size == 0
    service.close()
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"no checkpoint in {tmp_path}, but in {tmp_path}/group: give that path" in told
