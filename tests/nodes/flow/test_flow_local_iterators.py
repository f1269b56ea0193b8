"""Flows in the driver: joined, copied, counted; and how a plan waits."""

import threading
import time

import pytest

from topology.context import NodeContext, bind_context
from topology.errors import ProgramStopped
from topology.nodes.flow import Concurrently, LocalIterator, Queue, get_shared_metrics
from topology.nodes.flow.queues import Dequeue
from topology.testing import Gate, within

ALL = 1000


def of(*items):
    return LocalIterator.of(list(items))


def summing(name):
    def add(value):
        counters = get_shared_metrics().counters
        counters[name] += value
        return counters[name]

    return add


# --- joined flows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["round_robin", "async"])
def test_flows_take_turns(mode):
    assert Concurrently([of(1, 2, 3), of(4, 5, 6)], mode=mode).take(ALL) == [1, 4, 2, 5, 3, 6]


@pytest.mark.parametrize(
    ("weights", "expected"),
    [([3, 1, 2], [1, 1, 1, 2, 3, 3, 2, 3, 2]), ([1, 1, "*"], [1, 2, 3, 3, 3, 1, 2, 1, 2])],
)
def test_weights(weights, expected):
    flows = [of(1, 1, 1), of(2, 2, 2), of(3, 3, 3)]
    assert Concurrently(flows, mode="round_robin", round_robin_weights=weights).take(ALL) == expected


def test_fractions_are_right_on_average():
    flows = [LocalIterator.of(["a"] * 1000), LocalIterator.of(["b"] * 5000)]
    both = Concurrently(flows, mode="round_robin", round_robin_weights=[1, 2.3], seed=0)
    first = both.take(2000)
    assert 2.15 < first.count("b") / first.count("a") < 2.45


@pytest.mark.parametrize("mode", ["round_robin", "async"])
@pytest.mark.parametrize(("indexes", "expected"), [([1], [4, 5, 6]), ([0, 1], [1, 4, 2, 5, 3, 6])])
def test_only_some_flows_are_handed_on_but_all_are_read(mode, indexes, expected):
    seen = []
    first = of(1, 2, 3).for_each(lambda x: seen.append(x) or x)
    assert Concurrently([first, of(4, 5, 6)], mode=mode, output_indexes=indexes).take(ALL) == expected
    assert seen == [1, 2, 3]


@pytest.mark.parametrize(("strict", "expected"), [(False, [1, 4, 5, 6]), (True, [1, 4])])
def test_the_end_of_one_flow(strict, expected):
    assert of(1).union(of(4, 5, 6), deterministic=True, strict=strict).take(ALL) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ops": [0]}, "at least two"),
        ({"mode": "both"}, "mode must be"),
        ({"mode": "async", "round_robin_weights": [1, 1]}, "round_robin"),
        ({"round_robin_weights": ["*", "*"]}, "at least one"),
        ({"round_robin_weights": [1]}, "each of the 2 flows"),
        ({"round_robin_weights": [1, 0]}, "above 0"),
        ({"output_indexes": [2]}, "2 is not one of the 2"),
        ({"ops": [0, "no flow"]}, "must be LocalIterators"),
    ],
)
def test_what_cannot_be_joined(arguments, message):
    ops = [of(1) if op == 0 else op for op in arguments.pop("ops", [0, 0])]
    with pytest.raises(ValueError, match=message):
        Concurrently(ops, **arguments)


# --- counters -------------------------------------------------------------------------------------------------------


def test_separate_flows_count_for_themselves():
    assert [of(1, 2, 3, 4).for_each(summing("foo")).take(ALL) for _ in range(2)] == [[1, 3, 6, 10]] * 2


def test_joined_flows_share_their_counters():
    seen = []

    def note(value):
        seen.append(set(get_shared_metrics().counters))
        return value

    first = of(1, 2, 3, 4).for_each(summing("foo"))
    second = of(*[100] * 4).for_each(summing("bar"))
    both = first.union(second, deterministic=True).for_each(note)
    assert both.take(ALL) == [1, 100, 3, 200, 6, 300, 10, 400]
    assert seen[0] == {"foo"}
    assert all(names == {"foo", "bar"} for names in seen[1:])


def test_flows_joined_twice_share_their_counters():
    seen = []

    def counting(name):
        return of(*[1] * 4).for_each(summing(name))

    def note(value):
        seen.append(len(get_shared_metrics().counters))
        return value

    inner = counting("a").union(counting("b"), deterministic=True)
    outer = inner.union(counting("c"), deterministic=True).for_each(note)
    assert outer.take(ALL) == [1, 1, 1, 2, 2, 3, 2, 4, 3, 3, 4, 4]
    assert seen[2:] == [3] * 10


def test_what_was_counted_before_flows_are_joined_is_kept():
    first, second = (of(1, 1, 1).for_each(summing("n")) for _ in range(2))
    assert first.take(2) == [1, 2]
    assert second.take(1) == [1]
    assert first.union(second).take(ALL) == [4, 5, 6]


def test_counters_are_there_in_operators_only():
    assert of(1).for_each(summing("x")).take(1) == [1]
    for get in (get_shared_metrics, LocalIterator.get_metrics):
        with pytest.raises(ValueError, match="outside an operator"):
            get()


# --- copies ---------------------------------------------------------------------------------------------------------


def test_copies_keep_in_step():
    first, second = LocalIterator.of(range(5)).duplicate(2)
    assert second.union(first.batch(2)).take(20) == [0, [0, 1], 1, 2, [2, 3], 3, 4, [4]]
    with pytest.raises(ValueError, match="at least 2"):
        of(1).duplicate(1)


def test_a_copy_alone_says_so_instead_of_spinning_or_hoarding():
    first, second = LocalIterator.of(range(5)).duplicate(2)
    assert next(first) == 0
    with pytest.raises(RuntimeError, match="can never go on"):
        within(10, next, first)
    assert next(second) == 0  # and nothing is lost
    assert next(first) == 1


def test_an_iterator_has_one_reader():
    source = of(1, 2)
    doubled = source.for_each(lambda x: 2 * x)
    with pytest.raises(ValueError, match="duplicate"):
        source.filter(bool)
    with pytest.raises(RuntimeError, match="duplicate"):
        next(source)
    assert doubled.take(ALL) == [2, 4]


def test_a_plan_is_a_part_of_another_one():
    def part(*items):
        return Concurrently([of(*items), of(*items)], mode="round_robin", output_indexes=[1])

    whole = Concurrently([part(1, 2), part(3, 4).for_each(lambda x: 10 * x)], mode="async")
    assert whole.take(ALL) == [1, 30, 2, 40]


# --- errors ---------------------------------------------------------------------------------------------------------


def test_a_users_stop_iteration_is_an_error():
    def stop(value):
        raise StopIteration

    for stream in (of(1).for_each(stop), of(1).filter(stop), of(1).for_each(stop, max_concurrency=2)):
        with pytest.raises(RuntimeError, match="StopIteration"):
            next(stream)


def test_a_plan_goes_on_after_an_error():
    stream = of(1, 0, 2).for_each(lambda x: 2 // x)
    assert next(stream) == 2
    with pytest.raises(ZeroDivisionError):
        next(stream)
    assert next(stream) == 1


# --- waiting --------------------------------------------------------------------------------------------------------


def test_an_idle_plan_takes_no_processor_time():
    """Nobody asks again without having been woken: the flows are looked at once for each wake-up."""
    queue, gate = Queue(), Gate()
    idle = Concurrently([Dequeue(queue), Dequeue(Queue())], mode="async")
    looked = []
    inside = idle.stage.inputs[0]
    poll = inside.poll
    inside.poll = lambda waker: (looked.append(1), gate() if len(looked) == 1 else None, poll(waker))[2]
    results = []

    def read():
        began = time.thread_time()
        results.append((next(idle), time.thread_time() - began))

    reader = threading.Thread(target=read)
    reader.start()
    gate.wait_entered()
    gate.release()
    reader.join(0.5)
    assert reader.is_alive()
    queue.put("now")
    reader.join(20)
    [(value, busy)] = results
    assert value == "now"
    assert busy < 0.02 * 0.5  # of half a second
    assert len(looked) <= 4


def test_the_stop_of_the_program_ends_a_wait():
    context = NodeContext(label="plan", index=0, launch_type="test_mt")
    with bind_context(context):
        stream = Dequeue(Queue())
        threading.Timer(0.05, context.stop.set).start()
        with pytest.raises(ProgramStopped):
            within(20, next, stream)


@pytest.mark.parametrize("mode", ["round_robin", "async"])
def test_a_flow_that_has_nothing_yet_does_not_hold_up_the_others(mode):
    queue = Queue()
    both = Concurrently([Dequeue(queue), of(1, 2, 3)], mode=mode)
    assert within(20, both.take, 3) == [1, 2, 3]
    queue.put("late")
    assert within(20, both.take, 1) == ["late"]
    queue.close()
    assert within(20, both.take, ALL) == []
