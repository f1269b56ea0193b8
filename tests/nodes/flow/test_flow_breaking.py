"""Plans that are handled badly: wrong input, errors at every place, two readers, a stop or an end in the middle."""

import itertools
import math
import threading

import numpy as np
import pytest

from topology.context import NodeContext, bind_context
from topology.errors import ProgramStopped
from topology.nodes.flow import (
    ApplyGradients,
    AverageGradients,
    BroadcastUpdateLearnerWeights,
    CollectMetrics,
    ComputeGradients,
    ConcatBatches,
    Concurrently,
    Dequeue,
    Enqueue,
    LearnerThread,
    LocalIterator,
    LocalReplay,
    LocalReplayBuffer,
    MixInReplay,
    ParallelRollouts,
    Plan,
    PlanClosed,
    PlanRunner,
    Queue,
    Replay,
    ReplayBuffer,
    RolloutWorker,
    SampleBatch,
    SelectExperiences,
    SimpleReplayBuffer,
    StandardizeFields,
    StoreToReplayBuffer,
    TrainOneStep,
    UpdateTargetNetwork,
    UpdateWorkerWeights,
    WorkerSet,
    concat_samples,
    from_actors,
    from_items,
    from_iterators,
    from_range,
    gather_experiences_directly,
    gather_experiences_tree_aggregation,
    host,
)
from topology.nodes.flow.shards import Forever, ParallelIteratorWorker
from topology.testing import Gate, within

ALL = 1000


def of(*items):
    return LocalIterator.of(list(items))


# --- wrong input ----------------------------------------------------------------------------------------------------

WRONG_FOR_ITERATORS = {
    "for_each": [(3,), (None,)],
    "filter": [(None,)],
    "combine": [("x",)],
    "transform": [(5,)],
    "batch": [(0,), (-1,), (2.5,), ("2",)],
    "shuffle": [(0,), (-3,)],
    "duplicate": [(1,), (1.5,)],
    "take": [(-1,), ("3",)],
    "union": [(), (3,)],
}
WRONG_FOR_SHARDS = {
    "for_each": [(3,), (abs, -1), (abs, 1.5)],
    "filter": [(None,)],
    "combine": [(None,)],
    "transform": [(5,)],
    "batch": [(0,), ("2",)],
    "local_shuffle": [(0,)],
    "repartition": [(0,), (2, -1)],
    "select_shards": [([0, 0],), (["a"],), ([-1],)],
    "get_shard": [(5,), (-1,)],
    "gather_async": [(-1,), (math.nan,), (0, 1.5), (0, 0)],
    "batch_across_shards": [(-1,), (math.nan,), ("1",)],
    "take": [(-1,)],
}


def calls(table):
    return [pytest.param(name, arguments, id=f"{name}{arguments}") for name in table for arguments in table[name]]


@pytest.mark.parametrize(("name", "arguments"), calls(WRONG_FOR_ITERATORS))
def test_wrong_input_is_refused_at_once_and_the_flow_is_as_it_was(name, arguments):
    flow = of(1, 2, 3)
    with pytest.raises((TypeError, ValueError), match=r"takes a function|must be|at least|LocalIterators"):
        getattr(flow, name)(*arguments)
    assert flow.take(ALL) == [1, 2, 3]


@pytest.mark.parametrize(("name", "arguments"), calls(WRONG_FOR_SHARDS))
def test_wrong_input_for_shards(name, arguments):
    items = from_range(4)
    with pytest.raises((TypeError, ValueError), match=r"takes a function|must be|there are 2 shards|is there twice"):
        getattr(items, name)(*arguments)
    assert sorted(items.take(ALL)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "arguments",
    [
        {"output_indexes": []},
        {"output_indexes": ["a"]},
        {"round_robin_weights": [1, math.nan]},
        {"round_robin_weights": [1, math.inf]},
        {"round_robin_weights": [1, None]},
        {"round_robin_weights": [1, "x"]},
        {"round_robin_weights": 3},
    ],
)
def test_flows_that_were_not_joined_can_still_be(arguments):
    first, second = of(1, 2), of(3, 4)
    with pytest.raises((TypeError, ValueError)):
        Concurrently([first, second], **arguments)
    with pytest.raises(ValueError, match="is there twice"):
        Concurrently([first, first])
    taken = of(5)
    taken.batch(1)
    with pytest.raises(ValueError, match="duplicate"):
        Concurrently([first, second, taken])
    assert first.union(second).take(ALL) == [1, 3, 2, 4]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: from_items([1], num_shards=0), "num_shards must be"),
        (lambda: from_range(-1), "n must be"),
        (lambda: from_range(3, num_shards="2"), "num_shards must be"),
        (lambda: from_iterators([]), "at least one shard"),
        (lambda: from_actors([]), "at least one shard"),
        (lambda: ConcatBatches(0), "min_batch_size must be"),
        (lambda: ConcatBatches("10"), "min_batch_size must be"),
        (lambda: StandardizeFields("advantages"), "list of columns"),
        (lambda: MixInReplay(-1, 0.0), "num_slots must be"),
        (lambda: MixInReplay(1, math.nan), "replay_proportion"),
        (lambda: SimpleReplayBuffer(-1), "num_slots must be"),
        (lambda: ReplayBuffer(0), "size must be"),
        (lambda: ReplayBuffer(10, alpha=math.nan), "exponents"),
        (lambda: LocalReplayBuffer(num_shards=0), "num_shards must be"),
        (lambda: LocalReplayBuffer(learning_starts=-1), "learning_starts must be"),
        (lambda: LocalReplayBuffer(replay_batch_size=0), "replay_batch_size must be"),
        (lambda: LocalReplayBuffer(num_shards=4, capacity=3), "capacity must be"),
        (lambda: LocalReplayBuffer(prioritized_replay_alpha=-1), "prioritized_replay_alpha"),
        (lambda: StoreToReplayBuffer(actors=[]), "no actors"),
        (lambda: Replay(actors=[]), "no actors"),
        (lambda: StoreToReplayBuffer(3), "add_batch"),
        (lambda: Queue(-1), "maxsize must be"),
        (lambda: Dequeue(Queue(), check=3), "check of Dequeue"),
        (lambda: LearnerThread(None, learner_queue_size=0), "learner_queue_size must be"),
        (lambda: LearnerThread(None, learner_queue_timeout=-1), "learner_queue_timeout must be"),
        (lambda: CollectMetrics(None, min_history=0), "min_history must be"),
        (lambda: UpdateTargetNetwork(None, -1), "target_update_freq must be"),
        (lambda: UpdateTargetNetwork(None, 1, policies="main"), "list of ids"),
        (lambda: TrainOneStep(None, policies="main"), "list of ids"),
        (lambda: TrainOneStep(None, num_sgd_iter=1.5), "num_sgd_iter must be"),
        (lambda: RolloutWorker({"a": None}, policies_to_train=["b"]), "policies_to_train"),
        (lambda: concat_samples([3]), "takes batches"),
        (lambda: SampleBatch(obs=[1, 2], done=True), r"\['done'\] are single values"),
        (lambda: WorkerSet(3), "is a RolloutWorker, got int"),
        (lambda: WorkerSet(RolloutWorker({}), [3]), "a worker is"),
        (lambda: Plan(3), "takes a function"),
        (lambda: Plan(lambda workers, config: None).build(WorkerSet(RolloutWorker({}))), "returned NoneType"),
        (lambda: Plan(lambda workers, config: from_range(3)).graph(), "gather what is a ParallelIterator"),
    ],
)
def test_sizes_that_make_no_sense(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_settings_that_are_missing_are_named(new_workers):
    for gather in (gather_experiences_directly, gather_experiences_tree_aggregation):
        with pytest.raises(KeyError, match=r"the plan's config has no '(train_batch_size|num_aggregation_workers)'"):
            gather(new_workers(2), {"num_workers": 2})


def test_a_buffer_that_does_not_know_how_much_to_draw():
    buffer = ReplayBuffer(10)
    with pytest.raises(ValueError, match=r"LocalReplay\(buffer, train_batch_size\) does"):
        Replay(local_buffer=buffer)
    with pytest.raises(ValueError, match="train_batch_size must be"):
        LocalReplay(buffer, 0)
    buffer.close()


@pytest.mark.parametrize(
    "make",
    [
        lambda workers: ConcatBatches(1),
        lambda workers: SelectExperiences(["a"]),
        lambda workers: StandardizeFields(["a"]),
        lambda workers: MixInReplay(1, 1.0),
        TrainOneStep,
        ComputeGradients,
        ApplyGradients,
        lambda workers: AverageGradients(),
        lambda workers: StoreToReplayBuffer(SimpleReplayBuffer(1)),
        lambda workers: BroadcastUpdateLearnerWeights(LearnerThread(workers.local_worker()), workers),
        lambda workers: UpdateWorkerWeights(LearnerThread(workers.local_worker()), workers),
    ],
)
@pytest.mark.parametrize("item", [3, "text", None, [1, 2], {"obs": [1]}, (1, 2, 3)], ids=str)
def test_items_of_an_odd_type_are_named_and_passed_over(new_workers, make, item):
    workers = new_workers(0)
    operator = make(workers)
    flow = of(item, item).for_each(operator)
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"{type(operator).__name__} takes .*got {type(item).__name__}"):
            next(flow)
    assert flow.take(1) == []


def test_a_sampler_that_gives_no_batch(new_workers):
    workers = new_workers(1)
    workers.objects[0].sampler.sample = lambda: {"obs": [1, 2]}
    with pytest.raises(ValueError, match=r"CountingSampler.sample\(\) gave no batch.*got dict"):
        next(ParallelRollouts(workers))


def test_values_without_parts_are_named():
    for flow in (of(3, 4).flatten(), of(3, 4).combine(lambda x: None), from_range(2, 1).flatten().gather_sync()):
        with pytest.raises(TypeError, match="takes values that have parts"):
            next(flow)
    with pytest.raises(TypeError, match="returned NoneType"):
        next(of(1).transform(lambda items: None))
    with pytest.raises(TypeError, match="returned NoneType"):
        from_range(2).transform(lambda items: None).take(1)
    with pytest.raises(TypeError, match="made of an iterable, got int"):
        next(LocalIterator.of(lambda: 3))


def test_empty_batches_have_no_gradients(new_workers):
    workers = new_workers(0)
    flow = of(SampleBatch(), SampleBatch(obs=np.full(4, 2.0))).for_each(ComputeGradients(workers)).batch(2)
    average, steps = next(flow.for_each(AverageGradients()))
    assert (average["w"][0], steps) == (2.0, 4)
    next(of(SampleBatch()).for_each(ComputeGradients(workers)).for_each(ApplyGradients(workers)))
    assert workers.local_worker().weights_version == 0
    assert next(of(SampleBatch()).for_each(StandardizeFields(["obs"]))).count == 0


# --- errors at every place ------------------------------------------------------------------------------------------


def read_on(flow, most=100):
    """All that comes, whatever is raised in between; and how often something was."""
    found, errors = [], 0
    for _ in range(most):
        try:
            item = within(20, flow.next_item)
        except ZeroDivisionError:
            errors += 1
        else:
            if item is None:
                return found, errors
            found.append(item.value)
    raise AssertionError("it does not end")


def fail_at(*numbers):
    def fn(value):
        if value in numbers:
            raise ZeroDivisionError(f"at {value}")
        return value

    return fn


DRIVER_STAGES = {
    "batch": lambda flow: flow.batch(3).flatten(),
    "shuffle": lambda flow: flow.shuffle(3, seed=0),
    "filter": lambda flow: flow.filter(lambda x: True),
    "combine": lambda flow: flow.combine(lambda x: [x]),
    "at once": lambda flow: flow.for_each(lambda x: x, max_concurrency=3),
    "round_robin": lambda flow: Concurrently([flow, of()], mode="round_robin"),
    "async": lambda flow: Concurrently([flow, of()], mode="async"),
    "queue": lambda flow: Concurrently([flow.for_each(Enqueue(Queue(50))), of()], mode="async"),
    "duplicate": lambda flow: Concurrently(flow.duplicate(2), mode="async", output_indexes=[0]),
    "transform": lambda flow: flow.transform(lambda items: (item for item in items)),
}


@pytest.mark.parametrize("stage", DRIVER_STAGES)
def test_an_error_before_a_stage_loses_one_item_only(stage):
    flow = DRIVER_STAGES[stage](LocalIterator.of(range(10)).for_each(fail_at(0, 3, 9)))
    found, errors = read_on(flow)
    assert errors == 3
    assert sorted(found) == [1, 2, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    "build",
    [
        lambda flow, fn: flow.filter(lambda x: fn(x) is not None),
        lambda flow, fn: flow.combine(lambda x: [fn(x)]),
        lambda flow, fn: flow.for_each(fn, max_concurrency=3),
        lambda flow, fn: Concurrently([flow.for_each(fn), of()], mode="round_robin"),
    ],
)
def test_an_error_of_each_operator_loses_one_item_only(build):
    found, errors = read_on(build(LocalIterator.of(range(10)), fail_at(4, 5)))
    assert (sorted(found), errors) == ([0, 1, 2, 3, 6, 7, 8, 9], 2)


SHARD_STAGES = {
    "batch": lambda items: items.batch(2).flatten(),
    "shuffle": lambda items: items.local_shuffle(3, seed=0),
    "filter": lambda items: items.filter(lambda x: True),
    "combine": lambda items: items.combine(lambda x: [x]),
    "at once": lambda items: items.for_each(lambda x: x, max_concurrency=2),
    "transform": lambda items: items.transform(lambda each: (item for item in each)),
    "repartition": lambda items: items.repartition(3),
}


@pytest.mark.parametrize("stage", SHARD_STAGES)
@pytest.mark.parametrize(
    "gather",
    [
        lambda items: items.gather_sync(),
        lambda items: items.gather_async(),
        lambda items: items.gather_async(batch_ms=20, num_async=3),
    ],
    ids=["sync", "async", "several at a time"],
)
def test_an_error_in_a_shard_loses_one_item_only(stage, gather):
    failing = from_range(12, num_shards=2).for_each(fail_at(0, 3, 11))
    found, errors = read_on(gather(SHARD_STAGES[stage](failing)))
    assert errors == 3
    assert sorted(found) == [1, 2, 4, 5, 6, 7, 8, 9, 10]


def test_items_without_end_go_on_after_an_error():
    counts = itertools.count()
    worker = ParallelIteratorWorker(Forever(lambda: fail_at(2)(next(counts))))
    actor = host(worker)
    flow = from_actors([actor]).gather_async()
    assert flow.take(2) == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(flow)
    assert flow.take(2) == [3, 4]
    actor.end()


def test_a_repetition_of_nothing_is_an_error_and_not_a_hang():
    with pytest.raises(ValueError, match="nothing to repeat"):
        within(20, from_iterators([[]], repeat=True).take, 1)


def test_no_bound_is_no_endless_reading():
    local = LocalIterator.of(itertools.count).for_each(lambda x: x, max_concurrency=0)
    assert len(within(20, local.take, 5)) == 5
    shards = from_iterators([itertools.count]).for_each(lambda x: x, max_concurrency=0)
    assert len(within(20, shards.take, 5)) == 5


def test_batches_that_do_not_fit_do_not_block_those_that_do(in_plan):
    concat = ConcatBatches(4)
    one, other = SampleBatch(obs=np.zeros(2)), SampleBatch(rewards=np.zeros(2))
    flow = of(one, other, one, one).combine(concat)
    with pytest.raises(ValueError, match="different columns"):
        next(flow)
    assert next(flow).count == 4


# --- two readers ----------------------------------------------------------------------------------------------------


def test_a_second_thread_is_refused_and_the_first_goes_on():
    queue = Queue()
    flow = Dequeue(queue)
    found = []
    entered = entering(flow)
    reader = threading.Thread(target=lambda: found.append(next(flow)))
    reader.start()
    assert entered.wait(20)
    with pytest.raises(RuntimeError, match="one reader at a time"):
        next(flow)
    queue.put("first")
    reader.join(20)
    assert found == ["first"]
    queue.put("second")
    assert next(flow) == "second"


def entering(flow):
    """An event that is set when a thread begins to read the flow."""
    entered = threading.Event()
    waker = flow._own_waker()
    clear = waker.clear
    waker.clear = lambda: (entered.set(), clear())
    return entered


def test_an_operator_does_not_read_its_own_flow():
    flow = of(1, 2).for_each(lambda x: next(flow))
    with pytest.raises(RuntimeError, match="one reader at a time"):
        next(flow)


def test_copies_belong_to_one_thread():
    gate = Gate()
    first, second = of(1, 2).for_each(lambda x: (gate(), x)[1]).duplicate(2)
    reader = threading.Thread(target=lambda: next(first))
    reader.start()
    gate.wait_entered()
    with pytest.raises(RuntimeError, match="two threads"):
        next(second)
    gate.release()
    reader.join(20)
    assert next(second) == 1


def test_a_learner_is_started_once(new_worker):
    learner = LearnerThread(new_worker())
    learner.start()
    with pytest.raises(RuntimeError, match="started before"):
        learner.start()
    learner.stop()


# --- an end in the middle -------------------------------------------------------------------------------------------


def queue_plan(workers, config):
    return Dequeue(Queue())


def stuck_learner_plan(workers, config):
    learner = LearnerThread(workers.local_worker(), learner_queue_size=1)
    workers.local_worker().get_policy().learn_on_batch = config["latch"]
    learner.start()
    batches = LocalIterator.of([SampleBatch(obs=np.zeros(1))] * 100).for_each(Enqueue(learner.inqueue))
    return Concurrently([batches, Dequeue(learner.outqueue, check=learner.is_alive)], mode="async", output_indexes=[1])


def endless_plan(workers, config):
    return ParallelRollouts(WorkerSet(workers.local_worker())).filter(lambda batch: False)


def endless_items_plan(workers, config):
    return LocalIterator.of(itertools.count).batch(10).filter(lambda items: False)


PLANS = {
    "bulk_sync": lambda workers, config: ParallelRollouts(workers),
    "async": lambda workers, config: ParallelRollouts(workers, mode="async", num_async=2),
    "one worker": lambda workers, config: from_actors(workers.remote_workers()[:1]).gather_async(),
    "round_robin": lambda workers, config: Concurrently([ParallelRollouts(workers), of(1)], mode="round_robin"),
    "transform": lambda workers, config: ParallelRollouts(workers).transform(lambda items: items),
    "queue": queue_plan,
    "learner": stuck_learner_plan,
    "never waits": endless_plan,
    "never waits for items": endless_items_plan,
}


@pytest.fixture(params=PLANS)
def waiting_plan(request, new_workers, latch):
    """A plan in whose middle a thread is; what it raises at last."""
    latch.close()
    context = NodeContext(label="plan", index=0, launch_type="test_mt")
    workers = new_workers(2, before=latch)
    workers.local_worker().sampler.before = None
    running = Plan(PLANS[request.param], {"latch": latch}).build(workers)
    with bind_context(context):
        entered = entering(running.results)
    raised = []

    def drive():
        with bind_context(context):
            try:
                list(running)
            except Exception as error:
                raised.append(error)

    thread = threading.Thread(target=drive)
    thread.start()
    assert entered.wait(20)
    thread.join(0.05)  # mostly beyond the time in which replies are read one after the other
    assert thread.is_alive()

    def outcome():
        thread.join(20)
        assert not thread.is_alive()
        return raised[0]

    yield context, running, outcome
    latch.open()
    thread.join(20)
    running.close()


def test_the_stop_of_the_program_ends_a_plan_wherever_it_is(waiting_plan):
    context, _, outcome = waiting_plan
    context.stop.set()
    assert isinstance(outcome(), ProgramStopped)


def test_the_end_of_a_plan_ends_it_wherever_it_is(waiting_plan):
    _, running, outcome = waiting_plan
    running.results.close()
    assert isinstance(outcome(), PlanClosed)
    with pytest.raises(PlanClosed, match="build it anew"):
        running.train()


def test_closing_waits_for_the_fragment_that_is_played(new_worker, latch):
    """The environments are not taken away from under a sampler."""
    worker = new_worker(before=latch)
    latch.close()
    running = Plan(lambda workers, config: ParallelRollouts(workers)).build(WorkerSet(worker))
    reader = threading.Thread(target=lambda: next(running.results, None))
    reader.start()
    assert latch.waiting.acquire(timeout=20)
    closing = threading.Thread(target=running.close)
    closing.start()
    closing.join(0.05)
    assert not worker.sampler.closed
    latch.open()
    closing.join(20)
    reader.join(20)
    assert worker.sampler.closed
    assert worker.sampler.rows == 100
    with pytest.raises(PlanClosed, match="make a new WorkerSet"):
        Plan(queue_plan).build(running.workers)


def test_many_workers_in_one_process(new_workers):
    workers = new_workers(50, size=2)
    rollouts = ParallelRollouts(workers).for_each(TrainOneStep(workers))
    for version in range(3):
        batch, _ = within(60, next, rollouts)
        assert batch["obs"].tolist() == [float(version)] * 100
    some = ParallelRollouts(workers, mode="async", num_async=2).zip_with_source_actor()
    assert len({actor for actor, _ in within(60, some.take, 500)}) > 25


# --- what policies and samplers may do without ----------------------------------------------------------------------


class Bare:
    def get_weights(self):
        return 0.0

    def set_weights(self, weights):
        pass

    def learn_on_batch(self, batch):
        return {}

    def sample(self):
        return SampleBatch(obs=np.zeros(3))


def test_policies_and_samplers_have_what_their_plan_needs():
    workers = WorkerSet(RolloutWorker(Bare()), [RolloutWorker(Bare(), Bare())])
    with Plan(lambda workers, config: ParallelRollouts(workers).for_each(TrainOneStep(workers))).build(workers) as plan:
        plan.train()
        workers.foreach_worker("recover")
    with pytest.raises(TypeError, match="of a RolloutWorker, int, has no method get_weights and set"):
        RolloutWorker(3)
    with pytest.raises(TypeError, match="sampler of a RolloutWorker, Queue, has no method sample"):
        RolloutWorker(Bare(), Queue())


def test_states_need_policies_that_give_them(tmp_path):
    context = NodeContext(label="plan", index=0, launch_type="test_mt", run_directory=tmp_path)
    with bind_context(context), pytest.raises(TypeError, match="Bare, has no method get_state and set_state"):
        PlanRunner(Plan(queue_plan), lambda: RolloutWorker(Bare()), checkpoint_period_s=1.0)


def test_an_error_of_the_end_does_not_hide_the_one_before():
    def fail(batch):
        raise ArithmeticError("the first")

    class Breaking(Bare):
        def close(self):
            raise OSError("the last")

    runner = PlanRunner(
        Plan(lambda workers, config: ParallelRollouts(workers).for_each(fail)),
        lambda: RolloutWorker(Bare(), Breaking()),
    )
    with pytest.raises(ArithmeticError, match="the first") as caught:
        runner.run()
    assert "OSError: the last" in caught.value.__notes__[-1]
