import os
import resource
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from topology import errors
from topology.nodes import replay
from topology.nodes.replay import rate_limiters, selectors
from topology.nodes.replay.checkpoint_files import dtype_of, name_of_dtype
from topology.nodes.replay.checkpointers import CheckpointError, DefaultCheckpointer, TempDirCheckpointer
from topology.nodes.replay.columns import ArrayColumn
from topology.nodes.replay.service import ReplayService

WAIT_S = 20


@pytest.fixture
def start(tmp_path):
    """Starts services that keep checkpoints in `tmp_path`, and gives clients of them."""
    services = []

    def make(*tables, checkpointer=None, **options):
        checkpointer = DefaultCheckpointer(tmp_path, **options) if checkpointer is None else checkpointer
        services.append(ReplayService(tables, checkpointer=checkpointer))
        client = replay.Client("memory:test", service=services[-1])
        client.store = services[-1].store
        return client

    yield make
    for service in services:
        service.close()


def fill(client, values, table="table", writer=None):
    with writer or client.trajectory_writer(3) as writer:
        for value in values:
            writer.append({"x": np.full(4, value), "n": value})
            writer.create_item(table, 1.0 + value, {k: v[-1:] for k, v in writer.history.items()})


def everything(client, table="table"):
    """What is sampled from a queue: values, keys, priorities, times sampled."""
    size = client.server_info()[table].current_size
    batch = client.sample_batch(table, size)
    return batch.data["n"][:, 0].tolist(), batch.info.key.tolist(), batch.info.priority.tolist()


def test_all_of_an_item_comes_back(start, make_table):
    client = start(make_table(sampler=selectors.Fifo(), max_times_sampled=3, max_size=50))
    fill(client, range(60))
    client.sample_batch("table", 7)
    keys = client.sample_batch("table", 1).info.key
    client.update_priorities("table", keys, [99.0])
    before = client.server_info()["table"]
    path = client.checkpoint()
    expected = client.sample_batch("table", 40)

    again = start(make_table(sampler=selectors.Fifo(), max_times_sampled=3, max_size=50))
    after = again.server_info()["table"]
    for name in ("current_size", "num_episodes", "num_deleted_episodes", "num_unique_samples", "rate_limiter_info"):
        assert getattr(after, name) == getattr(before, name), name
    got = again.sample_batch("table", 40)
    for name in ("key", "priority", "times_sampled", "table_size", "probability"):
        assert getattr(got.info, name).tolist() == getattr(expected.info, name).tolist(), name
    np.testing.assert_array_equal(got.data["x"], expected.data["x"])
    assert path.endswith("000000000001")


@pytest.mark.parametrize(
    "sampler",
    [selectors.Uniform(), selectors.Prioritized(0.7), selectors.Lifo(), selectors.MinHeap(), selectors.MaxHeap()],
)
def test_the_draws_after_a_restore_are_those_that_would_have_come(start, make_table, sampler):
    client = start(make_table(sampler=sampler, max_size=100))
    fill(client, [v % 5 for v in range(130)])
    client.sample_batch("table", 20)
    client.checkpoint()
    expected = client.sample_batch("table", 50).info.key.tolist()
    again = start(make_table(sampler=sampler, max_size=100, seed=5))
    assert again.sample_batch("table", 50).info.key.tolist() == expected


def test_order_and_limits_of_a_queue(start):
    client = start(replay.Table.queue("table", 10))
    fill(client, range(8))
    client.sample_batch("table", 3)
    client.checkpoint()
    again = start(replay.Table.queue("table", 10))
    table = again.server_info()["table"]
    assert table.rate_limiter_info.insert_stats.completed == 8
    assert table.rate_limiter_info.sample_stats.completed == 3
    assert everything(again)[0] == [3, 4, 5, 6, 7]
    with pytest.raises(errors.ReplayDeadlineExceeded):
        again.sample_batch("table", 1, timeout_s=0)


def test_steps_are_stored_once_and_shared_again(start, make_table):
    client = start(make_table(max_size=1000), make_table("other"))
    with client.trajectory_writer(20) as writer:
        for value in range(100):
            writer.append({"x": np.full(1000, value, np.int64), "n": value})
            if value >= 19:
                writer.create_item("table", 1.0, {"x": writer.history["x"][-20:]})
                writer.create_item("other", 1.0, {"x": writer.history["x"][-1]})
    path = client.checkpoint()
    assert os.path.getsize(os.path.join(path, "arrays.bin")) < 100 * 8000 * 1.2
    again = start(make_table(max_size=1000), make_table("other"))
    assert again.store.live_rows == 100
    data = again.sample_batch("table", 50).data["x"]
    assert (data[:, :, 0] - data[:, :1, 0] == np.arange(20)).all()
    again.reset("table")
    again.reset("other")
    again.link._service.close()
    assert again.store.live_rows == 0


def test_kinds_of_columns(start, make_table):
    step = {
        "f16": np.float16(1.5),
        "c": np.complex128(1 + 2j),
        "date": np.datetime64("2020-01-01", "D"),
        "record": np.array((1, 2.5), [("a", "<i4"), ("b", "<f8", (2,))]),
        "empty": np.zeros((0, 3)),
        3: True,
    }
    client = start(make_table(sampler=selectors.Fifo()))
    client.insert({str(key): value for key, value in step.items()}, {"table": 1.0})
    client.checkpoint()
    again = start(make_table(sampler=selectors.Fifo()))
    data = again.sample_batch("table", 1).data
    for key, value in step.items():
        np.testing.assert_array_equal(data[str(key)][0, 0], value)


def test_dtypes_as_json():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in (np.int8, ">f4", "datetime64[us]", [("a", "i4"), ("b", [("c", "f8", (2, 3))])], ml_dtypes.bfloat16):
        assert dtype_of(name_of_dtype(np.dtype(dtype))) == np.dtype(dtype)
    with pytest.raises(CheckpointError, match="ml_dtypes"):
        dtype_of("float5")


def test_items_sent_again_after_a_restore_are_taken_once(start, make_table):
    client = start(make_table(sampler=selectors.Fifo()))
    sent = []
    insert = client.link._service.insert
    client.link._service.insert = lambda batch, *_: sent.append(batch) or insert(batch)
    fill(client, range(3))
    client.checkpoint()
    again = start(make_table(sampler=selectors.Fifo()))
    for batch in sent:
        again.submit_insert(batch).result(WAIT_S)
    assert everything(again)[0] == [0, 0, 0]
    assert again.server_info()["table"].current_size == 3
    assert again.store.live_rows == 3


# --- settings of today -----------------------------------------------------------------------------------------------


def test_new_settings_win(start, make_table):
    client = start(make_table(sampler=selectors.Fifo(), max_times_sampled=5))
    fill(client, range(20))
    client.checkpoint()
    limiter = rate_limiters.SampleToInsertRatio(1.0, 1, 1000.0)
    again = start(
        make_table(sampler=selectors.Lifo(), max_size=10, max_times_sampled=1, rate_limiter=limiter),
    )
    info = again.server_info()["table"]
    assert (info.max_size, info.max_times_sampled, info.current_size) == (10, 1, 10)
    assert info.rate_limiter_info.min_diff == limiter.min_diff
    assert everything(again)[0] == list(range(19, 9, -1))


def test_items_over_a_smaller_limit_of_samples_go(start, make_table):
    client = start(make_table(sampler=selectors.Fifo(), max_times_sampled=5))
    fill(client, range(4))
    client.sample_batch("table", 3)
    client.checkpoint()
    again = start(make_table(sampler=selectors.Fifo(), max_times_sampled=2))
    assert everything(again)[0] == [1, 1, 2]  # the first item, sampled 3 times, is gone


def test_a_table_more_is_empty_and_a_table_less_is_an_error(start, make_table):
    client = start(make_table())
    fill(client, range(3))
    client.checkpoint()
    assert start(make_table(), make_table("new")).server_info()["new"].current_size == 0
    with pytest.raises(CheckpointError, match="has the tables table, which this server does not; it has other"):
        start(make_table("other"))


def test_the_signature_must_admit_the_items(start, make_table):
    client = start(make_table())
    fill(client, range(3))
    client.checkpoint()
    signature = {"n": replay.Spec((1,), np.int64), "x": replay.Spec((1, 4), np.float32)}
    with pytest.raises(CheckpointError, match=r"column x of the item is <int64\[1, 4\]>.*says <float32\[1, 4\]>"):
        start(make_table(signature=signature))


# --- files -----------------------------------------------------------------------------------------------------------


def test_the_latest_are_kept(start, make_table, tmp_path):
    client = start(make_table(), keep_latest=2)
    for count in range(4):
        fill(client, [count])
        client.checkpoint()
    assert sorted(child.name for child in tmp_path.iterdir()) == ["000000000003", "000000000004"]
    assert start(make_table()).server_info()["table"].current_size == 4
    with pytest.raises(ValueError, match="keep_latest must be at least 1, got 0"):
        DefaultCheckpointer(tmp_path, keep_latest=0)


def test_groups_and_fallback(start, make_table, tmp_path):
    client = start(make_table(), group="a")
    fill(client, range(3))
    path = client.checkpoint()
    assert start(make_table(), group="b").server_info()["table"].current_size == 0
    for fallback in (path, tmp_path / "a"):
        restored = start(make_table(), group="b", fallback_checkpoint_path=fallback)
        assert restored.server_info()["table"].current_size == 3
    with pytest.raises(CheckpointError, match="no checkpoint, nor are there any in it"):
        start(make_table(), group="b", fallback_checkpoint_path=tmp_path / "nowhere")


def test_a_checkpoint_given_instead_of_its_directory(start, make_table):
    client = start(make_table())
    path = client.checkpoint()
    with pytest.raises(ValueError, match="is a checkpoint: give the directory above it"):
        DefaultCheckpointer(path)


def test_without_a_checkpointer(serve, make_table):
    client = serve(make_table())
    with pytest.raises(CheckpointError, match="start it with checkpointer="):
        client.checkpoint()


def test_temporary_directories():
    first, second = TempDirCheckpointer(), TempDirCheckpointer()
    assert first.path != second.path
    for each in (first, second):
        os.rmdir(each.path)


def test_a_damaged_checkpoint_is_told(start, make_table):
    client = start(make_table())
    fill(client, range(3))
    path = client.checkpoint()
    file = os.path.join(path, "arrays.bin")
    with open(file, "r+b") as arrays:
        arrays.seek(5)
        arrays.write(b"\xff")
    with pytest.raises(CheckpointError, match=r"arrays\.bin is damaged"):
        start(make_table())
    with open(os.path.join(path, "index.json"), "w") as index:
        index.write('{"version": 7}')
    with pytest.raises(CheckpointError, match="is of version 7 of the format; this release reads version 1"):
        start(make_table())


def test_a_full_disk_leaves_the_checkpoint_before(start, make_table, tmp_path):
    client = start(make_table())
    fill(client, range(3))
    path = client.checkpoint()
    fill(client, range(1000))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        with pytest.raises(
            CheckpointError, match=r"no checkpoint was written to .*; the checkpoint before it.* intact"
        ):
            client.checkpoint()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert [str(child) for child in tmp_path.iterdir()] == [path]
    assert start(make_table()).server_info()["table"].current_size == 3
    client.checkpoint()
    assert start(make_table()).server_info()["table"].current_size == 1000


_SAVE_FOR_EVER = """
import sys
import numpy as np
from topology.nodes import replay
from topology.nodes.replay import rate_limiters, selectors
from topology.nodes.replay.checkpointers import DefaultCheckpointer
table = replay.Table("table", selectors.Fifo(), selectors.Fifo(), 10**6, rate_limiters.MinSize(1))
server = replay.Server([table], checkpointer=DefaultCheckpointer(sys.argv[1]))
client = server.localhost_client()
with client.trajectory_writer(1) as writer:
    writer.append_batch({"x": np.arange(20_000)[:, None] + np.zeros(100, np.int64)})
    writer.create_items("table", [1.0] * 20_000, {"x": writer.history["x"][-1:]})
print(client.checkpoint(), flush=True)
while True:
    client.insert({"x": np.full(100, 20_000)}, {"table": 1.0})
    client.checkpoint()
"""


@pytest.mark.parametrize("files_later", [1, 2, 4, 7])
def test_kill_9_during_a_save_loses_nothing_saved_before(start, make_table, tmp_path, files_later):
    process = subprocess.Popen([sys.executable, "-c", _SAVE_FOR_EVER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline().strip() == str(tmp_path / "000000000001")
        # It saves without end: the kill comes at another place of a save each time.
        assert _kill_when(process, tmp_path, files_later)
    finally:
        process.kill()
        process.communicate()
    client = start(make_table(max_size=10**6, sampler=selectors.Fifo()))
    size = client.server_info()["table"].current_size
    assert size >= 20_000
    assert client.sample_batch("table", 1).data["x"][0, 0, 0] == 0
    client.checkpoint()
    assert len(list(tmp_path.iterdir())) == 1


def _kill_when(process, folder, count):
    """Kills the process once `count` more directories of unfinished checkpoints have been seen."""
    seen, timer = set(), threading.Event()
    deadline = threading.Timer(WAIT_S, timer.set)
    deadline.start()
    try:
        while not timer.is_set():
            seen |= {child.name for child in folder.glob(".unfinished-*")}
            if len(seen) >= count:
                process.send_signal(signal.SIGKILL)
                return True
        return False
    finally:
        deadline.cancel()
        deadline.join()


def test_the_server_goes_on_while_it_saves(make_table, tmp_path, monkeypatch):
    """Bytes are written outside the locks: inserts and samples pass while a save is held up."""
    reached, go_on = threading.Event(), threading.Event()
    read = ArrayColumn.read

    def slow_read(column, rows, out):
        if threading.current_thread() is saving:
            reached.set()
            assert go_on.wait(WAIT_S)
        read(column, rows, out)

    monkeypatch.setattr(ArrayColumn, "read", slow_read)
    service = ReplayService([make_table(sampler=selectors.Fifo())], checkpointer=DefaultCheckpointer(tmp_path))
    client = replay.Client("memory:x", service=service)
    fill(client, range(3))
    saving = threading.Thread(target=client.checkpoint)
    saving.start()
    assert reached.wait(WAIT_S)
    fill(client, range(3, 6))
    assert client.sample_batch("table", 4).data["n"].tolist() == [[0]] * 4
    client.reset("table")
    fill(client, range(6, 8))
    assert client.server_info()["table"].current_size == 2
    go_on.set()
    saving.join(WAIT_S)
    service.close()
    restored = ReplayService([make_table(sampler=selectors.Fifo())], checkpointer=DefaultCheckpointer(tmp_path))
    client = replay.Client("memory:x", service=restored)
    assert client.server_info()["table"].current_size == 3
    assert client.sample_batch("table", 1).data["x"].tolist() == [[[0] * 4]]
    restored.close()
