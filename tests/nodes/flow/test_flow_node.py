"""A plan as nodes of a program: launched as threads and as processes, restarted, drawn."""

import os
import signal

import numpy as np
import pytest

import topology as lp
from topology.nodes.courier.node import CourierNode
from topology.nodes.flow import (
    Aggregator,
    AsyncGradients,
    ConcatBatches,
    Concurrently,
    Dequeue,
    Enqueue,
    Episode,
    LocalReplayBuffer,
    ParallelRollouts,
    Plan,
    PlanRunner,
    Replay,
    ReplayActor,
    RolloutWorker,
    SampleBatch,
    StandardMetricsReporting,
    StoreToReplayBuffer,
    TrainOneStep,
    WorkerFailures,
    gather_experiences_tree_aggregation,
    make_learner_thread,
)
from topology.nodes.flow.aggregation import AGGREGATOR_OPTIONS
from topology.nodes.flow.graph import find_plan
from topology.nodes.flow.node import AggregatorNode, PlanNode, ReplayActorNode, WorkerNode
from topology.nodes.flow.shards import HOST_OPTIONS


class Policy:
    weight = 0.0

    def get_state(self):
        return self.weight

    def set_state(self, state):
        self.weight = state

    def get_weights(self):
        return self.weight

    def set_weights(self, weights):
        self.weight = weights

    def learn_on_batch(self, batch):
        self.weight += 1
        return {}

    def compute_gradients(self, batch):
        return [np.ones(1)], {}

    def apply_gradients(self, gradients):
        self.weight += 1

    def on_global_vars_update(self, global_vars):
        pass


class Sampler:
    def __init__(self, policy, dies_in=None):
        self.policy, self.dies_in, self.count = policy, dies_in, 0

    def sample(self):
        self.count += 1
        if self.dies_in is not None and self.count > 3 and not self.dies_in.exists():
            self.dies_in.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return SampleBatch(obs=np.full(10, self.policy.weight))

    def drain_episodes(self):
        return [Episode(1.0, 10)]

    def recover(self):
        pass

    def close(self):
        pass


def make_worker(dies_in=None):
    policy = Policy()
    return RolloutWorker(policy, Sampler(policy, dies_in))


def make_learner():
    return RolloutWorker(Policy())


def sync_plan(workers, config):
    batches = ParallelRollouts(workers, mode="bulk_sync").combine(ConcatBatches(config["train_batch_size"]))
    return StandardMetricsReporting(batches.for_each(TrainOneStep(workers)), workers, config)


def tree_plan(workers, config):
    learner = make_learner_thread(workers.local_worker(), config)
    learner.start()
    feed = gather_experiences_tree_aggregation(workers, config).for_each(Enqueue(learner.inqueue))
    outputs = Dequeue(learner.outqueue, check=learner.is_alive)
    return StandardMetricsReporting(Concurrently([feed, outputs], mode="async", output_indexes=[1]), workers, config)


def replay_plan(workers, config):
    store = ParallelRollouts(workers, mode="async").for_each(StoreToReplayBuffer(actors=workers.replay_actors))
    train = Replay(actors=workers.replay_actors).for_each(TrainOneStep(workers))
    merged = Concurrently([store, train], mode="async", output_indexes=[1])
    return StandardMetricsReporting(merged, workers, config)


def build(plan, *, workers=2, aggregators=0, replay=0, steps=400, dies_in=None, failures=None, dying=None, **settings):
    dying = dying or {}
    program = lp.Program("plan")
    with program.group("worker"):
        made = [program.add_node(WorkerNode(make_worker, dies_in if i == 0 else None)) for i in range(workers)]
    if aggregators:
        with program.group("aggregator"):
            nodes = [AggregatorNode() for _ in range(aggregators)]
            if "aggregator" in dying:
                nodes[0] = CourierNode(DyingAggregator, dying["aggregator"], courier_kwargs=AGGREGATOR_OPTIONS)
            settings["aggregators"] = [program.add_node(node) for node in nodes]
    if replay:
        with program.group("replay"):
            limits = {"learning_starts": 50, "replay_batch_size": 20}
            nodes = [ReplayActorNode(**limits) for _ in range(replay)]
            if "replay" in dying:
                nodes[0] = CourierNode(DyingReplay, dying["replay"], courier_kwargs=HOST_OPTIONS, **limits)
            settings["replay_actors"] = [program.add_node(node) for node in nodes]
    with program.group("plan"):
        node = PlanNode(plan, make_learner, made, failures=failures, is_done=Enough(steps), **settings)
        handle = program.add_node(node)
    return program, handle


class Enough:
    def __init__(self, steps):
        self.steps = steps

    def __call__(self, result):
        return result["timesteps_total"] >= self.steps and result["info"].get("num_steps_trained", 1) > 0


SYNC = Plan(sync_plan, {"train_batch_size": 20})
TREE = Plan(tree_plan, {"train_batch_size": 40, "num_aggregation_workers": 1, "learner_queue_size": 2})


@pytest.mark.parametrize(
    ("plan", "settings"),
    [(SYNC, {}), (TREE, {"aggregators": 1}), (Plan(replay_plan), {"replay": 2})],
    ids=["sync", "tree", "replay"],
)
def test_plans_run_as_threads(plan, settings, tmp_path):
    program, _ = build(plan, **settings)
    assert lp.launch(program, "test_mt", run_directory=tmp_path).wait(50)


def test_what_others_ask_of_a_plan(tmp_path):
    program, handle = build(SYNC, steps=10**9)
    run = lp.launch(program, "test_mt", run_directory=tmp_path)
    client = handle.dereference()
    first, second = client.train(), client.train()
    assert second["timesteps_total"] > first["timesteps_total"] >= 20
    count, latest = client.latest()
    assert count >= 2
    assert latest["timesteps_total"] >= second["timesteps_total"]
    weights, version = client.get_weights()
    assert weights == {"default_policy": float(version)}
    run.stop()
    client.close()
    assert run.wait(20)


@pytest.mark.timeout(120)
def test_a_worker_that_is_killed_is_started_again_and_the_plan_goes_on(tmp_path):
    failures = WorkerFailures(max_restarts=1)
    mark = tmp_path / "has died"
    program, _ = build(SYNC, steps=2000, dies_in=mark, failures=failures)
    run = lp.launch(program, "test_mp", run_directory=tmp_path / "run", restarts={"worker": 1})
    assert run.wait(100)
    assert mark.exists()


class Report:
    """Notes the steps of each result in a file; kills its process once, after so many."""

    def __init__(self, path, dies_after=None):
        self.path, self.dies_after = path, dies_after

    def __call__(self, result):
        with self.path.open("a") as file:
            file.write(f"{result['timesteps_total']} {result['info']['num_steps_trained']}\n")
        lines = self.path.read_text().splitlines()
        if self.dies_after is not None and len(lines) == self.dies_after:
            os.kill(os.getpid(), signal.SIGKILL)

    def rows(self):
        return [tuple(map(int, line.split())) for line in self.path.read_text().splitlines()]


@pytest.mark.timeout(120)
def test_a_plan_that_is_killed_goes_on_from_its_newest_state(tmp_path):
    report = Report(tmp_path / "rows", dies_after=5)
    program, _ = build(SYNC, steps=200, report=report, checkpoint_period_s=1e-9)
    run = lp.launch(program, "test_mp", run_directory=tmp_path / "run", restarts={"plan": 1})
    assert run.wait(100)
    # It died before the fifth result was saved: that one is made once more, and nothing else is.
    assert report.rows() == [(20 * n, 20 * n) for n in (1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10)]


def test_a_run_directory_of_an_earlier_run_is_gone_on_with(tmp_path):
    report = Report(tmp_path / "rows")
    for steps in (100, 200):
        program, _ = build(SYNC, steps=steps, report=report, checkpoint_period_s=60.0)
        assert lp.launch(program, "test_mt", run_directory=tmp_path / "run").wait(50)
    assert report.rows() == [(20 * n, 20 * n) for n in range(1, 11)]


def test_a_plan_that_is_stopped_saves_its_state(tmp_path):
    report = Report(tmp_path / "rows")
    program, handle = build(SYNC, steps=10**9, report=report, checkpoint_period_s=60.0)
    run = lp.launch(program, "test_mt", run_directory=tmp_path / "run")
    client = handle.dereference()
    client.train()
    run.stop()
    client.close()
    assert run.wait(20)
    played = report.rows()[-1][0]
    program, _ = build(SYNC, steps=played + 1, report=report, checkpoint_period_s=60.0)
    assert lp.launch(program, "test_mt", run_directory=tmp_path / "run").wait(50)
    assert report.rows()[-1][0] == played + 20


def test_states_need_a_run_directory_and_a_period():
    for settings in ({"checkpoint_period_s": 60.0}, {"checkpoint_period_s": -1.0}):
        with pytest.raises(ValueError, match="checkpoint_period_s"):
            PlanRunner(SYNC, make_learner, **settings)


class DyingReplay(ReplayActor):
    def __init__(self, mark, **settings):
        super().__init__(**settings)
        self.mark = mark

    def add_batch(self, batch):
        super().add_batch(batch)
        _die_once(self.mark, self.stats()["num_added"] > 60)


class DyingAggregator(Aggregator):
    def __init__(self, mark):
        super().__init__()
        self.mark, self.count = mark, 0

    def next_items(self, *args):
        self.count += 1
        _die_once(self.mark, self.count > 3)
        return super().next_items(*args)


def _die_once(mark, is_time):
    if is_time and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["replay", "aggregator"])
def test_replay_nodes_and_aggregators_that_are_killed_are_started_again(tmp_path, kind):
    mark = tmp_path / "has died"
    plan, settings = (Plan(replay_plan), {"replay": 2}) if kind == "replay" else (TREE, {"aggregators": 1})
    program, _ = build(plan, steps=2000, failures=WorkerFailures(max_restarts=1), dying={kind: mark}, **settings)
    run = lp.launch(program, "test_mp", run_directory=tmp_path / "run", restarts={kind: 1})
    assert run.wait(100)
    assert mark.exists()


def test_an_error_of_the_learner_fails_the_node(tmp_path):
    program, _ = build(Plan(broken_plan))
    run = lp.launch(program, "test_mt", run_directory=tmp_path)
    with pytest.raises(ArithmeticError, match="broken on purpose"):
        run.wait(30)


def broken_plan(workers, config):
    def fail(batch):
        raise ArithmeticError("broken on purpose")

    return ParallelRollouts(workers).for_each(fail)


# --- pictures -------------------------------------------------------------------------------------------------------


def names(graph, group):
    return [(node.kind, node.constructor) for node in graph.node(group).inner]


def test_a_plan_alone_is_drawn_before_it_runs():
    graph = TREE.graph(num_workers=2)
    assert names(graph, "plan/0") == [
        ("driver", "gather_async"),
        ("driver", "record_steps_sampled"),
        ("driver", "Enqueue"),
        ("thread", "LearnerThread"),
        ("driver", "Dequeue"),
        ("driver", "Concurrently(async)"),
        ("driver", "filter(OncePerTimestepsElapsed)"),
        ("driver", "filter(OncePerTimeInterval)"),
        ("driver", "CollectMetrics"),
    ]
    assert graph.targets_of("plan/0/0") == ("aggregator/0",)
    assert graph.targets_of("plan/0/3") == ("plan/0/2",)  # the learner reads what was enqueued
    assert graph.targets_of("plan/0/4") == ("plan/0/3",)
    assert set(graph.targets_of("plan/0/5")) == {"plan/0/2", "plan/0/4"}
    for text in (graph.to_text(None), graph.to_mermaid(None), graph.to_dot(None)):
        assert "LearnerThread" in text


def test_what_runs_in_the_workers_is_drawn_there():
    graph = Plan(lambda workers, config: AsyncGradients(workers)).graph(num_workers=2)
    for worker in ("worker/0", "worker/1"):
        assert [kind for kind, _ in names(graph, worker)] == ["shard"]
        assert "compute" in names(graph, worker)[0][1]
        assert graph.targets_of(f"{worker}/0") == (worker,)
    assert graph.targets_of("plan/0/0") == ("worker/0/0", "worker/1/0")


def test_a_plan_is_drawn_into_the_graph_of_its_program():
    program, _ = build(SYNC)
    plain, graph = program.graph(), SYNC.graph(program)
    assert [node.name for node in graph.nodes()] == [node.name for node in plain.nodes()]
    assert set(plain.edges) <= set(graph.edges)
    assert [name for _, name in names(graph, "plan/0")] == [
        "batch_across_shards",
        "concat_samples",
        "count_sampled",
        "ConcatBatches",
        "flatten",
        "TrainOneStep",
        "filter(OncePerTimestepsElapsed)",
        "filter(OncePerTimeInterval)",
        "CollectMetrics",
    ]
    assert graph.targets_of("plan/0/0") == ("worker/0", "worker/1")
    assert graph.arguments_of("plan/0/5", "worker/1") == ("weights",)
    assert find_plan(plain)[1]["worker"] == ["worker/0", "worker/1"]
    with pytest.raises(LookupError, match="0 nodes that run a plan"):
        SYNC.graph(lp.make_program(lp.PyNode(print)))


def test_a_local_replay_is_drawn():
    def plan(workers, config):
        buffer = LocalReplayBuffer()
        store = ParallelRollouts(workers).for_each(StoreToReplayBuffer(local_buffer=buffer))
        return Concurrently([store, Replay(local_buffer=buffer)], mode="round_robin")

    graph = Plan(plan).graph(num_workers=1)
    assert "Replay(local)" in [name for _, name in names(graph, "plan/0")]
