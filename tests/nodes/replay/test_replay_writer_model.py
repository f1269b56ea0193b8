"""Random programs of a writer against lists: whatever is appended, skipped, sent, dropped, items hold their cells."""

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.errors import ReplayDeadlineExceeded, ReplayError
from topology.nodes import replay
from topology.nodes.replay.messages import StreamLost
from topology.nodes.replay.service import ReplayService

COLUMNS = ("a", "b", "c")

actions = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sets(st.sampled_from(COLUMNS)), st.booleans()),
        st.tuples(st.just("append"), st.just({"a", "b", "c"}), st.just(False)),
        st.tuples(st.just("batch"), st.integers(1, 300), st.just(0)),
        st.tuples(st.just("item"), st.lists(st.integers(-1, 6), min_size=1, max_size=4), st.integers(0, 2**31)),
        st.tuples(st.just("item"), st.lists(st.integers(-1, 6), min_size=1, max_size=4), st.integers(0, 2**31)),
        st.tuples(st.just("flush"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("end"), st.booleans(), st.just(0)),
        st.tuples(st.just("lose"), st.just(0), st.just(0)),
    ),
    min_size=10,
    max_size=50,
)


class Model:
    """The writer's history as a list of steps, each a dict; None in place of expired ones."""

    def __init__(self, keep):
        self.keep, self.steps, self.open = keep, [], False
        self.alive = 0

    def append(self, cells, partial):
        if self.open:
            self.steps[-1].update(cells)
        else:
            self.steps.append(dict(cells))
            self.alive = max(self.alive, len(self.steps) - self.keep)
        self.open = partial

    def batch(self, cells):
        count = len(cells["a"])
        self.steps += [{k: v[i] for k, v in cells.items()} for i in range(count)]
        self.alive = max(self.alive, len(self.steps) - count - self.keep + 1)

    def end(self, clear):
        self.open = False
        if clear:
            self.steps, self.alive = [], 0

    def usable(self, column):
        return [i for i in range(self.alive, len(self.steps)) if column in self.steps[i]]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(1, 8), actions)
def test_items_hold_their_cells(keep, program):
    service = ReplayService([replay.Table.queue("queue", 10_000)])
    client = replay.Client("memory:x", service=service)
    writer, model, counter = client.trajectory_writer(keep), Model(keep), 0
    expected, lost = [], False
    for kind, what, more in program:
        if kind == "append":
            names = {name for name in what if not (model.open and name in model.steps[-1])}
            cells = {name: np.array([counter, ord(name)]) for name in sorted(names)}
            counter += 1
            writer.append(cells, partial_step=more)
            model.append({k: v.tolist() for k, v in cells.items()}, more)
        elif kind == "batch" and not model.open:
            cells = {k: np.stack([np.arange(counter, counter + what), np.full(what, ord(k))], 1) for k in "ab"}
            counter += what
            writer.append_batch(cells)
            model.batch({k: v.tolist() for k, v in cells.items()})
        elif kind == "item":
            item = pick(model, what, np.random.default_rng(more))
            if item:
                writer.create_item("queue", 1.0, {k: writer.history[c][i] for k, (c, i) in item.items()})
                expected.append({k: cells_of(model, c, i) for k, (c, i) in item.items()})
        elif kind == "flush":
            writer.flush(what)
        elif kind == "end":
            writer.end_episode(clear_buffers=what)
            model.end(what)
        elif kind == "lose" and not lost:
            writer.flush()
            for stream in list(service._streams.values()):  # as after a restart of the server
                stream.close()
            lost = True
    writer.flush()
    writer.close()
    for want in expected:
        (sample,) = client.sample("queue", 1, emit_timesteps=False)
        assert [leaf.tolist() for leaf in sample.data] == [want[key] for key in sorted(want)]
    assert service.tables["queue"].info.current_size == 0
    assert service.store.live_rows == 0
    service.close()


def pick(model, kinds, rng):
    """Random leaves over cells that exist: name -> (column, index)."""
    item = {}
    for number, kind in enumerate(kinds):
        column = COLUMNS[int(rng.integers(3))]
        usable = model.usable(column)
        if not usable:
            continue
        if kind == -1:
            chosen = rng.choice(usable)
            item[f"leaf{number}"] = column, int(chosen) - int(rng.integers(2)) * len(model.steps)
        elif kind < 3:
            item[f"leaf{number}"] = column, [int(i) for i in rng.choice(usable, kind + 1)]
        else:
            start = int(rng.choice(usable))
            stop = start + 1
            while stop < len(model.steps) and column in model.steps[stop] and rng.random() < 0.8:
                stop += 1
            item[f"leaf{number}"] = column, slice(start, stop)
    return item


def cells_of(model, column, index):
    if isinstance(index, int):
        return model.steps[index][column]
    if isinstance(index, slice):
        return [step[column] for step in model.steps[index]]
    return [model.steps[i][column] for i in index]


def test_a_stream_the_server_does_not_know_is_refused():
    service = ReplayService([replay.Table.queue("queue", 10)])
    sent = []
    insert = service.insert
    service.insert = lambda batch, *_: sent.append(batch) or insert(batch)
    client = replay.Client("memory:x", service=service)
    writer = client.trajectory_writer(1)
    for value in range(2):
        writer.append(value)
        writer.create_item("queue", 1.0, writer.history[-1])
        writer.flush()
    other = ReplayService([replay.Table.queue("queue", 10)])
    with pytest.raises(StreamLost, match="no stream here"):
        other.insert(sent[1])
    service.close()
    other.close()


def test_late_cells_of_a_step_that_left_the_window_stay_behind():
    service = ReplayService([replay.Table.queue("queue", 10)])
    client = replay.Client("memory:x", service=service)
    writer = client.trajectory_writer(1)
    writer.append({"a": 0, "b": 0})
    writer.append({"a": 1}, partial_step=True)
    writer.create_item("queue", 1.0, writer.history["a"][-1])
    writer.flush()
    writer.append({"b": 1})
    for value in (2, 3):
        writer.append({"a": value, "b": value})
    writer.create_item("queue", 1.0, writer.history["b"][-1])
    writer.flush()
    assert client.sample_batch("queue", 2).data.tolist() == [1, 3]
    service.close()


def test_a_message_that_comes_twice_is_refused_and_nobody_waits_for_ever():
    service = ReplayService([replay.Table.queue("queue", 1)])
    sent = []
    insert = service.insert
    service.insert = lambda batch, *_: sent.append(batch) or insert(batch)
    writer = replay.Client("memory:x", service=service).trajectory_writer(1)
    for value in range(2):
        writer.append(value)
        writer.create_item("queue", 1.0, writer.history[-1])
        with contextlib.suppress(ReplayDeadlineExceeded):
            writer.flush(timeout_ms=0)
    ahead = sent[1]._replace(number=7)
    insert(ahead)
    for batch in (*sent, ahead):
        with pytest.raises(ReplayError, match=f"message {batch.number} of writer .* has come before"):
            insert(batch).result(20)
    assert service.tables["queue"].info.rate_limiter_info.insert_stats.pending == 1
    service.close()
