import concurrent.futures
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.errors import ReplayError
from topology.nodes import replay
from topology.nodes.replay import rate_limiters, selectors
from topology.nodes.replay.layouts import LayoutSpec, LeafPattern
from topology.nodes.replay.requests import InsertRequest

FIFO = selectors.Fifo()


def test_sampled_items_carry_their_info(bench, make_table):
    table = make_table(sampler=selectors.Prioritized(1.0))
    bench.insert(table, [10, 20, 30], [0.0, 0.0, 2.0])
    values, picks = bench.sample(table, 4).result(0)
    assert values == [30] * 4
    assert picks.probabilities.tolist() == [1.0] * 4
    assert picks.priorities.tolist() == [2.0] * 4
    assert picks.times_sampled.tolist() == [1, 2, 3, 4]
    assert picks.table_size == 3
    assert picks.keys.dtype == np.uint64
    assert len(set(picks.keys.tolist())) == 1


def test_a_full_table_removes_through_its_remover(bench, make_table):
    table = make_table(sampler=FIFO, max_size=3)
    bench.insert(table, range(5))
    assert table.info.current_size == 3
    assert bench.sample(table).result(0)[0] == [2]
    heap = make_table(sampler=FIFO, remover=selectors.MinHeap(), max_size=3)
    bench.insert(heap, [0, 1, 2, 3, 4], [5.0, 1.0, 4.0, 3.0, 2.0])
    values = {bench.sample(heap).result(0)[0][0] for _ in range(3)}
    assert values == {0}
    remaining = set()
    for _ in range(3):
        value, picks = bench.sample(heap).result(0)
        remaining.add(value[0])
        heap.delete(picks.keys)
    assert remaining == {0, 2, 3}, "the last one in is the one of least priority, and goes"


def test_an_item_leaves_after_its_last_sample(bench, make_table):
    table = make_table(max_times_sampled=3, max_size=10)
    bench.insert(table, range(5))
    values, _ = bench.sample(table, 15).result(0)
    assert sorted(values) == sorted(list(range(5)) * 3)
    assert table.info.current_size == 0
    assert bench.group.live_rows == 0


def test_queue_is_first_in_first_out_once_and_bounded(bench):
    queue = replay.Table.queue("queue", 3)
    inserting = bench.insert(queue, range(5))
    assert not inserting.done()
    assert queue.info.current_size == 3
    assert queue.info.rate_limiter_info.insert_stats.pending == 2
    assert bench.sample(queue, 2).result(0)[0] == [0, 1]
    assert inserting.done()
    sampling = bench.sample(queue, 4)
    assert not sampling.done()
    bench.insert(queue, [9])
    assert sampling.result(0)[0] == [2, 3, 4, 9]
    assert queue.info.current_size == 0


def test_stack_gives_the_newest_first(bench):
    stack = replay.Table.stack("stack", 4)
    bench.insert(stack, [1, 2, 3])
    assert bench.sample(stack, 3).result(0)[0] == [3, 2, 1]


def test_a_batch_larger_than_the_queue_fills_as_items_come(bench):
    queue = replay.Table.queue("queue", 2)
    sampling = bench.sample(queue, 7)
    inserting = [bench.insert(queue, [i]) for i in range(7)]
    assert sampling.result(0)[0] == list(range(7))
    assert all(future.done() for future in inserting)


def test_an_insert_completes_a_waiting_sample_and_a_sample_a_waiting_insert(bench, make_table):
    table = make_table(rate_limiter=rate_limiters.SampleToInsertRatio(1.0, 2, 2.0), sampler=FIFO)
    sampling = bench.sample(table, 2)
    bench.insert(table, [1])
    assert not sampling.done()
    bench.insert(table, [2])
    assert sampling.result(0)[0] == [1, 1]
    inserting = bench.insert(table, range(10))
    assert not inserting.done()
    assert not table.can_insert(1)
    bench.sample(table, 4).result(0)
    bench.sample(table, 4).result(0)
    assert inserting.done()


def test_waiting_requests_are_served_in_order(bench, make_table):
    table = make_table(rate_limiter=rate_limiters.Queue(5), max_size=5, sampler=FIFO, max_times_sampled=1)
    first, second = bench.sample(table, 3), bench.sample(table, 1)
    bench.insert(table, [1])
    bench.insert(table, [2])
    assert not first.done()
    assert not second.done()
    bench.insert(table, [3, 4])
    assert first.result(0)[0] == [1, 2, 3]
    assert second.result(0)[0] == [4]


def test_deletes_below_the_minimum_block_samples_again(bench, make_table):
    table = make_table(rate_limiter=rate_limiters.MinSize(2))
    bench.insert(table, [1, 2])
    _, picks = bench.sample(table, 1).result(0)
    assert table.delete(picks.keys) == 1
    waiting = bench.sample(table, 1)
    assert not waiting.done()
    assert not table.can_sample(1)
    bench.insert(table, [3])
    assert waiting.done()


def test_unknown_keys_are_ignored(bench, make_table):
    table = make_table(sampler=selectors.Prioritized(1.0))
    bench.insert(table, [1, 2])
    _, picks = bench.sample(table, 20).result(0)
    keys = np.unique(picks.keys)
    strangers = np.array([0, 1, 2**64 - 1, int(keys[0]) + 7, int(keys[0]) + (1 << 32)], np.uint64)
    assert table.update_priorities(np.concatenate([strangers, keys]), np.arange(7.0)) == 2
    assert table.delete(strangers) == 0
    assert table.delete(np.concatenate([strangers, keys[:1], keys[:1]])) == 1
    assert table.info.current_size == 1


def test_keys_of_removed_items_are_not_taken_for_their_successors(bench, make_table):
    table = make_table(max_size=1)
    seen = set()
    for value in range(50):
        bench.insert(table, [value])
        _, picks = bench.sample(table).result(0)
        assert table.update_priorities(np.array(sorted(seen), np.uint64), np.ones(len(seen))) == 0
        seen.add(int(picks.keys[0]))
    assert len(seen) == 50


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_wrong_priorities_change_nothing(bench, make_table, wrong):
    table = make_table(sampler=selectors.Prioritized(1.0))
    bench.insert(table, [1, 2], [1.0, 3.0])
    _, picks = bench.sample(table, 30).result(0)
    keys = np.unique(picks.keys)
    with pytest.raises(ValueError, match=r"'table': priorities must be finite and not negative, got .* at position 1"):
        table.update_priorities(keys, np.array([9.0, wrong]))
    assert set(bench.sample(table, 50).result(0)[1].priorities.tolist()) == {1.0, 3.0}


def test_reset_empties_the_table_and_its_counts(bench, make_table):
    table = make_table(max_size=3)
    bench.insert(table, range(10), episode=1)
    _, before = bench.sample(table, 30).result(0)
    table.reset()
    info = table.info
    assert (info.current_size, info.num_episodes, info.num_unique_samples) == (0, 0, 0)
    assert info.rate_limiter_info.insert_stats.completed == 0
    assert bench.group.live_rows == 0
    bench.insert(table, range(3))
    _, after = bench.sample(table, 30).result(0)
    assert not set(before.keys.tolist()) & set(after.keys.tolist())


def test_close_fails_those_who_wait_and_those_who_come(bench):
    queue = replay.Table.queue("queue", 2)
    sampling = bench.sample(queue, 5)
    full = replay.Table.queue("full", 2)
    inserting = bench.insert(full, range(5))
    for table in (queue, full):
        table.close("the replay server was stopped")
    for future in (sampling, inserting, bench.sample(queue), bench.insert(full, [1])):
        with pytest.raises(ReplayError, match="stopped"):
            future.result(0)


def test_what_was_drawn_for_a_cancelled_sample_goes_to_the_next(bench):
    queue = replay.Table.queue("queue", 10)
    sampling = bench.sample(queue, 4)
    bench.insert(queue, [1, 2])
    assert queue.cancel(sampling.request, ReplayError("cancelled"))
    assert not queue.cancel(sampling.request, ReplayError("again"))
    with pytest.raises(ReplayError, match="cancelled"):
        sampling.result(0)
    assert queue.can_sample(2)
    assert not queue.can_sample(3)
    assert bench.sample(queue, 1).result(0)[0] == [1]
    bench.insert(queue, [3])
    assert bench.sample(queue, 2).result(0)[0] == [2, 3]
    assert bench.group.live_rows == 0


def test_cancelled_inserts_give_their_steps_back(bench):
    queue = replay.Table.queue("queue", 2)
    inserting = bench.insert(queue, range(6))
    assert queue.cancel(inserting.request, ReplayError("gone"))
    assert bench.sample(queue, 2).result(0)[0] == [0, 1]
    assert bench.group.live_rows == 0


def test_same_seed_and_same_calls_give_the_same_keys(bench, make_table):
    def keys(seed):
        table = make_table(sampler=selectors.Prioritized(0.8), max_size=50, seed=seed)
        found = []
        for i in range(20):
            bench.insert(table, range(7), np.arange(7.0) + i)
            found += bench.sample(table, 16).result(0)[1].keys.tolist()
        return found

    assert keys(3) == keys(3)
    assert keys(3) != keys(4)
    assert keys(None) != keys(None)


def test_memory_stays_flat_while_items_are_overwritten(bench, make_table):
    table = make_table(max_size=100)
    for _ in range(200):
        bench.insert(table, range(37))
        bench.sample(table, 16).result(0)
    assert bench.group.live_rows == 100
    assert bench.group._allocator.high <= 100 + 37
    assert table._core.items._pool.size <= 256


def test_episodes_are_counted(bench, make_table):
    table = make_table(max_size=4)
    for episode in (7, 8, 9):
        bench.insert(table, range(2), episode=episode)
    assert (table.info.num_episodes, table.info.num_deleted_episodes) == (2, 1)


def test_unique_samples_are_counted(bench, make_table):
    table = make_table(sampler=FIFO)
    bench.insert(table, range(3))
    bench.sample(table, 5).result(0)
    assert table.info.num_unique_samples == 1
    assert table.info.rate_limiter_info.sample_stats.completed == 5


def test_info_reports_the_settings(make_table):
    signature = {"a": replay.Spec((None, 3), np.float32, "a"), "b": np.dtype(np.int32)}
    info = make_table(
        "name", sampler=selectors.Prioritized(0.3), max_times_sampled=4, max_size=77, signature=signature
    ).info
    assert (info.name, info.max_size, info.max_times_sampled, info.current_size) == ("name", 77, 4, 0)
    assert info.sampler_options.prioritized.priority_exponent == 0.3
    assert info.remover_options.fifo
    assert info.signature == {"a": replay.Spec((None, 3), np.float32), "b": replay.Spec((), np.int32)}
    assert info.rate_limiter_info.min_size_to_sample == 1


def test_replace_changes_one_setting(make_table):
    table = make_table().replace(rate_limiter=rate_limiters.SampleToInsertRatio(2.0, 10, (5.0, 50.0)))
    limiter = table.info.rate_limiter_info
    assert (limiter.samples_per_insert, limiter.min_size_to_sample) == (2.0, 10)
    assert (limiter.min_diff, limiter.max_diff) == (5.0, 50.0)
    assert table.name == "table"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"max_size": 0}, "max_size must be at least 1"),
        ({"max_times_sampled": -1}, "max_times_sampled"),
        ({"name": ""}, "needs a name"),
        ({"sampler": "fifo"}, "sampler must be a selector"),
        ({"rate_limiter": None}, "rate_limiter must be one"),
        ({"rate_limiter": rate_limiters.MinSize(1001)}, r"min_size_to_sample \(1001\) is above max_size"),
    ],
)
def test_settings_are_checked(make_table, changes, text):
    with pytest.raises(ValueError, match=text):
        make_table(**changes)


def test_items_of_several_layouts_share_a_table(bench, make_table):
    pair = bench.store.layout(bench.group, LayoutSpec((LeafPattern(0, range(2), False),), "*", b"", ((),)))
    table = make_table(sampler=FIFO, max_times_sampled=1, max_size=10)
    rows = bench.group.take(4)
    bench.group.columns[0].write(rows, np.array([7, 8, 9, 10]))
    bench.insert(table, [0])
    table.insert(InsertRequest(pair, rows.reshape(2, 2).astype(np.int32), np.ones(2), 0, lambda error: None))
    bench.insert(table, [1])
    assert bench.sample(table, 4).result(0)[0] == [0, 7, 9, 1]
    assert bench.group.live_rows == 0


calls = st.lists(
    st.tuples(
        st.sampled_from(["insert", "insert", "sample", "sample", "update", "delete", "cancel", "reset"]),
        st.integers(1, 12),
    ),
    max_size=60,
)


class Model:
    """A queue-like table (FIFO sampler and remover) as plainly as can be, one item at a time."""

    def __init__(self, max_size, limiter, max_times):
        self.items, self.max_size, self.max_times = [], max_size, max_times
        self.limiter, self.inserts, self.samples, self.deletes = limiter, 0, 0, 0
        self.wait_insert, self.wait_sample, self.spare = [], [], []

    def error(self, inserts, samples):
        return (self.inserts + inserts) * self.limiter.samples_per_insert - self.samples - samples

    def run(self):
        moved = True
        while moved:
            moved = False
            while self.wait_insert and self.may_insert():
                moved = True
                entry = self.wait_insert[0]
                if len(self.items) == self.max_size:
                    self.items.pop(0)
                    self.deletes += 1
                self.items.append([entry.pop(0), 0])
                self.inserts += 1
                if not entry:
                    self.wait_insert.pop(0)
            while self.wait_sample and (self.spare or self.may_sample()):
                moved = True
                entry = self.wait_sample[0]
                entry["got"].append(self.spare.pop(0) if self.spare else self.draw())
                if len(entry["got"]) == entry["count"]:
                    entry["future"] = entry["got"]
                    self.wait_sample.pop(0)

    def may_insert(self):
        size = self.inserts - self.deletes
        return size + 1 <= self.limiter.min_size_to_sample or self.error(1, 0) <= self.limiter.max_diff

    def may_sample(self):
        size = self.inserts - self.deletes
        return size >= self.limiter.min_size_to_sample and self.error(0, 1) >= self.limiter.min_diff

    def draw(self):
        self.samples += 1
        item = self.items[0]
        item[1] += 1
        if item[1] == self.max_times:
            self.items.pop(0)
            self.deletes += 1
        return item[0]


@pytest.mark.parametrize("max_times", [0, 1, 2])
@pytest.mark.parametrize(
    "limiter",
    [
        rate_limiters.MinSize(3),
        rate_limiters.Queue(5),
        rate_limiters.SampleToInsertRatio(1.5, 2, 4.0),
        rate_limiters.SampleToInsertRatio(0.3, 4, (-3.0, 2.0)),
    ],
    ids=repr,
)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(schedule=calls)
def test_random_schedules_against_a_plain_model(make_bench, limiter, max_times, schedule):
    bench, number = make_bench(), 0
    table = replay.Table("t", FIFO, FIFO, 6, limiter, max_times, seed=0)
    model = Model(6, limiter, max_times)
    inserting, sampling = [], []
    for kind, count in schedule:
        if kind == "insert":
            values = list(range(number, number + count))
            number += count
            inserting.append(bench.insert(table, values))
            model.wait_insert.append(values)
        elif kind == "sample":
            entry = {"count": count, "got": [], "future": None}
            sampling.append((bench.sample(table, count), entry))
            model.wait_sample.append(entry)
        elif kind == "reset":
            table.reset()
            model.items.clear()
            model.spare.clear()
            model.inserts = model.samples = model.deletes = 0
        elif kind == "cancel":
            for future, entry in sampling[-1:]:
                if entry["future"] is None:
                    assert table.cancel(future.request, ReplayError("x"))
                    model.wait_sample = [other for other in model.wait_sample if other is not entry]
                    model.spare += entry["got"]
                    entry["future"] = "cancelled"
        model.run()
        info = table.info
        assert info.current_size == len(model.items)
        assert info.rate_limiter_info.insert_stats.completed == model.inserts
        assert info.rate_limiter_info.sample_stats.completed == model.samples
        assert info.rate_limiter_info.insert_stats.pending == sum(map(len, model.wait_insert))
        for future, entry in sampling:
            assert future.done() == (entry["future"] is not None)
            if isinstance(entry["future"], list):
                assert future.result(0)[0] == entry["future"]
    table.close("end")
    table.reset()
    assert bench.group.live_rows == 0


def test_many_threads_lose_nothing(bench):
    queue = replay.Table.queue("queue", 16)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        start = threading.Barrier(8)

        def produce(k):
            start.wait(10)
            for i in range(100):
                bench.insert(queue, [1000 * k + i]).result(20)

        def consume():
            start.wait(10)
            return [value for _ in range(20) for value in bench.sample(queue, 5).result(20)[0]]

        producers = [pool.submit(produce, k) for k in range(4)]
        consumers = [pool.submit(consume) for _ in range(4)]
        for producer in producers:
            producer.result(30)
        got = [consumer.result(30) for consumer in consumers]
    assert sorted(value for each in got for value in each) == [1000 * k + i for k in range(4) for i in range(100)]
    assert bench.group.live_rows == 0
