"""Random schedules over checkpoints, and over several servers, against lists: nothing is lost, doubled or mixed up."""

import copy
import tempfile

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.nodes import replay
from topology.nodes.replay import rate_limiters, selectors
from topology.nodes.replay.service import ReplayService
from topology.nodes.replay.sharding import ShardedClient

FIFO = selectors.Fifo()
MAX_SIZE = 12


def make_service(limit=0, checkpointer=None):
    table = replay.Table("table", FIFO, FIFO, MAX_SIZE, rate_limiters.MinSize(1), max_times_sampled=limit)
    service = ReplayService([table], checkpointer=checkpointer)
    return service, replay.Client("memory:x", service=service)


class Model:
    """Items in order, each [value, priority, times sampled], and the counts of a table."""

    def __init__(self, limit=0):
        self.limit, self.items, self.inserts, self.samples = limit, [], 0, 0

    def insert(self, values, priority):
        self.items = (self.items + [[value, priority, 0] for value in values])[-MAX_SIZE:]
        self.inserts += len(values)

    def sample(self):
        first = self.items[0]
        first[2] += 1
        self.samples += 1
        if first[2] == self.limit:
            del self.items[0]
        return list(first)

    @property
    def samplable(self):
        return sum(self.limit - times for _, _, times in self.items) if self.limit else 6 * bool(self.items)


def write(client, values, priority):
    with client.trajectory_writer(1) as writer:
        for value in values:
            writer.append({"x": value})
            writer.create_item("table", priority, {"x": writer.history["x"][-1]})


def rows(batch):
    return [list(row) for row in zip(batch.data["x"].tolist(), batch.info.priority.tolist(), strict=True)]


amounts, weights = st.integers(1, 8), st.integers(0, 9).map(float)

schedules = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), amounts, weights),
        st.tuples(st.just("sample"), amounts, weights),
        st.tuples(st.just("update"), amounts, weights),
        st.tuples(st.just("delete"), st.integers(1, 2), weights),
        st.tuples(st.just("save"), amounts, weights),
        st.tuples(st.just("restore"), amounts, weights),
    ),
    min_size=5,
    max_size=25,
)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 3), schedules)
def test_what_is_restored_is_what_was_saved(limit, schedule):
    with tempfile.TemporaryDirectory() as directory:
        service, client = make_service(limit, replay.DefaultCheckpointer(directory))
        model, saved, counter, keys = Model(limit), Model(limit), 0, {}
        for action, amount, weight in schedule:
            if action == "insert":
                write(client, range(counter, counter + amount), weight)
                model.insert(range(counter, counter + amount), weight)
                counter += amount
            elif action == "sample" and model.samplable:
                count = min(amount, model.samplable)
                batch = client.sample_batch("table", count)
                assert rows(batch) == [model.sample()[:2] for _ in range(count)]
                keys.update(zip(batch.data["x"].tolist(), batch.info.key.tolist(), strict=True))
            elif action in ("update", "delete"):
                known = list(keys)[-amount:]
                chosen = [item for item in model.items if item[0] in known]
                asked = [keys[value] for value in known]
                if action == "update":
                    assert client.mutate_priorities("table", updates=dict.fromkeys(asked, weight)) == len(chosen)
                    for item in chosen:
                        item[1] = weight
                else:
                    assert client.mutate_priorities("table", deletes=asked) == len(chosen)
                    model.items = [item for item in model.items if item not in chosen]
            elif action == "save":
                client.checkpoint()
                saved = copy.deepcopy(model)
            elif action == "restore":
                service.close()
                service, client = make_service(limit, replay.DefaultCheckpointer(directory))
                model = copy.deepcopy(saved)
            info = service.tables["table"].info
            counts = info.rate_limiter_info
            found = info.current_size, counts.insert_stats.completed, counts.sample_stats.completed
            assert found == (len(model.items), model.inserts, model.samples)
        if model.items:
            batch = client.sample_batch("table", len(model.items), replacement=False)
            assert rows(batch) == [item[:2] for item in model.items]
            assert batch.info.times_sampled.tolist() == [item[2] + 1 for item in model.items]
        client.reset("table")
        assert service.store.live_rows == 0
        service.close()


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(1, 4), schedules)
def test_several_servers_are_as_one(num_shards, schedule):
    shards = [make_service() for _ in range(num_shards)]
    client = ShardedClient([shard for _, shard in shards])
    models, turn, counter, keys = [Model() for _ in shards], 0, 0, {}
    for action, amount, weight in schedule:
        smallest = min(len(model.items) for model in models)
        if action == "insert":
            write(client, range(counter, counter + amount), weight)
            models[turn % num_shards].insert(range(counter, counter + amount), weight)
            counter, turn = counter + amount, turn + 1
        elif action == "sample" and smallest:
            count = min(amount, smallest * num_shards)
            batch = client.sample_batch("table", count, replacement=False)
            assert set(batch.info.table_size.tolist()) == {sum(len(model.items) for model in models)}
            got = rows(batch)
            parts = [[row for row in got if row in [item[:2] for item in model.items]] for model in models]
            sizes = [len(part) for part in parts]
            assert sum(sizes) == count
            assert max(sizes) - min(sizes) <= 1
            assert parts == [[i[:2] for i in model.items[:n]] for model, n in zip(models, sizes, strict=True)]
            keys.update(zip(batch.data["x"].tolist(), batch.info.key.tolist(), strict=True))
        elif action in ("update", "delete"):
            known = list(keys)[-amount:]
            asked = np.array([keys[value] for value in known], np.uint64)
            chosen = [item for model in models for item in model.items if item[0] in known]
            if action == "update":
                assert client.update_priorities("table", asked, np.full(len(asked), weight)) == len(chosen)
                for item in chosen:
                    item[1] = weight
            else:
                assert client.mutate_priorities("table", deletes=asked.tolist()) == len(chosen)
                for model in models:
                    model.items = [item for item in model.items if item not in chosen]
        assert [s.tables["table"].info.current_size for s, _ in shards] == [len(model.items) for model in models]
        assert client.server_info()["table"].current_size == sum(len(model.items) for model in models)
    for service, _ in shards:
        service.close()
