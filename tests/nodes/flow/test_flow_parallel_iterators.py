"""Parallel iterators: what runs in the workers, and how their items are gathered."""

import collections
import pickle
import subprocess
import sys
import threading

import cloudpickle
import pytest

from topology.nodes.flow import (
    Concurrently,
    LocalIterator,
    ParallelIteratorWorker,
    from_actors,
    from_items,
    from_iterators,
    from_range,
    get_global_worker,
)
from topology.testing import Gate, within

ALL = 1000  # more than any stream here has


def test_select_shards():
    items = from_items([1, 2, 3, 4], num_shards=4)
    assert items.select_shards([0, 2]).take(ALL) == [1, 3]
    assert items.select_shards([1, 3]).take(ALL) == [2, 4]
    with pytest.raises(ValueError, match="at least one"):
        items.select_shards([])
    with pytest.raises(ValueError, match="4 shards"):
        items.select_shards([4])


def test_transform_in_the_shards_and_in_the_driver():
    doubled = from_range(4).transform(lambda items: (2 * item for item in items))
    assert repr(doubled) == "ParallelIterator[from_range[4, shards=2].transform()]"
    assert doubled.gather_sync().take(ALL) == [0, 4, 2, 6]
    kept = from_range(4).gather_sync().transform(lambda items: (item for item in items if item >= 2))
    assert kept.take(ALL) == [2, 3]


def test_source_actors_of_items():
    pairs = from_items([1, 2, 3, 4], num_shards=2).gather_async().zip_with_source_actor().take(ALL)
    by_actor = collections.defaultdict(list)
    for actor, item in pairs:
        by_actor[actor].append(item)
    assert sorted(by_actor.values()) == [[1, 3], [2, 4]]
    with pytest.raises(ValueError, match="worker"):
        next(LocalIterator.of([1]).zip_with_source_actor())


def test_from_items_and_repeated():
    assert from_items([1, 2, 3, 4]).gather_sync().take(ALL) == [1, 2, 3, 4]
    repeated = from_items([1, 2, 3, 4], num_shards=2, repeat=True)
    assert repr(repeated) == "ParallelIterator[from_items[int, 4, shards=2, repeat=True]]"
    assert repeated.take(8) == [1, 2, 3, 4, 1, 2, 3, 4]


def test_from_iterators_ranges_and_actors():
    assert from_iterators([range(2), range(2)]).gather_sync().take(ALL) == [0, 0, 1, 1]
    assert from_iterators([lambda: iter([1, 2])]).take(ALL) == [1, 2]
    assert from_range(4).gather_sync().take(ALL) == [0, 2, 1, 3]
    workers = [ParallelIteratorWorker([1, 2], False), ParallelIteratorWorker([3, 4], False)]
    assert from_actors(workers).gather_sync().take(ALL) == [1, 3, 2, 4]
    with pytest.raises(ValueError, match="read only once"):
        from_iterators([iter([1, 2])], repeat=True)
    with pytest.raises(TypeError, match="a worker is"):
        from_actors([3])


def test_for_each_and_filter():
    assert from_range(4).for_each(lambda x: 2 * x).take(ALL) == [0, 4, 2, 6]
    assert from_range(4).for_each(lambda x: 2 * x).for_each(lambda x: 2 * x).take(ALL) == [0, 8, 4, 12]
    assert from_range(4).filter(lambda x: x < 3).take(ALL) == [0, 2, 1]


@pytest.mark.parametrize("way", ["gather_async", "gather_sync"])
def test_several_at_a_time_in_each_shard(way):
    gates = {item: Gate() for item in range(8)}
    running = threading.Semaphore(0)
    # The shards are served in this process, but what they run is pickled: it finds its gates by name.
    test_several_at_a_time_in_each_shard.gates = gates
    test_several_at_a_time_in_each_shard.running = running
    stream = getattr(from_range(8, num_shards=2).for_each(_through_a_gate, max_concurrency=2), way)()
    results = []
    reader = threading.Thread(target=lambda: results.extend(stream.take(ALL)))
    reader.start()
    for _ in range(4):
        assert running.acquire(timeout=20)
    assert not running.acquire(blocking=False)  # exactly 2 in each of the 2 shards
    assert sorted(item for item, gate in gates.items() if gate.entered) == [0, 1, 4, 5]
    if way == "gather_async":
        gates[0].release()
        assert running.acquire(timeout=20)  # one has ended, one more begins
        assert sorted(item for item, gate in gates.items() if gate.entered) == [0, 1, 2, 4, 5]
    for gate in gates.values():
        gate.release()
    reader.join(20)
    assert sorted(results) == [2 * item for item in range(8)]


def _through_a_gate(item):
    test_several_at_a_time_in_each_shard.running.release()
    test_several_at_a_time_in_each_shard.gates[item]()
    return 2 * item


def test_several_at_a_time_without_a_bound_and_in_the_driver():
    assert sorted(from_range(20).for_each(lambda x: x, max_concurrency=0).take(ALL)) == list(range(20))
    together = threading.Barrier(3)
    local = LocalIterator.of(range(6)).for_each(lambda x: (together.wait(20), x)[1], max_concurrency=3)
    assert sorted(local.take(ALL)) == list(range(6))
    for iterator in (from_range(2), LocalIterator.of([1])):
        with pytest.raises(ValueError, match="max_concurrency must be"):
            iterator.for_each(lambda x: x, max_concurrency=-1)


def test_combine_batch_and_flatten():
    assert from_range(4, 1).combine(lambda x: [x, x]).take(ALL) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert from_range(4, 1).batch(2).gather_sync().take(ALL) == [[0, 1], [2, 3]]
    assert from_items([[1, 2], [3, 4]], 1).flatten().gather_sync().take(ALL) == [1, 2, 3, 4]
    assert from_range(3, 1).batch(2).take(ALL) == [[0, 1], [2]]


def test_local_shuffle():
    def shards(seed):
        shuffled = from_range(200, num_shards=2).local_shuffle(50, seed)
        return [shard.take(ALL) for shard in shuffled.shards()]

    first, second = shards(None), shards(None)
    assert [sorted(shard) for shard in first] == [list(range(100)), list(range(100, 200))]
    assert first != second
    assert shards(3) == shards(3)
    assert from_range(20, 1).local_shuffle(1, seed=0).take(ALL) == list(range(20))
    mixed = from_items([0, 1] * 2000, num_shards=1).local_shuffle(100, seed=0).get_shard(0, batch_ms=50).take(4000)
    pairs = collections.Counter(zip(mixed[::2], mixed[1::2], strict=True))
    assert min(pairs[a, b] for a in (0, 1) for b in (0, 1)) > 400  # of 2000; all alike would be 500 each


def test_repartition():
    three_to_two = from_range(9, num_shards=3).repartition(2).for_each(lambda x: 2 * x)
    shards = [set(shard.take(ALL)) for shard in three_to_two.shards()]
    assert shards == [{0, 4, 6, 10, 12, 16}, {2, 8, 14}]
    two_to_three = from_range(100, num_shards=2).repartition(3)
    expected = [{*range(k, 50, 3), *range(50 + k, 100, 3)} for k in range(3)]
    assert [set(shard.take(ALL)) for shard in two_to_three.shards()] == expected


def test_repartitions_of_the_same_items_are_joined():
    first, second, third, fourth = (from_range(12, num_shards=3).repartition(2) for _ in range(4))
    shards = [[set(shard.take(ALL)) for shard in each.shards()] for each in (third, fourth)]
    assert shards[0] == shards[1] == [{0, 2, 4, 6, 8, 10}, {1, 3, 5, 7, 9, 11}]
    both = first.union(second)
    assert both.num_shards() == 4
    assert collections.Counter(both.gather_async().take(ALL)) == collections.Counter([*range(12), *range(12)])
    assert "repartition[num_partitions=2]" in repr(first)


def test_gathering_and_its_names():
    assert sorted(from_range(4).gather_async().take(ALL)) == [0, 1, 2, 3]
    assert sorted(from_range(4).gather_sync().take(ALL)) == [0, 1, 2, 3]
    assert repr(from_range(4)) == "ParallelIterator[from_range[4, shards=2]]"
    assert repr(from_range(4).gather_sync()) == "LocalIterator[ParallelIterator[from_range[4, shards=2]].gather_sync()]"
    name = "LocalIterator[ParallelIterator[from_range[4, shards=2]].gather_async()]"
    assert repr(from_range(4).gather_async()) == name
    with pytest.raises(TypeError, match="gather it first"):
        iter(from_range(4))
    with pytest.raises(ValueError, match="num_async"):
        from_range(4).gather_async(num_async=0)
    with pytest.raises(ValueError, match="batch_ms"):
        from_range(4).gather_async(batch_ms=-1)


def test_several_requests_and_replies_of_several_items_lose_nothing():
    assert sorted(from_range(100).gather_async(batch_ms=100, num_async=4).take(ALL)) == list(range(100))


@pytest.mark.parametrize(("shard", "batch_ms", "num_async"), [(0, 25, 2), (1, 15, 3), (2, 5, 4)])
def test_one_shard(shard, batch_ms, num_async):
    stream = from_range(6, num_shards=3).get_shard(shard, batch_ms, num_async)
    assert stream.take(ALL) == [2 * shard, 2 * shard + 1]


def test_what_one_shard_gives_late_is_not_lost():
    """Others are read meanwhile, again and again: what is under way stays under way."""
    gate = Gate()
    test_what_one_shard_gives_late_is_not_lost.gate = gate
    late = from_items(["late", "later", "last"], 1).for_each(_late).get_shard(0, num_async=2)
    both = Concurrently([late, LocalIterator.of(["other"] * 50)], mode="async")
    assert within(20, both.take, 50) == ["other"] * 50
    gate.release()
    assert within(20, both.take, ALL) == ["late", "later", "last"]


def _late(item):
    test_what_one_shard_gives_late_is_not_lost.gate()
    return item


def test_there_is_no_shard_of_that_number():
    with pytest.raises(ValueError, match="2 shards"):
        from_range(4).get_shard(2)


def test_batches_across_shards():
    assert from_iterators([[0, 1], [2, 3]]).batch_across_shards().take(ALL) == [[0, 2], [1, 3]]
    uneven = from_iterators([[0, 1, 2], [3, 4, 5, 6]])
    assert uneven.batch_across_shards().take(ALL) == [[0, 3], [1, 4], [2, 5], [6]]
    assert from_iterators([[], [1, 2]]).gather_async().take(ALL) == [1, 2]


def test_a_round_goes_on_without_a_straggler_whose_item_is_in_the_next():
    gate = Gate()
    test_a_round_goes_on_without_a_straggler_whose_item_is_in_the_next.gate = gate

    rounds = from_iterators([[0, 1, 2], [10, 11]]).for_each(_slow_at_ten).batch_across_shards(straggler_s=0.05)
    assert next(rounds) == [0]
    gate.release()
    rest = within(20, rounds.take, ALL)
    assert sorted(item for items in rest for item in items) == [1, 2, 10, 11]


def _slow_at_ten(item):
    if item == 10:
        test_a_round_goes_on_without_a_straggler_whose_item_is_in_the_next.gate()
    return item


def test_iterators_travel():
    stream = from_items([1, 2, 3, 4], num_shards=2)
    there = pickle.loads(pickle.dumps(stream))
    assert [shard.take(ALL) for shard in there.shards()] == [[1, 3], [2, 4]]
    nested = pickle.loads(pickle.dumps({"streams": [from_items(["a", "b"], num_shards=2), stream]}))
    assert nested["streams"][0].num_shards() == 2
    local = from_items([1, 2, 3, 4], num_shards=2).for_each(_same).gather_sync().for_each(_same).transform(_same)
    kept = local.stage.inputs[0].inputs[0].inputs[0]  # the shards must outlive their first reader
    assert pickle.loads(pickle.dumps(local)).take(ALL) == [1, 2, 3, 4]
    assert kept is not None


def _same(item):
    return item


def test_iterators_are_read_in_other_processes():
    there = """
import pickle, sys
streams = pickle.load(sys.stdin.buffer)
print([shard.take(9) for shard in streams["nested"][0].shards()], streams["local"].take(9))
"""
    stream = from_items([1, 2, 3, 4], num_shards=2).for_each(lambda x: 10 * x)
    local = from_range(4).gather_sync().for_each(abs)
    kept = local.stage.inputs[0].inputs[0]  # the shards are served here
    read = subprocess.run(
        [sys.executable, "-c", there],
        input=cloudpickle.dumps({"nested": [stream], "local": local}),
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert read.stdout.decode().split("\n")[0] == "[[10, 30], [20, 40]] [0, 2, 1, 3]"
    assert kept is not None


def test_unions_of_parallel_iterators():
    letters = from_items(list("abc"), 1).union(from_items(list("xyz"), 1))
    assert letters.gather_sync().take(ALL) == ["a", "x", "b", "y", "c", "z"]
    with pytest.raises(TypeError, match="takes a ParallelIterator"):
        from_range(4).union([1])
    with pytest.raises(ValueError, match="ambiguous"):
        letters.select_shards([0])


@pytest.mark.parametrize("how", ["parallel", "local"])
def test_the_fast_ones_come_first(how):
    gate = Gate()
    test_the_fast_ones_come_first.gate = gate
    fast = from_items(["fast"] * 6, 1)
    slow = from_items(["slow"] * 3, 1).for_each(_slow)
    both = fast.union(slow).gather_async() if how == "parallel" else fast.gather_async().union(slow.gather_async())
    assert within(20, both.take, 6) == ["fast"] * 6
    gate.release()
    assert both.take(ALL) == ["slow"] * 3


def _slow(item):
    test_the_fast_ones_come_first.gate()
    return item


def test_all_items_of_a_local_union_come_once():
    both = from_range(10).gather_async().union(from_range(5).gather_async())
    assert sorted(both.take(ALL)) == sorted([*range(10), *range(5)])


def test_a_second_stream_goes_on_where_the_first_is():
    items = from_range(6, num_shards=1)
    assert items.gather_sync().take(2) == [0, 1]
    assert items.gather_sync().take(2) == [2, 3]


def test_operators_find_the_worker_they_run_in():
    class Named(ParallelIteratorWorker):
        label = "here"

    stream = from_actors([Named([1, 2])]).for_each(lambda x: (get_global_worker().label, x))
    assert stream.take(ALL) == [("here", 1), ("here", 2)]
    with pytest.raises(RuntimeError, match="outside a shard"):
        get_global_worker()


@pytest.mark.parametrize(("prefetch", "under_way"), [(False, 0), (True, 1)])
def test_when_the_next_request_goes_out(prefetch, under_way):
    stream = from_range(10, num_shards=1).gather_async(prefetch=prefetch)
    next(stream)
    assert stream.stage.shards[0].in_flight == under_way


@pytest.mark.parametrize("num_async", [1, 3])
def test_a_consumer_that_stalls_stalls_the_workers(num_async):
    began = threading.Semaphore(0)
    test_a_consumer_that_stalls_stalls_the_workers.began = began
    stream = from_range(100, num_shards=1).for_each(_note).gather_async(num_async=num_async, prefetch=True)
    assert stream.take(5) == [0, 1, 2, 3, 4]
    for _ in range(5 + num_async):
        assert began.acquire(timeout=20)  # what was read, and what is under way
    shard = stream.stage.shards[0]
    assert shard.actor.client.list_methods()  # the worker is idle: it answers another call
    assert not began.acquire(blocking=False)
    assert shard.in_flight <= num_async


def _note(item):
    test_a_consumer_that_stalls_stalls_the_workers.began.release()
    return item


def test_shuffle_in_the_driver():
    shuffled = LocalIterator.of(range(30)).shuffle(10, seed=1).take(ALL)
    assert sorted(shuffled) == list(range(30))
    assert shuffled != list(range(30))


def test_show(capsys):
    from_range(4).show(3)
    assert capsys.readouterr().out.split() == ["0", "2", "1"]
    LocalIterator.of("abc").show(2)
    assert capsys.readouterr().out.split() == ["a", "b"]
