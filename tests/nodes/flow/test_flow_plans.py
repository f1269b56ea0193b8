"""Whole plans as RLlib's users wrote them, with quick workers: IMPALA and APPO, A2C, the synchronous plan, DQN."""

import collections
import inspect
import math
import re
import threading
from pathlib import Path

import numpy as np
import pytest

import topology.nodes.flow as flow
from topology.nodes.flow import (
    STEPS_TRAINED_COUNTER,
    STEPS_TRAINED_THIS_ITER_COUNTER,
    Aggregator,
    ApplyGradients,
    AsyncGradients,
    AverageGradients,
    BroadcastUpdateLearnerWeights,
    ComputeGradients,
    ConcatBatches,
    Concurrently,
    Dequeue,
    Enqueue,
    LearnerThread,
    LocalReplay,
    ParallelRollouts,
    Plan,
    Replay,
    ReplayActor,
    ReplayBuffer,
    SampleBatch,
    StandardizeFields,
    StandardMetricsReporting,
    StoreToReplayBuffer,
    TrainOneStep,
    UpdateTargetNetwork,
    UpdateWorkerWeights,
    WorkerFailures,
    _get_shared_metrics,
    gather_experiences_directly,
    gather_experiences_tree_aggregation,
    make_learner_thread,
)
from topology.nodes.flow.learner import learners_of
from topology.testing import within

IMPALA = {
    "num_aggregation_workers": 0,
    "broadcast_interval": 1,
    "train_batch_size": 500,
    "max_sample_requests_in_flight_per_worker": 2,
    "learner_queue_size": 2,
    "after_train_step": None,
}


def impala_plan(workers, config):
    gather = gather_experiences_tree_aggregation if config["num_aggregation_workers"] else gather_experiences_directly
    train_batches = gather(workers, config)
    learner_thread = make_learner_thread(workers.local_worker(), config)
    learner_thread.start()
    enqueue_op = train_batches.for_each(Enqueue(learner_thread.inqueue))
    if workers.remote_workers():
        broadcast = BroadcastUpdateLearnerWeights(
            learner_thread, workers, broadcast_interval=config["broadcast_interval"]
        )
        enqueue_op = enqueue_op.zip_with_source_actor().for_each(broadcast)

    def record_steps_trained(item):
        count, _, _ = item
        metrics = _get_shared_metrics()
        metrics.counters[STEPS_TRAINED_THIS_ITER_COUNTER] = count
        metrics.counters[STEPS_TRAINED_COUNTER] += count
        return item

    dequeue_op = Dequeue(learner_thread.outqueue, check=learner_thread.is_alive).for_each(record_steps_trained)
    merged_op = Concurrently([enqueue_op, dequeue_op], mode="async", output_indexes=[1])
    if config["after_train_step"]:
        merged_op = merged_op.for_each(lambda t: t[1]).for_each(config["after_train_step"](workers, config))
    return StandardMetricsReporting(merged_op, workers, config).for_each(learner_thread.add_learner_metrics)


def a2c_plan(workers, config):
    rollouts = ParallelRollouts(workers, mode="bulk_sync")
    if config["microbatch_size"]:
        num_microbatches = math.ceil(config["train_batch_size"] / config["microbatch_size"])
        train_op = (
            rollouts.combine(ConcatBatches(min_batch_size=config["microbatch_size"]))
            .for_each(ComputeGradients(workers))
            .batch(num_microbatches)
            .for_each(AverageGradients())
            .for_each(ApplyGradients(workers))
        )
    else:
        train_op = rollouts.combine(ConcatBatches(min_batch_size=config["train_batch_size"])).for_each(
            TrainOneStep(workers)
        )
    return StandardMetricsReporting(train_op, workers, config)


def dqn_plan(workers, config):
    local_replay_buffer = ReplayBuffer(config["buffer_size"])
    rollouts = ParallelRollouts(workers, mode="bulk_sync")
    store_op = rollouts.for_each(StoreToReplayBuffer(local_replay_buffer))
    replay_op = (
        LocalReplay(local_replay_buffer, config["train_batch_size"])
        .for_each(TrainOneStep(workers))
        .for_each(UpdateTargetNetwork(workers, config["target_network_update_freq"]))
    )
    train_op = Concurrently([store_op, replay_op], mode="round_robin")
    return StandardMetricsReporting(train_op, workers, config)


def weight_of(workers):
    return workers.local_worker().get_policy().weight


# --- IMPALA ---------------------------------------------------------------------------------------------------------


def check_impala(workers, results):
    last = results[-1]
    assert last["info"]["num_steps_trained"] == 500 * len(results)
    assert last["info"]["num_steps_trained_this_iter"] == 500
    assert last["info"]["learner"]["default_policy"]["learner_stats"]["rows"] == 500
    assert last["episode_reward_mean"] == 100
    assert last["info"]["num_weight_broadcasts"] >= 1


@pytest.mark.parametrize("settings", [{}, {"replay_proportion": 1.0, "replay_buffer_num_slots": 5}])
def test_impala(new_workers, settings):
    workers = new_workers(3)
    with Plan(impala_plan, IMPALA | settings).build(workers) as plan:
        results = [within(30, plan.train) for _ in range(8)]
        check_impala(workers, results)
        learned, played = results[-1]["info"]["num_steps_trained"], results[-1]["timesteps_total"]
        assert played < 0.8 * learned if settings else played >= learned  # half of it is replayed, or none
        versions = [worker.weights_version for worker in workers.objects]
        assert min(versions) >= 1  # every worker that contributes is sent weights


def test_how_far_weights_lag_behind(new_workers):
    """Bounded by what may lie between a worker and the learner's update of its experience."""
    config = IMPALA | {"train_batch_size": 100, "learner_queue_size": 1}
    workers = new_workers(2)
    learned = []
    policy = workers.local_worker().get_policy()
    learn = policy.learn_on_batch
    policy.learn_on_batch = lambda batch: (learned.append((policy.weight, batch["obs"].min())), learn(batch))[1]
    with Plan(impala_plan, config).build(workers) as plan:
        for _ in range(30):
            within(30, plan.train)
    in_flight, queued, told = 2 * 2, 1 + 1, 2 + 1
    lags = [updates - version for updates, version in learned]
    assert max(lags) <= in_flight + queued + told + 2  # the one being learned, and the one in hand
    assert min(lags) >= 0


def test_weights_are_taken_from_the_learner_once_in_so_many_batches(new_workers):
    """And not before it has made an update; then at once."""
    workers = new_workers(1, size=4)
    local = workers.local_worker()
    broadcast = BroadcastUpdateLearnerWeights(LearnerThread(local), workers, broadcast_interval=3)
    plan = ParallelRollouts(workers, mode="async").zip_with_source_actor().for_each(broadcast)
    taken = []
    for updates in (1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1):
        for _ in range(updates):
            local.learn_on_batch(SampleBatch(obs=np.zeros(1)))
        within(20, next, plan)
        taken.append(plan.shared_metrics.get().counters["num_weight_broadcasts"])
    assert taken == [0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 3]
    workers.remote_workers()[0].submit("ping").result(20)  # after the weights
    assert workers.objects[0].weights_version == 7


def test_weights_are_sent_to_each_worker_that_has_played_so_many_steps(new_workers):
    workers = new_workers(2, size=100)
    update = UpdateWorkerWeights(LearnerThread(workers.local_worker()), workers, max_weight_sync_delay=250)
    plan = ParallelRollouts(workers, mode="async").zip_with_source_actor().for_each(update)
    fragments = collections.Counter()
    for _ in range(30):
        fragments[within(20, next, plan)[0]] += 1
        due = sum(count // 3 for count in fragments.values())  # with the third it has played 300
        assert plan.shared_metrics.get().counters["num_weight_syncs"] == due


def test_between_two_results_what_is_under_way_goes_on_and_nothing_is_lost(new_workers):
    """Nobody drives the plan meanwhile: the learner learns from what it has, workers play what they were asked for."""
    workers = new_workers(2)
    policy, marked = workers.local_worker().get_policy(), threading.Event()
    learn = policy.learn_on_batch
    policy.learn_on_batch = lambda batch: (learn(batch), marked.set() if batch.count == 7 else None)[0]
    with Plan(impala_plan, IMPALA | {"train_batch_size": 100}).build(workers) as plan:
        sampled = within(30, plan.train)["timesteps_total"]
        [learner] = learners_of(workers.local_worker())
        learner.inqueue.put(SampleBatch(obs=np.zeros(7)), timeout=20)  # behind all that it has
        assert marked.wait(20)
        assert sum(worker.sampler.rows for worker in workers.objects) <= sampled + 2 * 2 * 100
        totals = [within(30, plan.train)["info"]["num_steps_trained"] for _ in range(10)]
    learned = policy.learned
    assert 7 in learned[: len(totals) + 1]
    assert totals == [sum(learned[: count + 2]) for count in range(10)]  # each is told of, in order


@pytest.mark.parametrize("aggregators", [1, 2])
def test_impala_with_aggregators(new_workers, aggregators):
    config = IMPALA | {"num_aggregation_workers": aggregators}
    workers = new_workers(4, aggregators=[Aggregator() for _ in range(aggregators)])
    with Plan(impala_plan, config).build(workers) as plan:
        results = [within(30, plan.train) for _ in range(8)]
        check_impala(workers, results)
        assert min(worker.weights_version for worker in workers.objects) >= 1  # aggregators pass weights on
        assert results[-1]["episodes_this_iter"] >= 0


def test_aggregators_are_served_in_the_driver_where_there_are_no_nodes(new_workers):
    config = IMPALA | {"num_aggregation_workers": 1}
    with Plan(impala_plan, config).build(new_workers(2)) as plan:
        assert within(30, plan.train)["info"]["num_steps_trained"] == 500


def test_aggregated_steps_are_counted_once(new_workers):
    config = IMPALA | {"num_aggregation_workers": 1, "replay_proportion": 1.0, "replay_buffer_num_slots": 5}
    workers = new_workers(2)
    batches = gather_experiences_tree_aggregation(workers, config)
    joined = sum(batch.count for batch in within(30, batches.take, 6))
    counters = batches.shared_metrics.get().counters
    assert joined >= 3000
    assert counters["num_steps_sampled"] == pytest.approx(joined / 2, abs=300)


def test_numbers_of_aggregators(new_workers, caplog):
    for count in (0, 3):
        with pytest.raises(ValueError, match="num_aggregation_workers"):
            gather_experiences_tree_aggregation(new_workers(2), IMPALA | {"num_aggregation_workers": count})
    workers = new_workers(4, aggregators=[Aggregator()])
    with pytest.raises(ValueError, match="has 1 of them"):
        gather_experiences_tree_aggregation(workers, IMPALA | {"num_aggregation_workers": 2})
    gather_experiences_tree_aggregation(new_workers(2), IMPALA | {"num_aggregation_workers": 2})
    assert "little to join" in caplog.text


def test_a_worker_behind_an_aggregator_fails(new_workers):
    def before(sampler):
        if sampler.rows >= 300:
            raise ZeroDivisionError

    workers = new_workers(2, aggregators=[Aggregator()], failures=WorkerFailures(leave_out=True))
    workers.objects[0].sampler.before = before
    with Plan(impala_plan, IMPALA | {"num_aggregation_workers": 1}).build(workers) as plan:
        for _ in range(6):
            result = within(30, plan.train)
        assert result["info"]["num_steps_trained"] == 3000


def test_aggregators_pass_on_the_newest_weights(new_workers):
    """What is played after a broadcast has reached the aggregator is played with those weights, not with older ones."""
    aggregator = Aggregator()
    workers = new_workers(2, aggregators=[aggregator])
    batches = gather_experiences_tree_aggregation(workers, IMPALA | {"num_aggregation_workers": 1})
    within(30, next, batches)
    for version in range(1, 5):
        weights = {"default_policy": float(version)}
        workers.send_weights(workers.aggregators, weights, None, version)
        assert any(within(30, batches.next_item).origins[0].weights_version == version for _ in range(100))
        assert {worker.weights_version for worker in workers.objects} == {version}


@pytest.mark.parametrize("aggregators", [0, 1])
def test_steps_of_batches_carry_the_versions_of_their_weights(new_workers, aggregators):
    """The observations are the weight they were played with, which is the version."""
    config = IMPALA | {"num_aggregation_workers": aggregators}
    workers = new_workers(3)
    gather = gather_experiences_tree_aggregation if aggregators else gather_experiences_directly
    batches = gather(workers, config)
    receivers = workers.aggregators if aggregators else workers.remote_workers()
    for version in range(1, 8):
        item = within(30, batches.next_item)
        assert min(origin.weights_version for origin in item.origins) == item.value["obs"].min()
        workers.send_weights(receivers, {"default_policy": float(version)}, None, version)


def test_after_train_step_is_called_once_for_each_output(new_workers):
    """As APPO uses it: with the statistics by policy, in the driver's thread."""
    seen = []

    class UpdateTarget:
        def __init__(self, workers, config):
            self.workers, self.config = workers, config

        def __call__(self, fetches):
            seen.append(fetches["default_policy"]["learner_stats"]["rows"])
            _get_shared_metrics().counters["targets"] += 1
            self.workers.local_worker().update_target()

    workers = new_workers(2)
    config = IMPALA | {"after_train_step": UpdateTarget}
    with Plan(impala_plan, config).build(workers) as plan:
        for count in range(1, 6):
            result = within(30, plan.train)
            assert seen == [500] * count
    assert result["info"]["targets"] == 5
    assert workers.local_worker().get_policy().target >= 1


def test_nothing_is_left_after_close(new_workers):
    plan = Plan(impala_plan, IMPALA).build(new_workers(2))
    within(30, plan.train)
    plan.close()  # the guard around every test finds threads and sockets
    plan.close()


# --- A3C, Ape-X, and plans of plans ----------------------------------------------------------------------------------


def a3c_plan(workers, config):
    gradients = AsyncGradients(workers).for_each(ApplyGradients(workers, update_all=False))
    return StandardMetricsReporting(gradients, workers, config)


def test_a3c_tells_its_workers_how_far_the_run_is(new_workers):
    """Schedules of entropy and of the learning rate follow it."""
    workers = new_workers(2)
    with Plan(a3c_plan).build(workers) as plan:
        result = [within(30, plan.train) for _ in range(10)][-1]
        for actor in workers.remote_workers():
            actor.submit("ping").result(20)  # after the weights
        told = [worker.get_policy().global_vars["timestep"] for worker in workers.objects]
    assert max(told) == result["timesteps_total"] == 1000
    assert min(told) > 0


def apex_plan(workers, config):
    learner = make_learner_thread(workers.local_worker(), config)
    learner.start()
    replay = {"actors": workers.replay_actors}
    store = ParallelRollouts(workers, mode="async", num_async=2).for_each(StoreToReplayBuffer(**replay))
    if workers.remote_workers():
        store = store.zip_with_source_actor().for_each(UpdateWorkerWeights(learner, workers, 400))
    feed = Replay(**replay).zip_with_source_actor().for_each(lambda pair: pair[1]).for_each(Enqueue(learner.inqueue))
    update = Dequeue(learner.outqueue, check=learner.is_alive).for_each(flow.record_steps_trained)
    update = update.for_each(UpdateTargetNetwork(workers, 100, by_steps_trained=True))
    weights = config.get("weights")
    mode = "async" if weights is None else "round_robin"
    merged = Concurrently([store, feed, update], mode=mode, output_indexes=[2], round_robin_weights=weights)
    return StandardMetricsReporting(merged, workers, config, by_steps_trained=True)


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("weights", [None, [1, 1, "*"]], ids=["async", "in turn"])
def test_ape_x(new_workers, count, weights):
    actors = [ReplayActor(2, learning_starts=400, replay_batch_size=20) for _ in range(2)]
    workers = new_workers(count, replay_actors=actors)
    for index, worker in enumerate(workers.objects):
        worker.get_policy().exploration = index
    with Plan(apex_plan, {"weights": weights}).build(workers) as plan:
        results = [within(30, plan.train) for _ in range(30)]
        assert results[-1]["info"]["num_steps_sampled"] >= 400
        assert results[-1]["timesteps_total"] == results[-1]["info"]["num_steps_trained"] == 600
        assert results[-1]["info"]["num_target_updates"] >= 4
        assert ("num_weight_syncs" in results[-1]["info"]) == (count > 0)
    # What workers explore with is their own: weights do not change it.
    assert [worker.get_policy().exploration for worker in workers.objects] == list(range(count))


def test_a_plan_without_its_reports_is_a_part_of_another_one(new_workers):
    config = {"microbatch_size": None, "train_batch_size": 200}
    first, second = new_workers(1), new_workers(2)
    bodies = [Plan(a2c_plan, config).body(first), Plan(impala_plan, IMPALA).body(second)]
    both = Concurrently(bodies, mode="async").for_each(lambda item: item[0])
    found = within(30, both.take, 20)
    assert {getattr(item, "count", item) for item in found} == {200, 500}  # a batch and its statistics; a LearnerOutput
    assert weight_of(first) >= 1
    assert weight_of(second) >= 1
    with pytest.raises(ValueError, match="no StandardMetricsReporting"):
        Plan(lambda workers, config: ParallelRollouts(workers)).body(first)


def async_plan(workers, config):
    train = ParallelRollouts(workers, mode="async").for_each(TrainOneStep(workers))
    return StandardMetricsReporting(train, workers, config)


def ppo_plan(workers, config):
    train = ParallelRollouts(workers).combine(ConcatBatches(200)).for_each(StandardizeFields(["rewards"]))
    train = train.for_each(TrainOneStep(workers, num_sgd_iter=2, sgd_minibatch_size=50))
    return StandardMetricsReporting(train, workers, config)


FAILING = {
    "a3c": (a3c_plan, {}),
    "ppo": (ppo_plan, {}),
    "ape-x": (apex_plan, {}),
    "impala": (impala_plan, IMPALA | {"train_batch_size": 200}),
    "impala with an aggregator": (impala_plan, IMPALA | {"train_batch_size": 200, "num_aggregation_workers": 1}),
    "dqn": (None, {"buffer_size": 1000, "train_batch_size": 32, "target_network_update_freq": 500}),
    "a2c": (None, {"microbatch_size": None, "train_batch_size": 200}),
    "a2c with microbatches": (None, {"microbatch_size": 100, "train_batch_size": 200}),
    "played asynchronously": (async_plan, {}),
}


@pytest.mark.parametrize("name", FAILING)
def test_every_plan_goes_on_without_a_worker_that_fails(new_workers, name):
    def fails(sampler):
        raise ZeroDivisionError("its environment is broken")

    plan, config = FAILING[name]
    plan = plan or (dqn_plan if name == "dqn" else a2c_plan)
    replay = [ReplayActor(learning_starts=200, replay_batch_size=20)]
    workers = new_workers(2, replay_actors=replay, failures=WorkerFailures(leave_out=True))
    workers.objects[0].sampler.before = fails
    with Plan(plan, config).build(workers) as running:
        results = [within(30, running.train) for _ in range(5)]
        assert results[-1]["timesteps_total"] > 0
        if "aggregator" not in name:  # it is the aggregator that leaves it out
            assert any(running.train()["num_healthy_workers"] == 1 for _ in range(100))


# --- A2C, and the synchronous plan ----------------------------------------------------------------------------------


def test_a2c(new_workers):
    workers = new_workers(2)
    config = {"microbatch_size": None, "train_batch_size": 300}
    with Plan(a2c_plan, config).build(workers) as plan:
        result = [plan.train() for _ in range(3)][-1]
        for worker in workers.remote_workers():
            worker.submit("ping").result(20)  # after the weights
    assert result["info"]["num_steps_sampled"] == result["info"]["num_steps_trained"] == 1200
    assert weight_of(workers) == 3
    assert [worker.get_policy().weight for worker in workers.objects] == [3, 3]


def test_a2c_with_microbatches(new_workers):
    workers = new_workers(2)
    workers.local_worker().get_policy().weight = 1.0
    config = {"microbatch_size": 200, "train_batch_size": 600}
    with Plan(a2c_plan, config).build(workers) as plan:
        result = plan.train()
        assert result["info"]["num_steps_trained"] == 600
        assert weight_of(workers) == 2.0  # one update, by the mean: the gradient is the mean of the observations
        plan.train()
        assert weight_of(workers) == 4.0


def test_checkpoints_take_a_plan_back(new_workers):
    workers = new_workers(2)
    with Plan(a2c_plan, {"microbatch_size": None, "train_batch_size": 200}).build(workers) as plan:
        plan.train()
        state = plan.get_state()
        second = plan.train()
        plan.set_state(state)
        assert weight_of(workers) == 1
        third = plan.train()
        assert third["info"]["num_steps_trained"] == second["info"]["num_steps_trained"] == 400
        assert weight_of(workers) == 2
        for worker in workers.remote_workers():
            worker.submit("ping").result(20)  # after the weights
        assert [worker.weights_version for worker in workers.objects] == [2, 2]


def test_a_plan_that_ends_says_so(new_workers):
    with Plan(lambda workers, config: flow.LocalIterator.of([1])).build(new_workers(0)) as plan:
        assert plan.train() == 1
        with pytest.raises(RuntimeError, match="has ended"):
            plan.train()


# --- DQN ------------------------------------------------------------------------------------------------------------


def test_dqn(new_workers):
    workers = new_workers(2)
    config = {"buffer_size": 1000, "train_batch_size": 32, "target_network_update_freq": 500}
    with Plan(dqn_plan, config).build(workers) as plan:
        result = [plan.train() for _ in range(10)][-1]
    assert result["info"]["num_steps_sampled"] == 1000
    assert result["info"]["num_steps_trained"] == 5 * 32  # one batch for each round
    assert result["info"]["num_target_updates"] == 1
    assert weight_of(workers) == 5


# --- the originals --------------------------------------------------------------------------------------------------

ORIGINALS = Path(__file__).parents[3].parent / "shared" / "seeds"
at_hand = pytest.mark.skipif(not ORIGINALS.exists(), reason="the original plans are not kept in this repository")

# The lines of the first file have lost their indentation: this is what each line of its two functions had, in steps.
INDENTATION = "01211212111111122222221222222211121121111222121", "0121211111211222211221221112212"


def original_impala_plans():
    """Both plans of the first file, with the indentation that Python needs, and not changed otherwise."""
    lines = next(ORIGINALS.glob("000_*")).read_text().splitlines()
    for indentation in INDENTATION:
        text = "\n".join("    " * int(depth) + lines.pop(0).strip() for depth in indentation)
        namespace = {name: getattr(flow, name) for name in flow.__all__}
        exec(text, namespace)
        yield namespace["execution_plan"]
    assert not lines


@at_hand
@pytest.mark.parametrize("aggregators", [0, 1])
@pytest.mark.parametrize("number", [0, 1])
def test_the_original_impala_plans_run(new_workers, number, aggregators):
    plan = list(original_impala_plans())[number]
    told = []
    config = IMPALA | {
        "num_aggregation_workers": aggregators,
        "after_train_step": lambda workers, config: lambda fetches: told.append(set(fetches)),
    }
    workers = new_workers(2)
    with Plan(plan, config).build(workers) as running:
        results = [within(30, running.train) for _ in range(3)]
    check_impala(workers, results)
    assert told == [{"default_policy"}] * 3


def tokens(text):
    return re.findall(r"\w+|[^\w\s\\,()]", text)  # not what depends on where lines are broken


@at_hand
@pytest.mark.parametrize(("number", "plan"), [(0, a2c_plan), (2, dqn_plan)])
def test_the_plans_here_are_the_originals(number, plan):
    """Those of the second file stand in one line each, comments included: what is called is the same, in order."""
    original = iter(tokens(next(ORIGINALS.glob("001_*")).read_text().splitlines()[number]))
    mine = tokens(inspect.getsource(plan))[2:]  # without its name
    left = [token for token in mine if not any(token == other for other in original)]
    assert not left


@at_hand
def test_all_names_of_the_originals_are_there():
    text = "".join(path.read_text() for path in ORIGINALS.glob("00[01]_*"))
    names = set(re.findall(r"\b([A-Z]\w+|gather_\w+|make_\w+|record_steps_trained|_get_\w+)\(", text))
    missing = [name for name in names if not hasattr(flow, name)]
    assert not missing
    assert len(names) >= 18
