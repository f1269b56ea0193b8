"""Ctrl-C ends every call that waits, at once; nothing is lost by it, and what was interrupted can be used again."""

import itertools
import linecache
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from topology.nodes import replay
from topology.nodes.replay import outbox, rate_limiters, selectors, sender, step_buffer, writers
from topology.nodes.replay.service import ReplayService

WAIT_S = 20
FIFO = selectors.Fifo()


@pytest.fixture
def client(serve):
    """Of a server whose table `empty` lets no sample pass, and `full` no insert."""
    full = replay.Table("full", FIFO, FIFO, 10, rate_limiters.Queue(1), max_times_sampled=1)
    client = serve(replay.Table.queue("empty", 1000), full)
    client.insert({"x": 0}, {"full": 1.0})
    return client


def interrupted(probe, waits, call):
    """Presses Ctrl-C once `waits` of the table's counts."""
    felt = threading.Event()

    def feel(*_):
        if not felt.is_set():
            felt.set()
            raise KeyboardInterrupt

    caller = threading.get_ident()

    def place():
        frame = sys._current_frames()[caller]
        return id(frame), frame.f_lasti

    def press():
        probe.wait_until(waits)
        for _ in range(WAIT_S * 50):
            before = place()
            if felt.wait(0.02):
                return
            if place() == before:  # it waits: a signal just before that is noticed only when the wait ends
                signal.pthread_kill(caller, signal.SIGINT)

    usual = signal.signal(signal.SIGINT, feel)
    pressing = threading.Thread(target=press)
    try:
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012  (it may come as soon as somebody may press)
            pressing.start()
            call()
            pressing.join(WAIT_S)  # it did not even wait
    finally:
        pressing.join(WAIT_S)
        signal.signal(signal.SIGINT, usual)


def samples_wait(count):
    return lambda info: info.sample_stats.pending >= count


def nothing_waits(info):
    return not info.sample_stats.pending and not info.insert_stats.pending


@pytest.mark.parametrize("local", [False, True])
def test_reading(client, watch, local):
    table = client.server.tables["empty"]
    probe = watch(table)
    reader = client.server.localhost_client() if local else client
    dataset = replay.TrajectoryDataset(reader, "empty", {"x": int}, {"x": ()}, max_in_flight_samples_per_worker=1)
    calls = [
        (1, lambda: reader.sample_batch("empty", 1)),
        (1, lambda: reader.sample_batch("empty", 1, timeout_s=1000)),
        (1, lambda: reader.sample_batch("empty", 1, replacement=False)),
        (1, lambda: next(reader.sample("empty"))),
        (2, lambda: next(reader.batches("empty", 1, prefetch=1))),
        (1, lambda: next(iter(dataset))),
        (1, lambda: next(iter(dataset.batch(1).prefetch(1)))),
    ]
    for number, (count, call) in enumerate(calls):
        interrupted(probe, samples_wait(count), call)
        probe.wait_until(nothing_waits)
        with client.trajectory_writer(1) as writer:
            writer.append({"x": number})
            writer.create_item("empty", 1.0, {"x": writer.history["x"][-1]})
        assert reader.sample_batch("empty", 1, timeout_s=WAIT_S).data["x"].tolist() == [number]
    assert table.info.rate_limiter_info.sample_stats.completed == len(calls)


def write(writer, table, value):
    writer.append({"x": value})
    writer.create_item(table, 1.0, {"x": writer.history["x"][-1]})


def test_writing(client, watch):
    probe = watch(client.server.tables["full"])
    writer = client.trajectory_writer(1)
    numbers = itertools.count(1)

    def write_on():
        while True:
            write(writer, "full", next(numbers))

    write(writer, "full", next(numbers))
    interrupted(probe, lambda info: info.insert_stats.pending == 1, writer.flush)
    write(writer, "full", next(numbers))
    interrupted(probe, lambda info: info.insert_stats.pending == 2, writer.end_episode)
    interrupted(probe, lambda info: info.insert_stats.pending >= 3, write_on)

    def read():
        batches = client.server.localhost_client().batches("full", 1, prefetch=0, timeout_s=WAIT_S)
        return list(itertools.takewhile(lambda value: value >= 0, (batch.data["x"][0] for batch in batches)))

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        write(writer, "full", -1)
        writer.flush()
        got = reading.result(WAIT_S)
    last = next(numbers) - 1
    assert got in (list(range(last + 1)), list(range(last)))  # the one in hand may be in, or not
    writer.close()


_FILES = {module.__file__ for module in (outbox, sender, step_buffer, writers)}


class _InterruptAt:
    """Raises `KeyboardInterrupt` before the n-th line that a writer executes, where the replies are not dealt with."""

    def __init__(self, count):
        self.left = count

    def __enter__(self):
        sys.settrace(self._enter)

    def __exit__(self, *_):
        sys.settrace(None)

    def _enter(self, frame, event, argument):
        is_ours = frame.f_code.co_filename in _FILES and frame.f_code.co_name not in ("_settle", "_on_reply")
        return self._line if is_ours else None

    def _line(self, frame, event, argument):
        # Python takes no signal between the end of a block and the release of its lock, but has a line there.
        if event == "line" and "mutex:" not in linecache.getline(frame.f_code.co_filename, frame.f_lineno):
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
        return self._line


def test_an_interrupt_at_any_line_of_a_writer_loses_nothing_and_doubles_nothing():
    for count in itertools.count(1):
        service = ReplayService([replay.Table.queue("queue", 100)])
        writer = replay.Client("memory:x", service=service).trajectory_writer(2)
        write(writer, "queue", 0)
        written = 0
        try:
            with _InterruptAt(count):
                for value in (1, 2):
                    write(writer, "queue", value)
                    writer.flush(1)
                    written = value
        except KeyboardInterrupt:
            pass
        else:
            break
        for value in range(5, 8):
            write(writer, "queue", value)
        writer.flush()
        client = replay.Client("memory:x", service=service)
        got = client.sample_batch("queue", service.tables["queue"].info.current_size).data["x"].tolist()
        assert [value for value in got if value != written + 1] == [*range(written + 1), 5, 6, 7], count
        assert got == sorted(set(got)), count
        service.close()
    service.close()
    assert count > 100
