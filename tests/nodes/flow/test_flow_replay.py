"""Replay buffers, in the driver's process and in their own."""

import collections

import numpy as np
import psutil
import pytest

from topology.nodes.flow import (
    Concurrently,
    LocalIterator,
    LocalReplay,
    LocalReplayBuffer,
    MixInReplay,
    MultiAgentBatch,
    ParallelRollouts,
    Replay,
    ReplayActor,
    ReplayBuffer,
    SampleBatch,
    SimpleReplayBuffer,
    StoreToReplayBuffer,
    TrainOneStep,
    WaitUntilTimestepsElapsed,
    host,
)
from topology.nodes.flow.actors import Actor
from topology.nodes.replay.sum_tree import SumTree
from topology.testing import Gate, within


def steps(first, count):
    return SampleBatch(t=np.arange(first, first + count), rewards=np.ones(count, np.float32))


def keys_of(buffer):
    drawn = buffer.sample(50)
    return dict(zip(drawn["t"].tolist(), drawn["batch_indexes"].tolist(), strict=True))


@pytest.fixture
def closing():
    made = []
    yield lambda thing: made.append(thing) or thing
    for thing in made:
        thing.end() if isinstance(thing, Actor) else thing.close()


@pytest.fixture
def new_buffer(closing):
    return lambda *args, **kwargs: closing(LocalReplayBuffer(*args, **kwargs))


@pytest.fixture
def new_actor(closing):
    return lambda *args, **kwargs: closing(host(ReplayActor(*args, **kwargs)))


@pytest.fixture
def new_steps(closing):
    return lambda *args, **kwargs: closing(ReplayBuffer(*args, **kwargs))


# --- one policy -----------------------------------------------------------------------------------------------------


def test_capacity_counts_steps_and_the_oldest_leave(new_steps):
    buffer = new_steps(100, seed=0)
    for i in range(200):
        buffer.add_batch(steps(i, 1))
    assert (len(buffer), buffer.num_added) == (100, 200)
    assert min(buffer.sample(300)["t"]) == 100
    sequences = new_steps(100, sequence_length=5, seed=0)
    for i in range(40):
        sequences.add_batch(steps(5 * i, 5))
    assert (len(sequences), sequences.num_added) == (100, 200)
    drawn = sequences.sample(6)
    assert drawn.count == 30
    assert all(np.diff(drawn["t"].reshape(6, 5), axis=1).ravel() == 1)
    with pytest.raises(ValueError, match="no multiple"):
        sequences.add_batch(steps(0, 7))


def test_a_batch_that_is_stored_is_copied(new_steps):
    buffer = new_steps(10)
    batch = steps(0, 3)
    buffer.add_batch(batch)
    batch["t"][:] = 99
    assert set(buffer.sample(20)["t"]) <= {0, 1, 2}


@pytest.mark.parametrize("ratio", [1, 2, 4, 9])
def test_priorities_decide_what_is_drawn(new_steps, ratio):
    buffer = new_steps(10, alpha=1.0, seed=0)
    buffer.add_batch(steps(0, 2))
    assert set(buffer.sample(50)["weights"]) == {1.0}
    keys = keys_of(buffer)
    buffer.update_priorities([keys[0], keys[1]], [1.0, float(ratio)])
    counts = collections.Counter(buffer.sample(4000)["t"].tolist())
    assert counts[1] / counts[0] == pytest.approx(ratio, rel=0.15)


def test_a_tiny_exponent_hardly_minds_priorities_and_weights_undo_the_bias(new_steps):
    buffer = new_steps(10, alpha=1e-3, beta=1.0, seed=0)
    buffer.add_batch(steps(0, 2))
    keys = keys_of(buffer)
    buffer.update_priorities([keys[0], keys[1]], [1.0, 9.0])
    counts = collections.Counter(buffer.sample(4000)["t"].tolist())
    assert counts[1] / counts[0] == pytest.approx(1.0, rel=0.15)
    sharp = new_steps(10, alpha=1.0, beta=1.0, seed=0)
    sharp.add_batch(steps(0, 2))
    keys = keys_of(sharp)
    sharp.update_priorities([keys[0], keys[1]], [1.0, 4.0])
    drawn = sharp.sample(200)
    by_step = dict(zip(drawn["t"].tolist(), drawn["weights"].tolist(), strict=True))
    assert by_step[0] == pytest.approx(1.0)
    assert by_step[1] == pytest.approx(0.25, rel=1e-3)


def test_new_steps_have_the_largest_priority_or_their_own(new_steps):
    buffer = new_steps(10, alpha=1.0, seed=0)
    buffer.add_batch(steps(0, 1))
    buffer.update_priorities(buffer.sample(1)["batch_indexes"], [5.0])
    buffer.add_batch(steps(1, 1))
    counts = collections.Counter(buffer.sample(2000)["t"].tolist())
    assert counts[1] / counts[0] == pytest.approx(1.0, rel=0.2)
    given = steps(2, 1)
    given["weights"] = np.array([0.0])
    buffer.add_batch(given)
    assert 2 not in buffer.sample(500)["t"]


def test_a_state_and_back(new_steps, new_buffer):
    buffer = new_steps(10, alpha=1.0, seed=0)
    buffer.add_batch(steps(0, 5))
    drawn = buffer.sample(40)
    buffer.update_priorities(drawn["batch_indexes"], (drawn["t"] == 3).astype(float))
    other = new_steps(10, alpha=1.0, seed=0)
    other.set_state(buffer.get_state())
    assert (len(other), other.num_added) == (5, 5)
    assert set(other.sample(50)["t"]) == {3}
    several = new_buffer(learning_starts=4, capacity=100, replay_batch_size=4)
    several.add_batch(steps(0, 8))
    copy = new_buffer(learning_starts=4, capacity=100, replay_batch_size=4)
    copy.set_state(several.get_state())
    assert copy.replay().count == 4
    assert copy.stats() == several.stats() == {"sizes": {"default_policy": 8}, "num_added": 8}


def test_a_buffer_that_the_machine_cannot_hold(new_steps, caplog):
    total = psutil.virtual_memory().total
    row = SampleBatch(obs=np.zeros((1, 1_000), np.uint8))
    with pytest.raises(ValueError, match="make it smaller"):
        new_steps(2 * total // 1_000).add_batch(row)
    new_steps(total // 2_000).add_batch(row)
    assert "GB of this machine" in caplog.text


def test_an_empty_buffer_and_bad_sizes(new_steps):
    with pytest.raises(IndexError, match="empty"):
        new_steps(10).sample(1)
    with pytest.raises(ValueError, match="at least one sequence"):
        ReplayBuffer(3, sequence_length=4)
    with pytest.raises(IndexError, match="empty"):
        SimpleReplayBuffer(3).replay()
    with pytest.raises(ValueError, match="replay_mode"):
        LocalReplayBuffer(replay_mode="together")


def test_what_a_prefix_sum_finds():
    for weights, expected in (
        ([0, 0, 1, 3], {0.0: 2, 0.99: 2, 1.01: 3, 3.99: 3}),
        ([0.5, 1, 1, 3], {0.0: 0, 0.55: 1, 0.99: 1, 1.51: 2, 3.0: 3, 5.49: 3}),
    ):
        tree = SumTree(4)
        tree.set(np.arange(4), np.array(weights, float))
        assert tree.total == sum(weights)
        found = tree.find(np.array(list(expected)) / tree.total)
        assert found.tolist() == list(expected.values())
    tree.set(np.array([2]), 4.0)  # set anew
    assert tree.total == 8.5


# --- several policies -----------------------------------------------------------------------------------------------


def both(count):
    parts = {"a": steps(0, count), "b": steps(100, count)}
    return MultiAgentBatch(parts, env_steps=count)


def test_policies_are_drawn_for_themselves_or_in_lockstep(new_buffer):
    buffer = new_buffer(learning_starts=0, capacity=50, replay_batch_size=8, seed=0)
    buffer.add_batch(both(20))
    drawn = buffer.replay().policy_batches
    assert {name: batch.count for name, batch in drawn.items()} == {"a": 8, "b": 8}
    assert not (drawn["a"]["t"] + 100 == drawn["b"]["t"]).all()
    lockstep = new_buffer(learning_starts=0, capacity=50, replay_batch_size=8, replay_mode="lockstep")
    lockstep.add_batch(both(20))
    drawn = lockstep.replay().policy_batches
    assert (drawn["a"]["t"] + 100 == drawn["b"]["t"]).all()
    lockstep.update_priorities({"a": (drawn["a"]["batch_indexes"], np.ones(8))})


def test_shards_divide_capacity_and_threshold(new_buffer):
    shard = new_buffer(num_shards=4, learning_starts=400, capacity=80, replay_batch_size=10)
    shard.add_batch(steps(0, 99))
    assert shard.replay() is None
    shard.add_batch(steps(99, 1))
    assert shard.replay().count == 10
    assert shard.stats()["sizes"] == {"default_policy": 20}


# --- operators ------------------------------------------------------------------------------------------------------


def test_store_and_replay_in_the_driver(new_workers, new_buffer):
    buffer = new_buffer(num_shards=1, learning_starts=200, capacity=1000, replay_batch_size=100)
    assert buffer.replay() is None
    store = ParallelRollouts(new_workers(0)).for_each(StoreToReplayBuffer(local_buffer=buffer))
    next(store)
    assert buffer.replay() is None
    next(store)
    assert buffer.replay().count == 100
    assert next(Replay(local_buffer=buffer)).count == 100


def test_store_and_replay_with_an_actor(new_workers, new_actor):
    actor = new_actor(num_shards=1, learning_starts=200, capacity=1000, replay_batch_size=100)
    assert actor.replay() is None
    store = ParallelRollouts(new_workers(0)).for_each(StoreToReplayBuffer(actors=[actor]))
    next(store)
    assert actor.submit("replay").result(20) is None
    next(store)
    assert actor.submit("replay").result(20).count == 100
    source, batch = next(Replay(actors=[actor]).zip_with_source_actor())
    assert batch.count == 100
    assert source == actor
    for operator in (StoreToReplayBuffer, Replay):
        with pytest.raises(ValueError, match="either"):
            operator()
        with pytest.raises(ValueError, match="either"):
            operator(local_buffer=SimpleReplayBuffer(1), actors=[actor])


def test_priorities_reach_the_actor_that_gave_the_batch(new_actor):
    actor = new_actor(learning_starts=2, capacity=10, replay_batch_size=20, prioritized_replay_alpha=1.0, seed=0)
    actor.submit("add_batch", steps(0, 2)).result(20)
    replay = Replay(actors=[actor], num_async=1).zip_with_source_actor()
    source, batch = next(replay)
    drawn = batch.policy_batches["default_policy"]
    source.submit("update_priorities", {"default_policy": (drawn["batch_indexes"], (drawn["t"] == 1).astype(float))})
    next(replay)
    later = next(replay)[1].policy_batches["default_policy"]
    assert set(later["t"]) == {1}


@pytest.mark.parametrize("where", ["local", "actor"])
def test_a_cold_buffer_gives_its_turn_away(new_workers, new_buffer, new_actor, where):
    """In turns, a buffer that is not filled yet must hold up neither itself nor the flow that fills it."""
    settings = {"learning_starts": 500, "capacity": 1000, "replay_batch_size": 50}
    place = {"local_buffer": new_buffer(**settings)} if where == "local" else {"actors": [new_actor(**settings)]}
    stored = []
    store = ParallelRollouts(new_workers(0)).for_each(StoreToReplayBuffer(**place))
    store = store.for_each(lambda batch: stored.append(batch.count) or batch)
    replay = Replay(**place).for_each(lambda batch: ("replay", batch.count))
    plan = Concurrently([store, replay], mode="round_robin", output_indexes=[1], round_robin_weights=[1, 2])
    assert within(30, plan.take, 4) == [("replay", 50)] * 4
    assert len(stored) >= 5
    again = len(stored)
    assert within(30, plan.take, 20) == [("replay", 50)] * 20
    assert len(stored) == pytest.approx(again + 10, abs=1)  # one round for two batches


def test_a_cold_buffer_alone_can_never_go_on(new_buffer):
    buffer = new_buffer(learning_starts=10)
    with pytest.raises(RuntimeError, match="never go on"):
        within(10, next, Replay(local_buffer=buffer))


def test_stores_are_bounded(closing):
    gate = Gate()

    class Slow(ReplayActor):
        def add_batch(self, batch):
            gate()
            super().add_batch(batch)

    actor = closing(host(Slow(learning_starts=1, capacity=1000)))
    store = LocalIterator.of([steps(i, 1) for i in range(100)]).for_each(StoreToReplayBuffer(actors=[actor]))
    plan = Concurrently([store, LocalIterator.of(["other"] * 300)], mode="async")
    read = within(30, plan.take, 200)
    assert len([item for item in read if item != "other"]) == 16  # so many are on their way
    gate.release()
    rest = within(30, plan.take, 1000)
    assert len([item for item in rest if item != "other"]) == 84
    assert actor.submit("stats").result(20)["num_added"] == 100


def test_a_store_that_fails_is_heard_of(new_actor):
    actor = new_actor(capacity=100, replay_sequence_length=4)
    store = LocalIterator.of([steps(0, 3), steps(0, 4), steps(0, 4)]).for_each(StoreToReplayBuffer(actors=[actor]))
    next(store)
    actor.submit("ping").result(20)
    with pytest.raises(ValueError, match="no multiple"):
        store.take(2)


def test_the_early_spelling(new_workers, new_steps):
    workers = new_workers(0)
    buffer = new_steps(1000)
    store = ParallelRollouts(workers).for_each(StoreToReplayBuffer(buffer))
    replay = LocalReplay(buffer, 32).for_each(TrainOneStep(workers))
    plan = Concurrently([store, replay], mode="round_robin")
    first, second = plan.take(2)
    assert first.count == 100
    assert second[0].count == 32  # from the first store on


def test_old_batches_are_mixed_in(in_plan):
    assert [len(out) for out in in_plan(MixInReplay(10, 2.0), *[steps(i, 1) for i in range(5)])] == [3] * 5
    sizes = [len(out) for out in in_plan(MixInReplay(10, 0.5, seed=0), *[steps(i, 1) for i in range(400)])]
    assert set(sizes) == {1, 2}
    assert sum(sizes) == pytest.approx(600, abs=60)
    assert [len(out) for out in in_plan(MixInReplay(0, 0.0), steps(0, 1))] == [1]
    with pytest.raises(ValueError, match="num_slots"):
        MixInReplay(0, 1.0)


def test_a_threshold_of_steps(new_workers):
    plan = ParallelRollouts(new_workers(0)).filter(WaitUntilTimestepsElapsed(200))
    next(plan)
    assert plan.shared_metrics.get().counters["num_steps_sampled"] == 300
