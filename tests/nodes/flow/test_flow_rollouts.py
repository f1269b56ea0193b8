"""Operators that bring experience, learn from it, and report, with quick workers."""

import queue

import numpy as np
import pytest

from topology.clock import SYSTEM_CLOCK
from topology.nodes.flow import (
    ApplyGradients,
    AsyncGradients,
    AverageGradients,
    CollectMetrics,
    ComputeGradients,
    ConcatBatches,
    Concurrently,
    LocalIterator,
    MultiAgentBatch,
    MultiGPUTrainOneStep,
    OncePerTimeInterval,
    OncePerTimestepsElapsed,
    ParallelRollouts,
    RolloutWorker,
    SampleBatch,
    SelectExperiences,
    StandardizeFields,
    StandardMetricsReporting,
    TrainOneStep,
    TrainTFMultiGPU,
    UpdateTargetNetwork,
    WorkerSet,
    concat_samples,
    get_shared_metrics,
)
from topology.testing import ManualClock, within


def counters_of(iterator):
    return iterator.shared_metrics.get().counters


def weight_of(workers):
    return workers.local_worker().get_policy().weight


# --- rollouts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "steps"), [("bulk_sync", 200), ("async", 100)])
def test_rollouts(new_workers, mode, steps):
    rollouts = ParallelRollouts(new_workers(2), mode=mode)
    assert next(rollouts).count == steps
    assert counters_of(rollouts)["num_steps_sampled"] == steps
    assert counters_of(rollouts)["num_agent_steps_sampled"] == steps
    assert next(rollouts).count == steps
    assert counters_of(rollouts)["num_steps_sampled"] == 2 * steps


def test_rollouts_without_remote_workers(new_workers):
    rollouts = ParallelRollouts(new_workers(0), mode="bulk_sync")
    assert next(rollouts).count == 100
    assert counters_of(rollouts)["num_steps_sampled"] == 100


def test_raw_rollouts_and_modes(new_workers):
    workers = new_workers(2)
    raw = ParallelRollouts(workers, mode="raw")
    assert [batch.count for batch in raw.gather_sync().take(2)] == [100, 100]
    with pytest.raises(ValueError, match="mode must be"):
        ParallelRollouts(workers, mode="sync")


def test_the_workers_begin_with_the_local_weights(new_workers):
    workers = new_workers(2)
    workers.local_worker().get_policy().weight = 7.0
    assert set(next(ParallelRollouts(workers, mode="bulk_sync"))["obs"]) == {7.0}


def test_bulk_sync_is_strictly_on_policy(new_workers):
    """Round k + 1 is played with the weights that were learned from round k."""
    workers = new_workers(2, size=4)
    rollouts = ParallelRollouts(workers, mode="bulk_sync")
    seen = rollouts.for_each(lambda batch: (set(batch["obs"]), batch)[1]).for_each(TrainOneStep(workers))
    for version in range(6):
        batch, _ = next(seen)
        assert set(batch["obs"]) == {float(version)}
        assert weight_of(workers) == version + 1


def test_items_know_their_worker_and_its_weights(new_workers):
    workers = new_workers(2, size=4)
    rollouts = ParallelRollouts(workers, mode="bulk_sync").for_each(TrainOneStep(workers))
    for version in range(3):
        origins = rollouts.next_item().origins
        assert {origin.actor for origin in origins} == set(workers.remote_workers())
        assert {origin.weights_version for origin in origins} == {version}


def test_joined_batches_come_from_all_their_workers(new_workers):
    workers = new_workers(3)
    joined = ParallelRollouts(workers, mode="async").combine(ConcatBatches(1000)).zip_with_source_actor()
    seen = set()
    while seen != set(workers.remote_workers()):  # who answers first is not said, but all do
        source, batch = next(joined)
        assert batch.count == 1000
        assert source.members
        seen |= set(source.members)


# --- batches --------------------------------------------------------------------------------------------------------


def test_concat_batches(new_workers):
    workers = new_workers(0)
    joined = ParallelRollouts(workers, mode="async").combine(ConcatBatches(1000))
    assert next(joined).count == 1000
    timer = joined.shared_metrics.get().timers["sample"]
    assert timer.mean > 0
    assert timer.mean_throughput > 0
    with pytest.raises(ValueError, match="count_steps_by"):
        ConcatBatches(10, count_steps_by="rows")


def test_batches_are_not_split_and_empty_ones_are_passed_over(in_plan):
    concat = ConcatBatches(5)
    three, empty = SampleBatch(obs=np.zeros(3)), SampleBatch()
    assert [[b.count for b in found] for found in in_plan(concat, three, empty, three)] == [[], [], [6]]
    with pytest.raises(ValueError, match="takes batches"):
        in_plan(concat, [1, 2])


def test_steps_of_agents(in_plan):
    both = MultiAgentBatch({"a": SampleBatch(obs=np.zeros(4)), "b": SampleBatch(obs=np.zeros(2))}, env_steps=4)
    assert (both.env_steps(), both.agent_steps()) == (4, 6)
    by_agents = in_plan(ConcatBatches(6, count_steps_by="agent_steps"), both)
    assert [len(found) for found in by_agents] == [1]
    joined = concat_samples([both, both])
    assert (joined.env_steps(), joined.agent_steps()) == (8, 12)
    assert SelectExperiences(["a"])(both).agent_steps() == 4
    assert SelectExperiences(["a"])(both).env_steps() == 4
    with pytest.raises(ValueError, match="list of policy ids"):
        SelectExperiences("a")
    with pytest.raises(ValueError, match="cannot be joined"):
        concat_samples([both, SampleBatch(obs=np.zeros(3))])


def test_standardized_fields():
    random = np.random.default_rng(0)
    batch = SampleBatch(obs=random.normal(5, 3, 1000), t=np.arange(1000))
    done = StandardizeFields(["obs"])(batch)
    assert abs(done["obs"].mean()) < 0.001
    assert abs(done["obs"].std() - 1) < 0.001
    assert (done["t"] == batch["t"]).all()
    assert batch["obs"].mean() > 4
    assert StandardizeFields(["obs"])(SampleBatch(obs=np.ones(3)))["obs"].tolist() == [0, 0, 0]
    with pytest.raises(KeyError, match="no columns"):
        StandardizeFields(["advantages"])(batch)


def test_columns_of_one_length():
    with pytest.raises(ValueError, match="one length"):
        SampleBatch(obs=np.zeros(3), rewards=np.zeros(2))


# --- learning -------------------------------------------------------------------------------------------------------


def test_train_one_step(new_workers):
    workers = new_workers(0)
    train = ParallelRollouts(workers, mode="bulk_sync").for_each(TrainOneStep(workers))
    batch, info = next(train)
    assert isinstance(batch, SampleBatch)
    assert info["default_policy"]["learner_stats"]["rows"] == 100
    counters = counters_of(train)
    assert counters["num_steps_sampled"] == counters["num_steps_trained"] == 100
    assert counters["num_steps_trained_this_iter"] == counters["num_agent_steps_trained"] == 100
    assert train.shared_metrics.get().timers["learn"].mean > 0
    assert workers.local_worker().get_policy().global_vars == {"timestep": 100}


def test_passes_over_minibatches(new_workers):
    workers = new_workers(0)
    train = ParallelRollouts(workers).for_each(TrainOneStep(workers, num_sgd_iter=3, sgd_minibatch_size=40))
    next(train)
    assert workers.local_worker().get_policy().learned == [40, 40] * 3
    for settings in ({"num_sgd_iter": 0}, {"sgd_minibatch_size": -1}, {"num_devices": 4, "sgd_minibatch_size": 2}):
        with pytest.raises(ValueError, match=next(reversed(settings))):
            TrainOneStep(workers, **settings)


def test_a_sharded_update_is_that_of_one_device(new_workers, in_plan):
    results = []
    batch = SampleBatch(obs=np.arange(7.0), rewards=np.zeros(7))
    for devices in (1, 2, 3):
        workers = new_workers(0)
        policy = workers.local_worker().get_policy()
        policy.learn_on_batch = lambda part, policy=policy: policy.apply_gradients(policy.compute_gradients(part)[0])
        in_plan(MultiGPUTrainOneStep(workers=workers, sgd_minibatch_size=7, num_gpus=devices), batch)
        results.append(policy.weight)
    assert results == pytest.approx([3.0, 3.0, 3.0])
    assert isinstance(TrainTFMultiGPU(workers, sgd_minibatch_size=7, num_sgd_iter=1, num_gpus=2), TrainOneStep)


def test_compute_gradients(new_workers):
    workers = new_workers(0)
    gradients = ParallelRollouts(workers, mode="bulk_sync").for_each(ComputeGradients(workers))
    (value, steps) = next(gradients)
    assert steps == 100
    assert value["w"][0] == 0.0
    assert gradients.shared_metrics.get().timers["compute_grads"].mean > 0
    assert weight_of(workers) == 0


def test_averaged_gradients():
    average = AverageGradients()
    gradients = {"w": [np.array([1.0, 3.0]), None]}
    mean, steps = average([(gradients, 100)] * 4)
    assert steps == 400
    assert mean["w"][0].tolist() == [1.0, 3.0]  # k copies of g make g
    assert mean["w"][1] is None
    mean, _ = average([([np.array(1.0)], 1), ([np.array(5.0)], 3)])
    assert mean[0] == 4.0  # each counted by its steps
    by_policy, _ = average([({"a": [1.0], "b": [2.0]}, 1), ({"a": [3.0]}, 1)])
    assert by_policy == {"a": [2.0], "b": [2.0]}
    for wrong in ([], [([1.0], 0)], [([1.0], 1), ([1.0, 2.0], 1)]):
        with pytest.raises(ValueError, match="averag"):
            average(wrong)


def test_four_gradients_are_one_update(new_workers):
    workers = new_workers(0)
    plan = ParallelRollouts(workers).for_each(ComputeGradients(workers)).batch(4).for_each(AverageGradients())
    steps = plan.for_each(lambda pair: get_shared_metrics() and pair).for_each(ApplyGradients(workers))
    workers.local_worker().get_policy().weight = 2.0
    next(steps)
    assert weight_of(workers) == 4.0  # the gradient is the mean of the observations, 2
    assert counters_of(steps)["num_steps_trained"] == 400


def test_async_gradients(new_workers):
    workers = new_workers(2)
    gradients = AsyncGradients(workers)
    pair = next(gradients)
    assert len(pair) == 2
    assert pair[1] == 100
    assert counters_of(gradients)["num_steps_sampled"] == 100
    assert "grad_wait" in gradients.shared_metrics.get().timers
    with pytest.raises(ValueError, match="remote workers"):
        AsyncGradients(new_workers(0))


def test_only_the_source_is_sent_the_weights(new_workers):
    workers = new_workers(2, size=4)
    plan = AsyncGradients(workers).for_each(ApplyGradients(workers, update_all=False))
    workers.local_worker().get_policy().weight = 1.0
    origin = plan.next_item().origins[0].actor
    index = workers.remote_workers().index(origin)
    assert origin.get_weights() == {"default_policy": 1.0}
    assert workers.objects[index].weights_version == 1
    assert workers.objects[1 - index].weights_version == 0
    with pytest.raises(ValueError, match="no worker"):
        next(LocalIterator.of([({"w": [1.0]}, 1)]).for_each(ApplyGradients(workers, update_all=False)))
    with pytest.raises(ValueError, match=r"\(gradients, steps\)"):
        next(LocalIterator.of([3]).for_each(ApplyGradients(workers)))


def test_target_networks_keep_their_own_time(new_workers):
    workers = new_workers(0)
    copies = {100: [], 250: []}

    def noting(period):
        update = UpdateTargetNetwork(workers, period)

        def run(item):
            before = get_shared_metrics().counters["num_target_updates"]
            update(item)
            copies[period].append(get_shared_metrics().counters["num_target_updates"] - before)
            return item

        return run

    plan = ParallelRollouts(workers).for_each(noting(100)).for_each(noting(250))
    plan.take(7)
    assert copies[100] == [0, 1, 0, 1, 0, 1, 0]  # more than 100 steps have passed
    assert copies[250] == [0, 0, 1, 0, 0, 1, 0]
    by_trained = UpdateTargetNetwork(workers, 150, by_steps_trained=True)
    trained = ParallelRollouts(workers).for_each(TrainOneStep(workers)).for_each(by_trained)
    trained.take(2)
    assert counters_of(trained)["num_target_updates"] == 1
    assert counters_of(trained)["last_target_update_ts"] == 200
    assert workers.local_worker().get_policy().target == weight_of(workers)


def test_a_worker_that_refuses_its_weights_is_heard_of(new_workers):
    workers = new_workers(1)
    rollouts = ParallelRollouts(workers)
    next(rollouts)
    workers.objects[0].get_policy().set_weights = lambda weights: 1 / 0
    workers.sync_weights()
    workers.remote_workers()[0].submit("ping").result(20)  # after the weights
    with pytest.raises(ZeroDivisionError) as caught:
        workers.sync_weights()
    assert "set_weights" in caught.value.__notes__[-1]


def test_a_worker_that_refuses_the_weights_that_come_with_a_request_is_heard_of_and_asked_again(new_workers):
    workers = new_workers(2)
    rollouts = ParallelRollouts(workers)
    next(rollouts)
    policy = workers.objects[0].get_policy()
    takes, policy.set_weights = policy.set_weights, lambda weights: 1 / 0
    workers.local_worker().get_policy().weight = 7.0
    workers.sync_weights()
    with pytest.raises(ZeroDivisionError) as caught:
        next(rollouts)
    name = workers.remote_workers()[0].name
    assert caught.value.__notes__[-1] == f"raised by {name} in set_weights, which the plan had called"
    policy.set_weights = takes
    workers.sync_weights()
    assert set(next(rollouts)["obs"]) == {7.0}


class TestWeightsOnTheirWay:
    """Small ones travel with the next call of an idle worker; they are there before it."""

    @pytest.fixture
    def workers(self, new_workers, latch):
        workers = new_workers(1, before=latch)
        next(ParallelRollouts(workers))
        return workers

    @pytest.fixture
    def received(self, workers):
        """The weights that the worker takes."""
        received = queue.Queue()
        workers.objects[0].get_policy().set_weights = received.put
        return received

    def send(self, workers, weight):
        workers.local_worker().get_policy().weight = weight
        workers.sync_weights()

    def weight(self, workers):
        return workers.objects[0].get_policy().weight

    def test_with_a_request(self, workers):
        self.send(workers, 3.0)
        assert self.weight(workers) == 0.0
        assert set(next(ParallelRollouts(workers))["obs"]) == {3.0}

    @pytest.mark.parametrize("call", [lambda actor: actor.ping(), lambda actor: actor.futures.ping().result(20)])
    def test_before_any_other_call(self, workers, call):
        self.send(workers, 3.0)
        call(workers.remote_workers()[0])
        assert self.weight(workers) == 3.0

    def test_only_one_set_waits(self, workers, received):
        for weight in (1.0, 2.0, 3.0):
            self.send(workers, weight)
        assert [received.get(timeout=20), received.get(timeout=20)] == [1.0, 2.0]
        workers.remote_workers()[0].ping()
        assert received.get_nowait() == 3.0

    def test_as_they_were_when_they_were_sent(self, workers):
        weight = np.zeros(1000)
        self.send(workers, weight)
        weight += 1
        workers.remote_workers()[0].ping()
        received = self.weight(workers)
        assert set(received) == {0.0}
        received += 1  # as everything that is sent, it may be changed

    def test_large_ones_at_once(self, workers, received):
        self.send(workers, np.ones(100_000))
        assert np.size(received.get(timeout=20)) == 100_000

    def test_at_once_to_a_worker_that_plays(self, workers, latch, received):
        latch.close()
        fragment = workers.remote_workers()[0].submit("sample")
        assert latch.waiting.acquire(timeout=20)
        self.send(workers, 3.0)
        latch.open()
        fragment.result(20)
        assert received.get(timeout=20) == 3.0


def test_policies_of_a_multi_agent_batch(new_worker):
    policies = {"a": new_worker().get_policy(), "b": new_worker().get_policy()}
    worker = RolloutWorker(policies, policies_to_train=["a", "b"])
    workers = WorkerSet(worker)
    both = MultiAgentBatch({"a": SampleBatch(obs=np.zeros(4)), "b": SampleBatch(obs=np.ones(2))}, env_steps=4)
    next(LocalIterator.of([both]).for_each(TrainOneStep(workers, policies=["a"])))
    assert (policies["a"].learned, policies["b"].learned) == ([4], [])
    gradients, info = worker.compute_gradients(both)
    assert gradients["b"]["w"][0] == 1.0
    assert set(info) == {"a", "b"}
    worker.apply_gradients(gradients)
    assert policies["b"].weight == 1.0
    with pytest.raises(ValueError, match="MultiAgentBatch"):
        worker.learn_on_batch(SampleBatch(obs=np.zeros(1)))


# --- reports --------------------------------------------------------------------------------------------------------


def test_a_report_in_so_many_seconds(in_plan):
    clock = ManualClock()
    gate = OncePerTimeInterval(2.5, clock=clock)

    def after(seconds):
        clock.advance(seconds)
        return gate(None)

    assert in_plan(after, 0.0, 1.0, 1.4, 0.1, 2.4, 0.1) == [True, False, False, True, False, True]
    assert in_plan(OncePerTimeInterval(None), 1, 2) == [True, True]


def test_the_last_report_waits_for_no_time(new_workers):
    workers = new_workers(0)
    settings = {"min_iter_time_s": 3_600.0, "last_timestep": 350}
    reports = StandardMetricsReporting(ParallelRollouts(workers), workers, settings)
    assert [result["timesteps_total"] for result in within(20, reports.take, 3)] == [100, 400, 500]


def test_a_report_in_so_many_steps(new_workers):
    plan = ParallelRollouts(new_workers(0)).filter(OncePerTimestepsElapsed(250))
    next(plan)
    assert counters_of(plan)["num_steps_sampled"] == 300
    next(plan)
    assert counters_of(plan)["num_steps_sampled"] == 600


def test_standard_reports_take_their_time(new_workers):
    workers = new_workers(0)
    reports = StandardMetricsReporting(
        ParallelRollouts(workers).for_each(TrainOneStep(workers)), workers, {"min_iter_time_s": 0.3}
    )
    began = SYSTEM_CLOCK.monotonic()
    first, second = reports.take(2)
    assert SYSTEM_CLOCK.monotonic() - began > 0.29
    for result in (first, second):
        assert result["episode_reward_mean"] == 100.0
    assert second["timesteps_total"] == second["info"]["num_steps_sampled"]
    assert second["timesteps_this_iter"] == second["timesteps_total"] - first["timesteps_total"] > 0


def test_what_a_result_holds(new_workers):
    workers = new_workers(2)
    train = ParallelRollouts(workers).combine(ConcatBatches(200)).for_each(TrainOneStep(workers))
    result = StandardMetricsReporting(train, workers, {}).take(2)[-1]
    assert result["info"]["learner"]["default_policy"]["learner_stats"]["loss"] == 1.0
    assert result["info"]["num_steps_sampled"] == result["info"]["num_steps_trained"] == 400
    assert {"learn_time_ms", "learn_throughput", "sample_time_ms", "sample_throughput", "update_time_ms"} <= set(
        result["timers"]
    )
    assert result["episodes_this_iter"] == 2
    assert result["episode_len_mean"] == 100
    assert result["num_healthy_workers"] == 2


def test_only_the_episodes_of_selected_workers_count(new_worker):
    """As Ape-X asks for: those that hardly explore say how good the policy is."""
    remote = [new_worker(1, size=10), new_worker(2, size=30)]
    workers = WorkerSet(new_worker(), remote)
    for selected, mean in ((workers.remote_workers()[1:], 30), ([], 20), (None, 20)):
        rounds = ParallelRollouts(workers)
        reports = StandardMetricsReporting(rounds, workers, {"metrics_smoothing_episodes": 2}, selected)
        result = reports.take(2)[-1]
        assert result["episode_reward_mean"] == mean
        assert result["episodes_this_iter"] == (1 if selected else 2)
    workers.stop()


def test_a_report_waits_for_nobody(new_workers, latch):
    """One of the workers hangs: what is known of the others is reported."""
    workers = new_workers(1, before=latch)
    flows = [ParallelRollouts(workers, mode="async"), ParallelRollouts(new_workers(0))]
    plan = Concurrently(flows, mode="async").for_each(CollectMetrics(workers))
    assert next(plan)["timesteps_total"] >= 100
    latch.close()
    assert all(result["num_healthy_workers"] == 1 for result in within(20, plan.take, 5))
