"""Queues between a plan and threads, and the learner's thread."""

import logging
import queue as python_queue
import threading

import pytest

from topology.nodes.flow import (
    Concurrently,
    Dequeue,
    Enqueue,
    LearnerThread,
    LocalIterator,
    MinibatchBuffer,
    Queue,
    QueueClosed,
    SampleBatch,
    make_learner_thread,
    record_steps_trained,
)
from topology.testing import Gate, within


def batches(count, size=10):
    return [SampleBatch(obs=[float(i)] * size) for i in range(count)]


@pytest.fixture
def learner(new_worker):
    made = []

    def make(**settings):
        worker = new_worker()
        made.append(LearnerThread(worker, **settings))
        return made[-1]

    yield make
    for thread in made:
        thread.stop()


def policy_of(learner):
    return learner.local_worker.get_policy()


# --- queues ---------------------------------------------------------------------------------------------------------


def test_what_goes_in_comes_out_in_order():
    queue = Queue(100)
    assert LocalIterator.of([1, 2, 3]).for_each(Enqueue(queue)).take(3) == [1, 2, 3]
    assert queue.qsize() == 3
    assert Dequeue(queue).take(3) == [1, 2, 3]
    for operator in (Enqueue, Dequeue):
        with pytest.raises(ValueError, match=r"flow\.Queue"):
            operator(python_queue.Queue())


def test_a_full_queue_keeps_the_item_and_asks_for_nothing_new():
    taken = []
    queue = Queue(2)
    source = LocalIterator.of(range(10)).for_each(lambda x: taken.append(x) or x)
    both = Concurrently([source.for_each(Enqueue(queue)), LocalIterator.of(["other"] * 50)], mode="async")
    read = both.take(30)
    assert [x for x in read if x != "other"] == [0, 1]
    assert taken == [0, 1, 2]  # 2 waits; 3 was not asked for
    assert queue.get() == 0
    read = both.take(10)
    assert [x for x in read if x != "other"] == [2]
    assert taken == [0, 1, 2, 3]
    assert [queue.get(), queue.get()] == [1, 2]


def test_check_and_the_end_of_a_queue():
    with pytest.raises(RuntimeError, match=r"check\(\) returned False"):
        next(Dequeue(Queue(), check=lambda: False))
    queue = Queue(1)
    queue.put("last")
    queue.close()
    assert Dequeue(queue).take(5) == ["last"]
    with pytest.raises(QueueClosed):
        queue.put("more")
    with pytest.raises(QueueClosed):
        queue.get()


def test_timeouts_of_threads():
    queue = Queue(1)
    with pytest.raises(TimeoutError):
        queue.get(timeout=0.01)
    queue.put(1)
    assert queue.full()
    with pytest.raises(TimeoutError):
        queue.put(2, timeout=0.01)


def test_the_ring_of_batches():
    queue = Queue()
    for item in "abc":
        queue.put(item)
    ring = MinibatchBuffer(queue, size=2, num_passes=2)
    served = [ring.get(1.0) for _ in range(6)]
    assert served == [("a", False), ("b", False), ("a", True), ("b", True), ("c", False), ("c", True)]
    with pytest.raises(TimeoutError):
        ring.get(0.01)


# --- the learner ----------------------------------------------------------------------------------------------------


def test_a_learner_learns_and_tells(learner):
    thread = learner(learner_queue_size=4)
    thread.start()
    for batch in batches(3):
        thread.inqueue.put(batch)
    outputs = [thread.outqueue.get(20) for _ in range(3)]
    assert [output[0] for output in outputs] == [10, 10, 10]
    for output in outputs:
        count, info, agent_steps = output  # as plans unpack it
        assert (count, agent_steps) == (10, 10)
        assert info == output[1] == output.info
        assert info["default_policy"]["learner_stats"]["loss"] == 1.0
    assert thread.weights_version == 3
    result = thread.add_learner_metrics({})
    assert result["info"]["learner"] == outputs[-1].info
    assert result["info"]["num_weight_updates"] == 3
    assert result["info"]["learner_queue"]["size_max"] <= 4


def test_several_passes(learner):
    thread = learner(num_sgd_iter=3)
    thread.start()
    thread.inqueue.put(batches(1)[0])
    assert [thread.outqueue.get(20).env_steps for _ in range(3)] == [10] * 3
    assert policy_of(thread).learned == [10] * 3


def test_the_exception_of_a_learner_comes_out_of_the_plan_whole(learner):
    thread = learner()
    broken = ArithmeticError("nan in row 7")

    def learn(batch):
        raise broken

    policy_of(thread).learn_on_batch = learn
    thread.start()
    feed = LocalIterator.of(batches(5)).for_each(Enqueue(thread.inqueue))
    outputs = Dequeue(thread.outqueue, check=thread.is_alive)
    merged = Concurrently([feed, outputs], mode="async", output_indexes=[1])
    with pytest.raises(ArithmeticError) as caught:
        within(20, next, merged)
    assert caught.value is broken
    assert "learner's thread" in caught.value.__notes__[0]
    assert any(entry.name == "learn" for entry in caught.traceback)  # where it was raised
    with pytest.raises(ArithmeticError):
        thread.inqueue.put(batches(1)[0], timeout=20)


def test_a_plan_that_waits_hears_of_the_learners_death(learner):
    thread = learner()
    gate = Gate()

    def learn(batch):
        gate()
        raise ArithmeticError

    policy_of(thread).learn_on_batch = learn
    thread.start()
    thread.inqueue.put(batches(1)[0])
    gate.wait_entered()
    threading.Timer(0.05, gate.release).start()
    with pytest.raises(ArithmeticError):
        within(20, next, Dequeue(thread.outqueue, check=thread.is_alive))


def test_a_learner_without_data_lives_on(learner, caplog):
    thread = learner(learner_queue_timeout=0.01)
    told = threading.Event()
    caplog.handler.addFilter(lambda record: (told.set(), True)[1])
    with caplog.at_level(logging.WARNING):
        thread.start()
        assert told.wait(20)
    assert "nothing to learn from" in caplog.text
    assert thread.is_alive()
    thread.inqueue.put(batches(1)[0])
    assert thread.outqueue.get(20).env_steps == 10


def test_both_queues_are_bounded_and_nothing_is_lost(learner):
    thread = learner(learner_queue_size=2)
    thread.start()
    feed = LocalIterator.of(batches(40)).for_each(Enqueue(thread.inqueue))
    outputs = Dequeue(thread.outqueue, check=thread.is_alive).for_each(record_steps_trained)
    merged = Concurrently([feed, outputs], mode="async", output_indexes=[1])
    assert len(within(30, merged.take, 40)) == 40
    assert merged.shared_metrics.get().counters["num_steps_trained"] == 400
    assert thread.outqueue.maxsize == 3
    # A plan that feeds but does not read stops at what both queues hold.
    more = LocalIterator.of(batches(40)).for_each(Enqueue(thread.inqueue))
    with_others = Concurrently([more, LocalIterator.of([None] * 500)], mode="async")
    fed = [x for x in within(30, with_others.take, 500) if x is not None]
    assert len(fed) <= 2 + 3 + 2


def test_it_ends_when_told(learner):
    thread = learner()
    thread.start()
    thread.stop()
    assert not thread.is_alive()
    assert Dequeue(thread.outqueue, check=thread.is_alive).take(1) == []


def test_settings_by_name(new_worker):
    thread = make_learner_thread(new_worker(), {"learner_queue_size": 3, "num_sgd_iter": 2, "lr": 1})
    assert thread.inqueue.maxsize == 3
    assert thread.outqueue.maxsize == 7
    with pytest.raises(ValueError, match="at least 1"):
        make_learner_thread(new_worker(), {"num_sgd_iter": 0})
