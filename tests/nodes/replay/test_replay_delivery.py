"""Items get into their tables once, whatever becomes of connections and servers; memory stays flat meanwhile."""

import logging
import queue
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from topology import errors
from topology.clock import SYSTEM_CLOCK
from topology.nodes import replay
from topology.nodes.replay import rate_limiters, selectors
from topology.nodes.replay.messages import StreamLost
from topology.nodes.replay.service import ReplayService
from topology.nodes.replay.writers import TrajectoryWriter
from topology.testing import ManualClock

WAIT_S = 20
FIFO = selectors.Fifo()


class Wire:
    """A backend over a service, whose messages and replies get lost when told to."""

    def __init__(self, service):
        self.service = service
        self.lose_messages = False
        self.lose_next = ""  # "message" or "reply"
        self.under_way = []

    def insert(self, batch):
        outer: Future = Future()
        lose, self.lose_next = self.lose_next, ""
        if self.lose_messages or lose == "message":
            outer.set_exception(errors.ConnectionBroken("cut"))
            return outer
        try:
            inner = self.service.insert(batch)
        except StreamLost as error:
            outer.set_exception(error)
            return outer
        self.under_way.append((inner, outer))
        inner.add_done_callback(lambda done: self.reply(done, outer, lose == "reply"))
        return outer

    def reply(self, inner, outer, is_lost):
        if outer.done():
            return
        if inner.cancelled() or is_lost:
            outer.set_exception(errors.ConnectionBroken("cut"))
        elif inner.exception():
            outer.set_exception(inner.exception())
        else:
            outer.set_result(None)

    def cut(self, *, server_notices):
        """Breaks the connection: what is under way gets no reply; the server may notice before or after."""
        under_way, self.under_way = self.under_way, []
        for inner, outer in under_way:
            if server_notices:
                inner.cancel()
            if not outer.done():
                outer.set_exception(errors.ConnectionBroken("cut"))
        return [inner for inner, _ in under_way]

    def signature(self, table):
        return None

    def ready(self):
        future: Future = Future()
        if not self.lose_messages:
            future.set_result(None)
        return future

    regions = None


@pytest.fixture
def service(make_table):
    service = ReplayService([make_table(sampler=FIFO, max_times_sampled=1), replay.Table.queue("queue", 3)])
    yield service
    service.close()


def item(writer, value, table="table"):
    writer.append({"x": np.full(3, value)})
    writer.create_item(table, 1.0, {"x": writer.history["x"][-1]})


def values(service, table="table"):
    client = replay.Client("memory:x", service=service)
    return client.sample_batch(table, service.tables[table].info.current_size).data["x"][:, 0].tolist()


def writer_held_back(wire):
    """A writer that has sent eight items, of which the queue has room for three."""
    writer = TrajectoryWriter(wire, 3)
    for value in range(8):
        item(writer, value, "queue")
    with pytest.raises(errors.ReplayDeadlineExceeded):
        writer.flush(timeout_ms=1)
    return writer


@pytest.mark.parametrize("lost", ["message", "reply"])
def test_items_sent_again_are_in_once_and_in_order(service, lost):
    wire = Wire(service)
    writer = TrajectoryWriter(wire, 3)
    for value in range(300):
        if value % 20 == 10:
            wire.lose_next = lost
        item(writer, value)
        if value % 70 == 0:
            writer.flush()
    writer.flush()
    assert values(service) == list(range(300))


@pytest.mark.parametrize("server_notices", [True, False])
def test_a_cut_while_items_wait_for_the_limiter(service, server_notices):
    wire = Wire(service)
    writer = writer_held_back(wire)
    assert service.tables["queue"].info.current_size == 3  # three are in, five wait
    old = wire.cut(server_notices=server_notices)
    client = replay.Client("memory:x", service=service)
    with ThreadPoolExecutor(1) as pool:
        flushing = pool.submit(writer.flush)
        got = [client.sample_batch("queue", 1, timeout_s=WAIT_S).data["x"][0, 0] for _ in range(8)]
        flushing.result(WAIT_S)
    assert got == list(range(8))
    for future in old:
        future.cancel()  # the server hears of the old connection only now
    info = service.tables["queue"].info
    assert (info.current_size, info.rate_limiter_info.insert_stats.pending) == (0, 0)
    assert info.rate_limiter_info.insert_stats.completed == 8


def test_messages_of_the_stream_before_come_too_late(service):
    sent = []
    wire = Wire(service)
    insert = service.insert
    service.insert = lambda batch, *_: sent.append(batch) or insert(batch)
    writer = TrajectoryWriter(wire, 3)
    item(writer, 0)
    writer.flush()
    wire.lose_next = "reply"
    item(writer, 1)
    writer.flush()
    with pytest.raises(StreamLost, match="has begun another stream since"):
        insert(sent[0])
    assert values(service) == [0, 1]


def test_a_server_that_stays_away(service):
    wire = Wire(service)
    writer = TrajectoryWriter(wire, 3, patience_s=0.01)
    wire.lose_messages = True
    item(writer, 0)
    for call in (writer.flush, writer.end_episode, lambda: writer.append({"x": np.zeros(3, int)})):
        with pytest.raises(errors.ConnectionBroken, match=r"not back within 0.01 s; 1 items are not confirmed"):
            call()
    writer.patience_s = None
    with pytest.raises(errors.ReplayDeadlineExceeded, match="1 items wait to be sent again when it is back"):
        writer.flush(timeout_ms=5)
    wire.lose_messages = False
    writer.flush()
    assert values(service) == [0]


def test_a_server_that_goes_away_again_while_it_is_waited_for(service):
    wire = Wire(service)
    writer = TrajectoryWriter(wire, 3, patience_s=WAIT_S)
    ready, left = wire.ready, [3]

    def answer():
        left[0] -= 1
        if left[0] < 0:
            return ready()
        broken: Future = Future()
        broken.set_exception(errors.ConnectionBroken("reset"))
        return broken

    wire.ready = answer
    wire.lose_next = "message"
    item(writer, 0)
    writer.flush()
    assert left == [-1]
    assert values(service) == [0]
    left[0] = 1_000_000
    wire.lose_next = "message"
    item(writer, 1)
    with pytest.raises(errors.ReplayDeadlineExceeded, match="1 items wait to be sent again when it is back"):
        writer.flush(timeout_ms=5)
    writer.patience_s = 0.005
    with pytest.raises(errors.ConnectionBroken, match=r"was not back within 0.005 s"):
        writer.flush()
    left[0] = 0
    writer.flush()
    assert values(service) == [1]


def test_a_restarted_server_gets_what_was_not_confirmed(make_table, tmp_path):
    address = f"unix:{tmp_path}/s"
    servers = [replay.Server([replay.Table.queue("queue", 2)], address=address)]
    servers[0].start()
    with replay.Client(address) as client:
        writer = client.trajectory_writer(1)
        for value in range(5):
            writer.append(value)
            writer.create_item("queue", 1.0, writer.history[-1])
        with pytest.raises(errors.ReplayDeadlineExceeded):
            writer.flush(timeout_ms=20)
        confirmed = 5 - writer._sender.unfinished  # these are lost with the server
        servers[0]._courier.stop()  # as when its process dies: nobody says goodbye
        with ThreadPoolExecutor(1) as pool:
            flushing = pool.submit(writer.flush)
            servers.append(replay.Server([replay.Table.queue("queue", 2)], address=address))
            servers[1].start()
            got = [client.sample_batch("queue", 1, timeout_s=WAIT_S).data[0] for _ in range(5 - confirmed)]
            assert got == list(range(confirmed, 5))
            flushing.result(WAIT_S)
        writer.close()
    for server in servers:
        server.stop()


# --- memory ----------------------------------------------------------------------------------------------------------


def test_steps_of_writers_that_fell_silent_are_dropped(make_table):
    clock = ManualClock()
    service = ReplayService([make_table(sampler=FIFO, max_times_sampled=1)], clock=clock, forget_writers_after_s=60.0)
    client = replay.Client("memory:x", service=service)
    writer, other = client.trajectory_writer(50), client.trajectory_writer(1)
    for value in range(50):
        item(writer, value)
    writer.flush()
    values(service)
    assert service.store.live_rows == 50
    dropped = threading.Event()
    sweep = service._sweep
    service._sweep = lambda: (sweep(), dropped.set())
    clock.advance(30.0)
    item(other, 7)
    other.flush()
    clock.advance(31.0)
    service._sweep()
    assert service.store.live_rows <= 2
    item(writer, 50)  # it is told, and sends again what it needs
    writer.create_item("table", 1.0, {"x": writer.history["x"][-3:]})
    writer.flush()
    batch = [next(client.sample("table", emit_timesteps=False)).data[0].tolist() for _ in range(3)]
    assert batch == [[7] * 3, [50] * 3, [[48] * 3, [49] * 3, [50] * 3]]
    service.close()


@pytest.mark.parametrize("end", ["client", "connection"])
def test_steps_of_writers_whose_connection_ended_are_dropped_at_once(serve, make_table, end):
    stayer = serve(make_table(sampler=FIFO, max_times_sampled=1))
    service = stayer.server._service
    leaver = replay.Client(stayer.server_address)
    writer, other = leaver.trajectory_writer(50), stayer.trajectory_writer(5)
    for value in range(50):
        item(writer, value)
    writer.flush()
    item(other, 50)
    other.flush()
    assert values(service) == list(range(51))  # and no item is left
    assert service.store.live_rows == 51
    dropped = threading.Event()
    stream = service._streams[writer._sender.outbox.writer]
    close = stream.close
    stream.close = lambda: (close(), dropped.set())
    if end == "client":
        leaver.close()
    else:
        leaver.link._writing._core._channel._out.connection.shutdown()
    assert dropped.wait(WAIT_S)
    assert service.store.live_rows == 1
    assert list(service._streams) == [other._sender.outbox.writer]
    if end == "connection":  # the writer is told, and sends again what it needs
        item(writer, 51)
        writer.create_item("table", 1.0, {"x": writer.history["x"][-3:]})
        writer.flush()
        assert service.tables["table"].info.current_size == 2
        leaver.close()


class NoticingClock:
    """The system's clock; tells when somebody begins to wait."""

    def __init__(self, waiting):
        self.waiting = waiting
        self.time, self.monotonic, self.sleep = SYSTEM_CLOCK.time, SYSTEM_CLOCK.monotonic, SYSTEM_CLOCK.sleep

    def wait_for(self, condition, predicate, timeout_s=None):
        if not predicate():
            self.waiting()
        return SYSTEM_CLOCK.wait_for(condition, predicate, timeout_s)


def test_64_writers_against_a_full_table_stay_flat():
    table = replay.Table("table", FIFO, FIFO, 1000, rate_limiters.Queue(100), max_times_sampled=1)
    service = ReplayService([table])
    client = replay.Client("memory:x", service=service)
    waiting = threading.Semaphore(0)
    frame = np.zeros((84, 84), np.uint8)
    writers = []

    def write(number):
        with client.trajectory_writer(1) as writer:
            told = []
            writer._sender._clock = NoticingClock(lambda: told or (told.append(1), waiting.release()))
            writers.append(writer)
            for step in range(500):
                writer.append({"x": frame, "n": number * 500 + step})
                writer.create_item("table", 1.0, {k: v[-1] for k, v in writer.history.items()})

    with ThreadPoolExecutor(64) as pool:
        writing = [pool.submit(write, number) for number in range(64)]
        assert all(waiting.acquire(timeout=WAIT_S) for _ in range(64))  # each has done all it may
        rows = service.store.live_rows
        unfinished = [writer._sender.unfinished for writer in writers]
        got = np.concatenate([client.sample_batch("table", 100).data["n"] for _ in range(320)])
        for future in writing:
            future.result(WAIT_S)
    # A writer has three messages under way and one in the making, of 100 items at most.
    assert max(unfinished) <= 4 * 100
    assert rows <= 100 + 64 * 4 * 100
    assert sorted(got.tolist()) == list(range(64 * 500))
    per_writer = [got[got // 500 == number] for number in range(64)]
    assert all((np.diff(mine) > 0).all() for mine in per_writer)
    service.close()
    assert service.store.live_rows == 0


def test_overlapping_items_cost_their_distinct_steps(make_table):
    service = ReplayService([make_table(max_size=10_000)])
    client = replay.Client("memory:x", service=service)
    with client.trajectory_writer(20) as writer:
        for value in range(400):
            writer.append({"frame": np.full((10, 10), value % 256, np.uint8)})
            if value >= 19:
                writer.create_item("table", 1.0, {"stack": writer.history["frame"][-20:]})
    assert service.tables["table"].info.current_size == 381
    assert service.store.live_rows == 400
    batch = client.sample_batch("table", 64).data["stack"]
    assert batch.shape == (64, 20, 10, 10)
    assert (np.diff(batch[:, :, 0, 0].astype(np.int16), axis=1) % 256 == 1).all()
    service.close()


def test_a_reset_gives_memory_back(make_table):
    service = ReplayService([make_table(max_size=10_000)])
    client = replay.Client("memory:x", service=service)
    with client.trajectory_writer(1) as writer:
        for first in range(0, 1000, 100):
            writer.append_batch({"x": np.full((100, 1 << 16), first % 251, np.uint8)})
            writer.create_items("table", [1.0] * 100, {"x": writer.history["x"][-1]})
    (group,) = service.store._groups.values()
    assert group._allocator.high == 1000
    client.reset("table")
    assert group.live_rows == 0
    assert group._allocator.high == 0
    assert not group.columns[0]._segments
    service.close()


def test_a_writer_that_does_nothing_more_need_not_flush(serve):
    """Whoever reads waits for its items, and may be the writer itself, in the same thread."""
    client = serve(replay.Table.queue("queue", 1000))
    writer = client.trajectory_writer(1)
    for value in range(5):  # the first goes out at once, the others come too soon after it
        item(writer, value, "queue")
    assert client.sample_batch("queue", 5, timeout_s=WAIT_S).data["x"][:, 0].tolist() == [0, 1, 2, 3, 4]
    writer.close()


def test_what_waits_behind_a_message_follows_it(serve, watch):
    full = replay.Table("full", FIFO, FIFO, 10, rate_limiters.Queue(1), max_times_sampled=1)
    client = serve(full)
    writer = client.trajectory_writer(1)
    item(writer, 0, "full")
    writer.flush()
    item(writer, 1, "full")
    watch(full).wait_until(lambda info: info.insert_stats.pending == 1)
    item(writer, 2, "full")
    got = [client.sample_batch("full", 1, timeout_s=WAIT_S).data["x"][0, 0] for _ in range(3)]
    assert got == [0, 1, 2]
    writer.close()


def test_an_error_met_for_a_quiet_writer_is_told_by_its_next_call(service):
    class Refusing(Wire):
        met = threading.Event()

        def insert(self, batch):
            if threading.current_thread() is not threading.main_thread():
                self.met.set()
                raise ValueError("no more than that")
            return super().insert(batch)

    wire = Refusing(service)
    writer = TrajectoryWriter(wire, 1)
    item(writer, 0)
    item(writer, 1)
    assert wire.met.wait(WAIT_S)
    with pytest.raises(ValueError, match="no more than that"):
        writer.flush()
    item(writer, 2)
    writer.flush()
    assert values(service) == [0, 2]


def values_in_time(service, count, table="table"):
    """The next `count` values, waited for."""
    client = replay.Client("memory:x", service=service)
    return [client.sample_batch(table, 1, timeout_s=WAIT_S).data["x"][0, 0] for _ in range(count)]


@pytest.mark.parametrize("lost", ["message", "reply"])
@pytest.mark.parametrize("close", [True, False])
def test_what_was_lost_is_sent_again_without_another_call(service, lost, close):
    wire = Wire(service)
    writer = TrajectoryWriter(wire, 1)
    item(writer, 0)
    writer.flush()
    wire.lose_next = lost
    item(writer, 1)
    if close:
        writer.close()
    del writer
    assert values_in_time(service, 2) == [0, 1]
    assert service.tables["table"].info.current_size == 0


@pytest.mark.parametrize("close", [True, False])
def test_a_server_that_comes_back_gets_the_items_of_writers_that_do_nothing(service, close):
    wire = Wire(service)
    writer = TrajectoryWriter(wire, 1)
    asked, answers = threading.Event(), []

    def ready():
        answers.append(Future())
        asked.set()
        return answers[-1]

    wire.ready = ready
    wire.lose_messages = True
    item(writer, 0)
    if close:
        writer.close()
    assert asked.wait(WAIT_S)
    asked.clear()
    answers[0].set_exception(errors.ConnectionBroken("not yet"))
    assert asked.wait(WAIT_S)  # it is asked again
    wire.lose_messages = False
    answers[1].set_result(None)
    assert values_in_time(service, 1) == [0]
    if not close:
        item(writer, 1)
        writer.flush()
        assert values(service) == [1]
    assert len(answers) == 2


def test_what_a_closed_writer_had_not_sent_follows_what_was_lost(service):
    wire = Wire(service)
    writer = writer_held_back(wire)
    item(writer, 8, "queue")
    with writer._sender.mutex:  # nothing is sent between the two
        wire.cut(server_notices=True)
        writer.close()
    assert values_in_time(service, 9, "queue") == list(range(9))


class Sayings(logging.Handler):
    """What is logged, as it comes."""

    def __init__(self):
        super().__init__()
        self.texts = queue.Queue()

    def emit(self, record):
        self.texts.put(record.getMessage())


@pytest.fixture
def sayings():
    handler = Sayings()
    logger = logging.getLogger("topology.nodes.replay.sender")
    logger.addHandler(handler)
    yield handler.texts
    logger.removeHandler(handler)


def test_what_a_closed_writer_lost_for_good_is_logged(service, sayings):
    class Refusing(Wire):
        first: Future | None = None

        def insert(self, batch):
            if self.first is None:
                self.first = Future()
                return self.first
            return super().insert(batch)

    for error in (errors.CourierClosed("that was wanted"), errors.TableNotFound("no such table")):
        wire = Refusing(service)
        writer = TrajectoryWriter(wire, 1)
        item(writer, 0)
        item(writer, 1)  # it is sent all the same
        with writer._sender.mutex:
            wire.first.set_exception(error)
            writer.close()
        assert values_in_time(service, 1) == [1]
    assert sayings.get(timeout=WAIT_S).endswith("did not get into their tables: no such table")
    assert sayings.empty()


def test_a_closed_writer_waits_no_longer_than_its_patience(service, sayings):
    wire = Wire(service)
    wire.lose_messages = True
    wire.ready = lambda: wire.insert(None)
    writer = TrajectoryWriter(wire, 1, patience_s=0.01)
    item(writer, 0)
    writer.close()
    assert sayings.get(timeout=WAIT_S).endswith("did not get into their tables: cut")
    assert not writer._sender.unfinished
