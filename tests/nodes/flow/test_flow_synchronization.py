"""SYNC and ASYNC of plans, with workers that are slow, late, or have missed an update."""

import random
import threading

import numpy as np
import pytest

from topology.nodes.flow import (
    STALENESS,
    STEPS_DROPPED_COUNTER,
    BoundStaleness,
    ConcatBatches,
    Plan,
    SampleBatch,
    StandardMetricsReporting,
    SynchronizedRollouts,
    TrainOneStep,
    WorkerFailures,
)


def seen_by(rollouts, workers, seen, batch_size=1):
    """A plan that learns from each batch, and notes the weights that made it and those that are to learn from it."""

    def note(batch):
        seen.append((set(batch["obs"].tolist()), float(workers.local_worker().weights_version)))
        return batch

    train_op = rollouts.combine(ConcatBatches(batch_size)).for_each(note).for_each(TrainOneStep(workers))
    return StandardMetricsReporting(train_op, workers, {"min_iter_time_s": 0})


def test_in_sync_every_batch_is_made_by_exactly_the_newest_weights(new_workers):
    uneven, seen = random.Random(1), []

    def dawdle(_):
        threading.Event().wait(uneven.choice([0.0, 0.0, 0.003]))

    workers = new_workers(count=3, size=4, before=dawdle)
    plan = Plan(lambda workers, _: seen_by(SynchronizedRollouts(workers, "sync"), workers, seen), {})
    with plan.build(workers) as running:
        for _ in range(20):
            result = running.train()
    assert [weights for weights, _ in seen] == [{float(number)} for number in range(20)]
    assert result["info"].get(STEPS_DROPPED_COUNTER, 0) == 0


def test_in_sync_workers_that_missed_an_update_play_again_with_the_newest_weights(new_workers, latch):
    seen, outcome = [], []
    workers = new_workers(count=2, size=4, before=latch)
    plan = Plan(lambda workers, _: seen_by(SynchronizedRollouts(workers, "sync"), workers, seen), {})
    with plan.build(workers) as running:
        running.train()
        latch.close()
        following = threading.Thread(target=lambda: outcome.append(running.train()))
        following.start()
        for _ in range(2):
            assert latch.waiting.acquire(timeout=30)
        workers.local_worker().learn_on_batch(SampleBatch(obs=np.zeros(1)))  # which nobody hears of
        latch.open()
        following.join(30)
    assert [weights for weights, _ in seen] == [{0.0}, {2.0}]
    assert outcome[0]["info"][STEPS_DROPPED_COUNTER] == 8


def test_in_sync_a_worker_that_fails_changes_nothing_but_time(new_workers):
    seen, fails = [], [3, 7]

    def fail(sampler):
        if fails and sampler.rows == 4 * fails[0]:
            fails.pop(0)
            raise OSError("the simulator crashed")

    workers = new_workers(count=2, size=4, before=fail, failures=WorkerFailures(max_restarts=5))
    plan = Plan(lambda workers, _: seen_by(SynchronizedRollouts(workers, "sync"), workers, seen), {})
    with plan.build(workers) as running:
        for _ in range(10):
            running.train()
    assert not fails
    assert [weights for weights, _ in seen] == [{float(number)} for number in range(10)]


def test_async_measures_staleness_and_drops_what_is_above_the_bound(new_workers, latch):
    seen, stalenesses, outcome = [], [], []
    workers = new_workers(count=1, size=4, before=latch)
    local = workers.local_worker()
    plan = Plan(lambda workers, _: seen_by(SynchronizedRollouts(workers, "async", max_staleness=2), workers, seen), {})
    with plan.build(workers) as running:
        stalenesses.append(running.train()["info"][STALENESS])
        for updates in (2, 3):
            latch.close()
            following = threading.Thread(target=lambda: outcome.append(running.train()))
            following.start()
            assert latch.waiting.acquire(timeout=30)  # it plays with the weights of before
            local.weights_version += updates
            latch.open()
            following.join(30)
            stalenesses.append(outcome[-1]["info"][STALENESS])
    assert stalenesses[:2] == [0, 2]
    assert outcome[-1]["info"][STEPS_DROPPED_COUNTER] == 4
    assert stalenesses[2] == 0, "what was dropped was played again, with the newest weights"


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"synchronization": "bulk"}, "'sync' or 'async'"),
        ({"synchronization": "sync", "max_staleness": 1}, "nothing is stale"),
        ({"synchronization": "async", "max_staleness": -1}, "at least 0"),
    ],
)
def test_what_makes_no_sense_is_refused(new_workers, settings, fault):
    workers = new_workers(count=1)
    with pytest.raises(ValueError, match=fault):
        SynchronizedRollouts(workers, settings.pop("synchronization"), **settings)


def test_without_remote_workers_nothing_is_ever_stale(new_workers):
    seen = []
    workers = new_workers(count=0, size=4)
    plan = Plan(lambda workers, _: seen_by(SynchronizedRollouts(workers, "sync"), workers, seen), {})
    with plan.build(workers) as running:
        for _ in range(3):
            running.train()
    assert [weights for weights, _ in seen] == [{0.0}, {1.0}, {2.0}]


def test_a_bound_can_stand_in_any_plan(new_workers):
    workers = new_workers(count=1)
    assert BoundStaleness(workers, None).receivers == workers.remote_workers()
