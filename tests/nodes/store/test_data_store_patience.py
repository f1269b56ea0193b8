"""Servers that go away: what is asked meanwhile waits, and nothing is lost or done twice."""

from __future__ import annotations

import errno
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from topology.context import NodeContext, StopToken, bind_context
from topology.errors import ProgramStopped, StoreClosed, StoreDenied, StoreFull, StoreUnavailable
from topology.nodes.store.data_directory import DirectoryMedium
from topology.nodes.store.policies import open_data_store
from topology.nodes.store.policy_medium import Medium
from topology.nodes.store.policy_patience import PatientMedium, patient
from topology.nodes.store.record_store import RecordStore

DEADLINE_S = 30.0
WEIGHTS = {"w": np.arange(1000.0)}


class HandClock:
    """Its waits pass at once, as long as nothing else ends them."""

    def __init__(self):
        self.now = 0.0
        self.waits = []
        self.during = lambda: None

    def time(self):
        return self.now

    def monotonic(self):
        return self.now

    def wait_for(self, condition, predicate, timeout_s=None):
        self.waits.append(timeout_s)
        self.now += timeout_s
        condition.release()
        self.during()
        condition.acquire()
        return predicate()


class Unsteady(Medium):
    """A directory whose server is away `absences` times; each method first does what it is asked, and then is away."""

    def __init__(self, medium, absences, error=StoreUnavailable, after=False):
        self.medium, self.absences, self.error, self.after = medium, absences, error, after

    def __repr__(self):
        return "somewhere"

    def _ask(self, method, *arguments):
        away, self.absences = self.absences > 0, max(0, self.absences - 1)
        if away and not self.after:
            raise self.error("not there")
        result = getattr(self.medium, method)(*arguments)
        if away:
            raise self.error("not there")
        return result

    def check(self):
        return self._ask("check")

    def read(self):
        return self._ask("read")

    def write(self, *arguments):
        return self._ask("write", *arguments)

    def put(self, *arguments):
        return self._ask("put", *arguments)

    def get(self, name):
        return self._ask("get", name)

    def delete(self, names):
        return self._ask("delete", names)

    def leftovers(self):
        return self._ask("leftovers")

    def wait_changed(self, *arguments):
        return self._ask("wait_changed", *arguments)

    def close(self):
        pass


@pytest.mark.parametrize("after", [False, True], ids=["unheard", "unanswered"])
def test_every_question_is_asked_again_and_done_once(tmp_path, after):
    clock = HandClock()
    unsteady = Unsteady(DirectoryMedium(tmp_path), 0, after=after)
    store = RecordStore(patient(unsteady, 60.0, clock), keep=3, clock=clock)

    def away(call):
        before = len(clock.waits)
        unsteady.absences = 1
        result = call()
        assert len(clock.waits) > before
        return result

    lease = away(lambda: store.lease("trainer", 60.0))
    for number in range(5):
        assert away(lambda: store.save(WEIGHTS, state=WEIGHTS, lease=lease)) == number
    assert away(store.newest) == 4
    np.testing.assert_array_equal(away(store.load).arrays["w"], WEIGHTS["w"])
    away(lambda: store.announce_finished("enough", lease=lease))
    assert away(store.finished) == "enough"
    assert len(list((tmp_path / "policies").iterdir())) == 6, "three policies with their states, and nothing else"


def test_each_step_of_a_save_may_meet_a_server_that_is_away(tmp_path):
    clock = HandClock()
    directory = DirectoryMedium(tmp_path)
    calls = 0

    class Counted(Unsteady):
        def _ask(self, method, *arguments):
            nonlocal calls
            calls += 1
            self.absences = 1 if calls == self.absences_at else 0
            return super()._ask(method, *arguments)

    for number, (at, after) in enumerate((at, after) for at in range(1, 5) for after in (False, True)):
        calls = 0
        unsteady = Counted(directory, 0, after=after)
        unsteady.absences_at = at
        store = RecordStore(patient(unsteady, 60.0, clock), keep=3, clock=clock)
        assert store.save(WEIGHTS) == number
    assert len(clock.waits) == number + 1, "read, put, write, delete: each was away, twice"
    assert store.newest() == number


def test_patience_ends(tmp_path):
    clock = HandClock()
    medium = patient(Unsteady(DirectoryMedium(tmp_path), 10_000), 5.0, clock)
    with pytest.raises(StoreUnavailable, match="not there") as raised:
        medium.read()
    assert raised.value.__notes__ == ["it was waited for, for 5 s"]
    assert 5.0 <= clock.now < 6.5
    assert clock.waits[0] < 0.1 < max(clock.waits) <= 1.0


def test_a_medium_without_room_is_waited_for_and_that_is_told(tmp_path, caplog):
    clock = HandClock()
    medium = patient(Unsteady(DirectoryMedium(tmp_path), 6, StoreFull), 60.0, clock)
    medium.put("policy", [b"bytes"])
    assert bytes(medium.get("policy")) == b"bytes"
    first, last = (record.message for record in caplog.records)
    assert first == "waiting, 60 s at most: not there"
    assert last.startswith("the data store is back after ")
    caplog.clear()
    patient(Unsteady(DirectoryMedium(tmp_path), 2), 60.0, clock).read()  # a moment is not worth a word
    assert not caplog.records


def test_a_full_disk_is_waited_for(tmp_path, monkeypatch):
    """The directory is on a disk where others make room after a while."""
    clock, write, left = HandClock(), os.write, [3]

    def write_when_there_is_room(descriptor, data):
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    with open_data_store(str(tmp_path), patience_s=60.0, clock=clock) as store:
        monkeypatch.setattr(os, "write", write_when_there_is_room)
        assert store.save(WEIGHTS) == 0
        assert len(clock.waits) == 3
        left[0] = 10_000
        with pytest.raises(StoreFull, match="the disk is full: make room there"):
            store.save(WEIGHTS)
        left[0] = 0
        assert store.newest() == 0


def test_who_is_not_let_in_does_not_wait(tmp_path):
    clock = HandClock()
    with pytest.raises(StoreDenied):
        patient(Unsteady(DirectoryMedium(tmp_path), 10_000, StoreDenied), 5.0, clock).read()
    assert clock.waits == []


def test_a_store_that_is_closed_and_a_program_that_stops_wait_no_longer(tmp_path):
    clock, stop = HandClock(), StopToken()
    medium = patient(Unsteady(DirectoryMedium(tmp_path), 10_000), 500.0, clock)
    with bind_context(NodeContext(label="worker", index=0, launch_type="test_mt", stop=stop)):
        clock.during = stop.request
        with pytest.raises(ProgramStopped):
            medium.read()
    clock.during = medium.close
    with pytest.raises(StoreClosed):
        medium.read()


def test_without_patience_there_is_nothing_between(tmp_path):
    medium = DirectoryMedium(tmp_path)
    assert patient(medium, 0.0, HandClock()) is medium
    for patience_s in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="patience_s"):
            patient(medium, patience_s, HandClock())


def test_a_redis_server_that_is_killed_costs_only_time(make_redis):
    server = make_redis("--appendonly", "yes", "--appendfsync", "always")
    with (
        open_data_store(server.url, patience_s=DEADLINE_S) as trainer,
        open_data_store(server.url, patience_s=DEADLINE_S) as worker,
        ThreadPoolExecutor(2) as threads,
    ):
        assert isinstance(pickle.loads(pickle.dumps(trainer))._medium, PatientMedium)
        lease = trainer.lease("trainer", 60.0)
        trainer.save(WEIGHTS, lease=lease)
        waiting = threads.submit(worker.wait_newer, 0, timeout_s=DEADLINE_S)
        for number in range(1, 4):
            server.kill()
            saving = threads.submit(trainer.save, WEIGHTS, lease=lease)
            threading.Event().wait(0.1)  # asked in vain by now, or not yet: either is well
            server.start()
            assert saving.result(DEADLINE_S) == number
        assert waiting.result(DEADLINE_S).number >= 1
        assert worker.load().number == 3
        lease.release()


def test_a_redis_server_that_comes_later_is_waited_for(make_redis):
    server = make_redis()
    server.kill()
    with ThreadPoolExecutor(1) as threads:
        opening = threads.submit(open_data_store, server.url, patience_s=DEADLINE_S)
        server.start()
        with opening.result(DEADLINE_S) as store:
            assert store.newest() == -1


def test_kinds_without_a_server_ignore_patience(tmp_path):
    with open_data_store(str(tmp_path), patience_s=5.0) as store:
        assert store.newest() == -1
