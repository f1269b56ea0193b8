"""Counts: prefixes, delays, waiters, failures."""

import threading

import pytest

from topology.agents.core.counter import ChildCounter, Counter
from topology.agents.core.counting_service import CountingService, load_counts, save_counts
from topology.context import NodeContext, bind_context
from topology.errors import ConnectionBroken, LaunchError, ProgramError, ProgramStopped


class Parent:
    """Records what arrives and says so; can be made to fail."""

    def __init__(self):
        self.counter = Counter()
        self.calls = []
        self.arrived = threading.Semaphore(0)
        self.error = None

    def add_counts(self, counts):
        if self.error is not None:
            self.arrived.release()
            raise self.error
        self.calls.append(dict(counts))
        totals = self.counter.add_counts(counts)
        self.arrived.release()
        return totals

    def get_counts(self):
        return self.counter.get_counts()


def test_a_child_prefixes_once_however_deep_it_is():
    root = Counter()
    learner = ChildCounter(root, "learner", max_delay_s=0)
    inner = ChildCounter(learner, "learner", max_delay_s=0)
    inner.increment(steps=3)
    learner.increment(steps=2)
    assert root.get_counts() == {"learner_steps": 5}
    assert inner.get_counts() == {"learner_steps": 3}
    inner.flush()
    assert inner.get_counts() == {"learner_steps": 5}


def test_counts_wait_for_the_delay_and_go_together(clock):
    parent = Parent()
    child = ChildCounter(parent, "actor", max_delay_s=5.0, clock=clock)
    for _ in range(4):
        child.increment(steps=1)
    child.increment(episodes=1)
    assert parent.calls == []
    assert child.get_counts() == {"actor_steps": 4, "actor_episodes": 1}
    clock.advance(5.0, child._changed)
    assert parent.arrived.acquire(timeout=10)
    assert parent.calls == [{"actor_steps": 4, "actor_episodes": 1}]
    child.close()
    assert len(parent.calls) == 1


def test_close_hands_on_the_rest_and_then_counting_is_an_error(clock):
    parent = Parent()
    child = ChildCounter(parent, "actor", max_delay_s=1e6, clock=clock)
    child.increment(steps=7)
    child.close()
    assert parent.calls == [{"actor_steps": 7}]
    with pytest.raises(RuntimeError, match="'actor' is closed"):
        child.increment(steps=1)


def test_totals_of_the_parent_arrive_with_the_answer():
    parent = Parent()
    parent.counter.increment(learner_steps=9)
    child = ChildCounter(parent, "actor", max_delay_s=0)
    child.increment(steps=1)
    assert child.get_counts() == {"actor_steps": 1, "learner_steps": 9}


def test_a_failure_in_the_background_is_raised_where_counting_goes_on(clock):
    parent = Parent()
    parent.error = ConnectionBroken("gone")
    child = ChildCounter(parent, "actor", max_delay_s=1.0, clock=clock)
    child.increment(steps=1)
    clock.advance(1.0, child._changed)
    assert parent.arrived.acquire(timeout=10)
    child._thread.join(10)
    with pytest.raises(ConnectionBroken, match="gone") as raised:
        child.increment(steps=1)
    assert "while the counter 'actor' handed on its counts" in raised.value.__notes__[0]
    with pytest.raises(ConnectionBroken):
        child.close()


def test_a_counter_that_hears_of_the_stop_first_is_no_failure(clock, context):
    parent = Parent()
    parent.error = ConnectionBroken("gone")
    with bind_context(context):
        child = ChildCounter(parent, "actor", max_delay_s=1.0, clock=clock)
        child.increment(steps=1)
        clock.advance(1.0, child._changed)
        assert parent.arrived.acquire(timeout=10)
        context.stop.set()
        child.close()
        assert not child._thread.is_alive()


def test_after_the_stop_a_missing_counter_is_no_failure(clock):
    parent = Parent()
    context = NodeContext(label="actor", index=0, launch_type="test_mt")
    with bind_context(context):
        child = ChildCounter(parent, "actor", max_delay_s=1.0, clock=clock)
        child.increment(steps=1)
        parent.error = ProgramStopped("stop")
        context.stop.set()
        clock.advance(1.0, child._changed)
        assert parent.arrived.acquire(timeout=10)
        child.increment(steps=1)
        child.close()
    assert child.get_counts() == {"actor_steps": 2}


def test_while_the_program_runs_a_missing_counter_is_one():
    parent = Parent()
    child = ChildCounter(parent, "actor", max_delay_s=100.0)
    child.increment(steps=1)
    parent.error = ConnectionBroken("gone")
    with pytest.raises(ConnectionBroken):
        child.close()


def test_counts_of_many_threads_add_up():
    root = Counter()
    children = [ChildCounter(root, "actor", max_delay_s=0.001) for _ in range(4)]

    def count(child):
        for _ in range(500):
            child.increment(steps=1)

    threads = [threading.Thread(target=count, args=(child,)) for child in children for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    for child in children:
        child.close()
    assert root.get_counts() == {"actor_steps": 4000}


def test_counts_only_grow():
    with pytest.raises(ValueError, match="actor_steps was to grow by -1"):
        Counter().increment(actor_steps=-1)


def test_waiters_are_woken_by_the_count_that_reaches_their_mark():
    counter = Counter({"actor_steps": 5})
    assert counter.when_reached("actor_steps", 5).result(0) == {"actor_steps": 5}
    first, second = counter.when_reached("actor_steps", 8), counter.when_reached("actor_steps", 20)
    counter.increment(actor_steps=2)
    assert not first.done()
    counter.increment(actor_steps=2)
    assert first.result(0) == {"actor_steps": 9}
    assert not second.done()


def test_a_waiter_that_gave_up_is_left_alone():
    counter = Counter()
    assert counter.when_reached("steps", 1).cancel()
    assert counter.increment(steps=1) == {"steps": 1}


def test_the_service_keeps_totals_and_writes_progress(context, rows):
    service = CountingService(context, limits={"actor_steps": 10})
    service.add_counts({"actor_steps": 4, "learner_steps": 2})
    service._metrics = rows
    service._write()
    service._write()
    assert rows == [{"actor_steps": 4, "learner_steps": 2, "progress": 0.4}]
    assert CountingService(context).get_counts() == {"actor_steps": 4, "learner_steps": 2}
    assert CountingService(context, of_one_run=["learner_steps"]).get_counts() == {"actor_steps": 4}
    service.add_counts({"actor_steps": 40})
    service._write()
    assert rows[-1]["progress"] == 1.0
    assert service.when_reached("actor_steps", 44).result(0)["actor_steps"] == 44


def test_the_service_writes_once_more_at_the_stop(context):
    service = CountingService(context, period_s=60.0)
    service.add_counts({"actor_steps": 3})
    context.stop.set()
    service.run()
    assert load_counts(context.run_directory / "checkpoints" / "counts.json") == {"actor_steps": 3}


def test_counts_that_cannot_be_written_say_what_to_do_and_leave_the_old_ones(tmp_path, monkeypatch):
    path = tmp_path / "counts.json"
    save_counts(path, {"a": 1})

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(LaunchError, match=r"counts\.json: No space left on device\. Make room there"):
        save_counts(path, {"a": 2})
    assert load_counts(path) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["counts.json"]


def test_counts_on_disk_that_cannot_be_read_say_what_to_do(tmp_path):
    path = tmp_path / "counts.json"
    assert load_counts(path) == {}
    save_counts(path, {"a": 1})
    assert load_counts(path) == {"a": 1}
    path.write_text("{")
    with pytest.raises(ProgramError, match="Restore the file, or delete it"):
        load_counts(path)
