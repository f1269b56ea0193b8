"""Batches and steps that go through memory shared by client and server."""

import fcntl
import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import Future

import numpy as np
import pytest

from topology.errors import ReplayError
from topology.nodes import replay
from topology.nodes.replay import lent_memory, region_pool, selectors
from topology.nodes.replay.landing import Placement
from topology.nodes.replay.links import SampleCallArguments
from topology.nodes.replay.messages import LentArray
from topology.nodes.replay.shared_memory import MemoryAddress, Region, open_region

FIFO = selectors.Fifo()
SHAPE = (64, 64)
WAIT_S = 20


def write(client, values, table="table", **options):
    """Items of one frame, all of whose pixels are the value."""
    with client.trajectory_writer(1, **options) as writer:
        for value in values:
            writer.append({"frame": np.full(SHAPE, value, np.int32), "value": np.int32(value)})
            writer.create_item(table, 1.0, {k: v[-1] for k, v in writer.history.items()})


def check(batch):
    """Every frame is that of its value."""
    np.testing.assert_array_equal(
        batch.data["frame"], np.broadcast_to(batch.data["value"][:, None, None], (16, *SHAPE))
    )


def pool_of(client):
    """The memory that batches land in."""
    return client.link._landing_regions


def is_shared(array):
    """Whether an array lies in a region, by the process's map of its memory."""
    with open("/proc/self/maps") as lines:
        ranges = [line.split()[0].split("-") for line in lines if "memfd:replay" in line]
    return any(int(first, 16) <= array.ctypes.data < int(last, 16) for first, last in ranges)


def wait_until(condition):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.002)


@pytest.fixture
def client(serve, make_table):
    client = serve(make_table(seed=3))
    write(client, range(100))
    client.sample_batch("table", 16)  # from now on it is known to be large
    return client


def test_large_leaves_land_in_shared_memory_and_small_ones_do_not(client):
    batch = client.sample_batch("table", 16)
    check(batch)
    assert is_shared(batch.data["frame"])
    assert not is_shared(batch.data["value"])
    assert batch.data["frame"].flags.c_contiguous
    assert batch.data["frame"].flags.writeable
    assert batch.data["frame"].ctypes.data % 64 == 0


def test_batches_stay_as_they_are_while_they_are_held(client):
    held = [client.sample_batch("table", 16) for _ in range(20)]
    with client.batches("table", 16, prefetch=3) as batches:
        held += [next(batches) for _ in range(20)]
    for batch in held:
        check(batch)
    assert sum(is_shared(batch.data["frame"]) for batch in held) > 30


def test_one_view_holds_the_whole_batch(client):
    batch = client.sample_batch("table", 16)
    value, row = int(batch.data["value"][7]), batch.data["frame"][7, 3, ::2]
    exported = memoryview(batch.data["frame"][5])
    other = int(batch.data["value"][5])
    del batch
    for _ in range(50):
        check(client.sample_batch("table", 16))
    assert (row == value).all()
    assert (np.asarray(exported) == other).all()


def test_memory_is_used_again_and_stays_flat(client):
    for _ in range(100):
        check(client.sample_batch("table", 16))
    assert len(pool_of(client)._regions) == 1
    with client.batches("table", 16, prefetch=2) as batches:
        for _ in range(100):
            check(next(batches))
    assert len(pool_of(client)._regions) <= 5


def test_without_room_the_bytes_go_through_the_socket(client, monkeypatch):
    monkeypatch.setattr(region_pool, "_MOST_REGIONS", 2)
    held = [client.sample_batch("table", 16) for _ in range(6)]
    assert [is_shared(batch.data["frame"]) for batch in held].count(True) == 2
    for batch in held:
        check(batch)
    del held, batch
    assert is_shared(client.sample_batch("table", 16).data["frame"])


def test_without_memory_the_bytes_go_through_the_socket(client, monkeypatch):
    def full(fd, offset, size):
        raise OSError("no space left")

    monkeypatch.setattr(os, "posix_fallocate", full)
    held = [client.sample_batch("table", 16) for _ in range(12)]
    assert not is_shared(held[-1].data["frame"])
    for batch in held:
        check(batch)
    write(client, range(100, 130))
    assert client.server_info()["table"].current_size == 130


def test_whoever_asks_for_a_short_reply_reads_it(client, monkeypatch):
    """Another thread reads long ones while nobody waits; to be handed a short one takes longer than to read it."""
    monkeypatch.setattr(region_pool, "_MOST_REGIONS", 0)

    def is_handed_over(size):
        future = client.link.submit_sample(SampleCallArguments("table", size, None))
        somebody_is_told = future._made is not None
        assert future.result(WAIT_S).keys.size == size
        return somebody_is_told

    assert is_handed_over(1), "nothing is known of it yet"
    assert [is_handed_over(size) for size in (1, 16, 1, 16)] == [False, True, False, True]


def test_a_region_of_another_size_makes_room_for_a_larger_one(client, monkeypatch):
    monkeypatch.setattr(region_pool, "_MOST_REGIONS", 1)
    for _ in range(2):
        assert client.sample_batch("table", 64).data["frame"].shape == (64, *SHAPE)
    assert is_shared(client.sample_batch("table", 64).data["frame"])
    assert len(pool_of(client)._regions) == 1


def test_over_tcp_nothing_is_shared(make_table):
    with replay.Server([make_table()], port=0) as server, replay.Client(server.address) as client:
        write(client, range(50))
        for _ in range(3):
            batch = client.sample_batch("table", 16)
            check(batch)
            assert not is_shared(batch.data["frame"])
        assert not pool_of(client)._regions


def test_a_server_that_cannot_open_the_memory_gets_and_sends_bytes(serve, make_table, monkeypatch):
    def refuse(address):
        raise OSError("another container")

    monkeypatch.setattr(lent_memory, "open_region", refuse)
    client = serve(make_table(sampler=FIFO, max_times_sampled=1))
    write(client, range(100))  # what was lent in vain is sent again
    values = []
    for _ in range(6):
        batch = client.sample_batch("table", 16)
        check(batch)
        assert not is_shared(batch.data["frame"])
        values += batch.data["value"].tolist()
    assert values == list(range(96))
    wait_until(lambda: not pool_of(client)._regions)


def test_cancelled_requests_do_not_disturb_later_ones(serve):
    client = serve(replay.Table.queue("table", 1000))
    write(client, range(48))
    for _ in range(3):
        check(client.sample_batch("table", 16))
    batches = client.batches("table", 16, prefetch=2, timeout_s=0)
    assert list(batches) == []  # three requests that are not served
    batches = client.batches("table", 16, prefetch=2)
    reading = threading.Thread(target=list, args=(batches,))
    reading.start()
    wait_until(lambda: client.server.tables["table"].info.rate_limiter_info.sample_stats.pending == 48)
    batches.close()
    reading.join(WAIT_S)
    write(client, range(100, 148))
    held = [client.sample_batch("table", 16) for _ in range(3)]
    for batch in held:
        check(batch)
    assert [int(batch.data["value"][0]) for batch in held] == [100, 116, 132]


def test_views_outlive_the_client_and_the_server(serve, make_table):
    client = serve(make_table())
    write(client, range(50))
    held = [client.sample_batch("table", 16) for _ in range(4)]
    client.server.stop()
    for batch in held:
        check(batch)
    assert not client.server._service.lent_memory._memory
    client.close()
    assert not pool_of(client)._regions
    for batch in held:
        check(batch)


def test_the_memory_of_a_client_that_died_is_let_go(client, make_table):
    lent = client.server._service.lent_memory._memory
    before = set(lent)
    code = f"""
import sys
from topology.nodes import replay
client = replay.Client({client.server_address!r})
held = [client.sample_batch("table", 16) for _ in range(4)]
print("holding", flush=True)
sys.stdin.read()
"""
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "holding\n"
        wait_until(lambda: len(lent) > len(before))
    finally:
        other.kill()
        other.communicate(timeout=WAIT_S)
    wait_until(lambda: set(lent) == before)
    check(client.sample_batch("table", 16))


def test_a_server_killed_while_views_are_held_leaves_them_and_nothing_else(tmp_path, serve, make_table):
    code = f"""
import sys
from topology.nodes import replay
from topology.nodes.replay import rate_limiters, selectors
table = replay.Table("table", selectors.Uniform(), selectors.Fifo(), 1000, rate_limiters.MinSize(1))
with replay.Server([table], address="unix:{tmp_path}/server"):
    print("up", flush=True)
    sys.stdin.read()
"""
    start = [sys.executable, "-c", code]
    with replay.Client(f"unix:{tmp_path}/server") as client:
        server = subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout.readline() == "up\n"
            write(client, range(50))
            held = [client.sample_batch("table", 16) for _ in range(4)]
        finally:
            server.kill()
            server.communicate(timeout=WAIT_S)
        wait_until(lambda: not pool_of(client)._regions)
        server = subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout.readline() == "up\n"
            write(client, range(50, 100))
            held += [client.sample_batch("table", 16) for _ in range(4)]
            for batch in held:
                check(batch)
            assert is_shared(held[-1].data["frame"])
        finally:
            server.kill()
            server.communicate(timeout=WAIT_S)


def _in_the_child(held, client, pipe):
    pipe.send("ready")
    pipe.recv()
    try:
        for batch in held:
            check(batch)
        for _ in range(4):
            held.append(client.sample_batch("table", 16))
        for batch in held:
            check(batch)
        pipe.send("right")
    except BaseException as error:  # the parent shows it
        pipe.send(repr(error))


def test_a_forked_child_keeps_the_arrays_it_saw(client):
    held = [client.sample_batch("table", 16) for _ in range(3)]
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    with warnings.catch_warnings():
        # Python and, where an earlier test has loaded it, JAX warn of forking with threads: that it works is the test.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", RuntimeWarning)
        child = context.Process(target=_in_the_child, args=(held, client, theirs))
        child.start()
    try:
        assert ours.poll(WAIT_S)
        assert ours.recv() == "ready"
        for batch in held:
            batch.data["value"][:] = 0
        del held, batch
        write(client, range(1000, 1100))
        for _ in range(30):
            check(client.sample_batch("table", 16))
        ours.send("go")
        assert ours.poll(WAIT_S)
        assert ours.recv() == "right"
    finally:
        child.kill()
        child.join(WAIT_S)
        child.close()
    check(client.sample_batch("table", 16))


def test_nothing_is_left_behind(make_table):
    def use():
        with replay.Server([make_table()]) as server, replay.Client(server.address) as client:
            write(client, range(50))
            for _ in range(4):
                check(client.sample_batch("table", 16))

    def maps():
        gc.collect()
        with open("/proc/self/maps") as lines:
            return sum("memfd:replay" in line for line in lines), len(os.listdir("/proc/self/fd"))

    use()
    before, named = maps(), set(os.listdir("/dev/shm"))
    assert before[0] == 0
    for _ in range(3):
        use()
    assert maps() == before
    assert set(os.listdir("/dev/shm")) <= named


# --- writers --------------------------------------------------------------------------------------------------------


def test_large_steps_are_lent_and_arrive_whatever_is_done_with_the_memory(serve):
    client = serve(replay.Table.queue("table", 100_000))
    service, lent = client.server._service, []
    resolve = service.lent_memory.resolve

    def spy(batch):
        lent.extend(cells.values.shape[0] for cells in batch.cells if isinstance(cells.values, LentArray))
        return resolve(batch)

    service.lent_memory.resolve = spy
    write(client, range(600))
    assert sum(lent) >= 100  # of the 600; what finds no free memory is sent as bytes
    assert len(client.link.regions._regions) < 20
    for first in range(0, 592, 16):
        batch = client.sample_batch("table", 16)
        check(batch)
        assert batch.data["value"].tolist() == list(range(first, first + 16))


def test_writers_that_come_and_go_do_not_share_memory_too_early(serve):
    client = serve(replay.Table.queue("table", 100_000))
    for first in range(0, 400, 20):
        writer = client.trajectory_writer(1)
        for value in range(first, first + 20):
            writer.append({"frame": np.full(SHAPE, value, np.int32), "value": np.int32(value)})
            writer.create_item("table", 1.0, {k: v[-1] for k, v in writer.history.items()})
        writer.close()  # does not wait
        del writer
    seen = []
    for _ in range(25):
        batch = client.sample_batch("table", 16)
        check(batch)
        seen += batch.data["value"].tolist()
    assert sorted(seen) == list(range(400))


def test_a_message_may_come_before_the_loan_of_its_memory(serve, monkeypatch):
    monkeypatch.setattr(lent_memory.LentMemory, "lend", lambda *_: Future())  # its turn never comes
    client = serve(replay.Table.queue("table", 100_000))
    with client.trajectory_writer(1) as writer:
        for value in range(16):
            writer.append({"frame": np.full(SHAPE, value, np.int32), "value": np.int32(value)})
            writer.create_item("table", 1.0, {k: v[-1] for k, v in writer.history.items()})
        lent = [each for each in client.link.regions._regions if each.is_held]
        assert lent
        writer.flush()
        assert writer._sender.outbox.stream == 0  # nothing was lost, and sent as bytes
    check(client.sample_batch("table", 16))


def test_cells_that_follow_late_are_sent_as_bytes(serve):
    client = serve(replay.Table.queue("table", 100))
    with client.trajectory_writer(40) as writer:
        for value in range(40):
            writer.append({"a": np.full(SHAPE, value, np.int32)}, partial_step=True)
            writer.create_item("table", 1.0, {"a": writer.history["a"][-1]})
            writer.flush()
            writer.append({"b": np.full(SHAPE, -value, np.int32)})
        writer.create_item("table", 1.0, {"b": writer.history["b"][:]})
    for value in range(40):
        assert (client.sample_batch("table", 1).data["a"] == value).all()
    found = client.sample_batch("table", 1).data["b"][0, :, 0, 0]
    assert found.tolist() == [-value for value in range(40)]


# --- regions --------------------------------------------------------------------------------------------------------


def test_regions_are_what_they_say_or_are_refused(tmp_path):
    region = Region(10_000)
    array = open_region(region.address)
    array[100:104] = 7
    assert region.array()[100:104].tolist() == [7] * 4
    with pytest.raises(OSError, match="container of its own"):
        open_region(region.address._replace(token=b"x" * 16))
    with pytest.raises(OSError, match="is no region of"):
        open_region(region.address._replace(size=1 << 20))
    with open(tmp_path / "file", "wb") as file:
        file.truncate(20_000)
        with pytest.raises(OSError, match="Invalid argument"):
            open_region(MemoryAddress(os.getpid(), file.fileno(), 10_000, b"x" * 16))
    loose = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    os.truncate(loose, 20_000)
    with pytest.raises(OSError, match="is no region of"):
        open_region(MemoryAddress(os.getpid(), loose, 10_000, b"x" * 16))
    os.close(loose)
    fd = os.dup(region.address.fd)
    with pytest.raises(PermissionError):
        os.truncate(fd, 0)
    assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SEAL
    os.close(fd)
    region.close()
    with pytest.raises(FileNotFoundError):
        open_region(region.address)
    assert array[100] == 7


def test_a_placement_is_for_the_client_that_asked():
    placement = pickle.dumps(Placement(10**9, 64, np.dtype(np.uint8), (3,)))
    with pytest.raises(ReplayError, match="only by the client that asked"):
        pickle.loads(placement)
