"""What a plan remembers: taken, kept on disk, and taken up by a plan that is built anew."""

import math
import threading

import numpy as np
import pytest

from topology.context import NodeContext, bind_context
from topology.errors import LaunchError, ProgramError
from topology.nodes.flow import (
    AverageGradients,
    ComputeGradients,
    ConcatBatches,
    Concurrently,
    Dequeue,
    Enqueue,
    LearnerOutput,
    LearnerThread,
    LocalIterator,
    LocalReplayBuffer,
    MixInReplay,
    MultiAgentBatch,
    ParallelRollouts,
    Plan,
    Queue,
    Replay,
    ReplayActor,
    SampleBatch,
    StandardMetricsReporting,
    StoreToReplayBuffer,
    TrainOneStep,
    UpdateTargetNetwork,
    make_learner_thread,
)
from topology.nodes.flow.actors import Actor
from topology.nodes.flow.checkpoints import StateFiles, files_of_node
from topology.nodes.flow.items import Item, Origin
from topology.testing import Gate, within


def numbered(first, count):
    return SampleBatch(obs=np.arange(first, first + count, dtype=float))


@pytest.fixture
def through_a_file(tmp_path):
    """A state, written and read again."""

    def through(state, actors=None):
        files = StateFiles(tmp_path / "states")
        files.save(state)
        return files.newest(actors)

    return through


def resume(plan, workers, running, through):
    """A plan built anew with other workers, that takes up the state of a running one."""
    again = plan.build(workers)
    again.set_state(through(running.get_state()))
    return again


# --- files ----------------------------------------------------------------------------------------------------------


def test_plain_data_comes_back_as_it_was(through_a_file):
    state = {
        "numbers": [1, 2.5, True, None, -(2**100), math.inf],
        "text": "naïve",
        1: ("tuple", [], {}),
        "bytes": b"\0\1",
        "arrays": [np.arange(6).reshape(2, 3)[:, ::2], np.zeros((0, 3), np.float32), np.array("word")],
    }
    again = through_a_file(state)
    arrays, saved = again.pop("arrays"), state.pop("arrays")
    assert again == state
    for one, other in zip(arrays, saved, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert (one == other).all()
    number = through_a_file(np.float32(1.5))
    assert (type(number), number) == (np.float32, 1.5)


def test_batches_items_and_what_learners_tell_come_back(through_a_file):
    one, two = Actor(_NoClient("a"), "worker/0"), Actor(_NoClient("b"), "worker/1")
    both = MultiAgentBatch({"p": numbered(0, 2), "q": numbered(5, 3)}, env_steps=3)
    state = [both, Item(numbered(1, 2), (Origin(one, 7), Origin(two, 8))), LearnerOutput(3, {"p": {"loss": 0.5}}, 4)]
    batch, item, output = through_a_file(state, {"worker/1": two})
    assert (batch.env_steps(), batch.agent_steps()) == (3, 5)
    assert batch.policy_batches["q"]["obs"].tolist() == [5, 6, 7]
    assert item.value["obs"].tolist() == [1, 2]
    assert item.origins == (Origin(two, 8),)  # the other worker is not here any more
    assert output == state[2]
    assert output.info is output[1]


class _NoClient:
    def __init__(self, address):
        self.address = address


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": [object()]}, r"the state\['a'\]\[0\] holds builtins.object"),
        ([np.array([{}, None])], r"the state\[0\] holds an array of object"),
        ({("k",): 1}, "a key of the state holds builtins.tuple"),
        ([Origin(None, 1)], r"the state\[0\] holds topology.nodes.flow.items.Origin"),
        (1j, "holds builtins.complex"),
    ],
)
def test_what_is_not_plain_is_refused_and_nothing_is_left(tmp_path, value, where):
    files = StateFiles(tmp_path)
    with pytest.raises(ProgramError, match=where):
        files.save(value)
    assert list(tmp_path.iterdir()) == []
    assert files.newest() is None


def test_the_newest_whole_state_counts_and_old_ones_go(tmp_path):
    files = StateFiles(tmp_path, keep_latest=2)
    for number in range(4):
        files.save({"number": number})
    (tmp_path / ".unfinished-000000000009").mkdir()  # of a run that was killed
    assert StateFiles(tmp_path).newest() == {"number": 3}
    assert len(list(tmp_path.glob("0*"))) == 2


def test_damaged_states_and_full_disks(tmp_path):
    files = StateFiles(tmp_path / "states")
    saved = files.save({"a": np.arange(100)})
    (saved / "arrays.bin").write_bytes(bytes(800))
    with pytest.raises(ProgramError, match=r"cannot be read.*damaged.*Remove that directory"):
        files.newest()
    (saved / "index.json").write_text("{")
    with pytest.raises(ProgramError, match="cannot be read"):
        files.newest()
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match="cannot be saved"):
        StateFiles(tmp_path / "file" / "states").save({})


def test_where_nodes_keep_them(tmp_path):
    assert files_of_node("plan", None) is None
    with pytest.raises(ValueError, match="no run directory"):
        files_of_node("plan", 60.0)
    with pytest.raises(ValueError, match="above 0"):
        files_of_node("plan", 0.0)
    with bind_context(NodeContext(label="learner", index=0, launch_type="test_mt", run_directory=tmp_path)):
        path = files_of_node("plan", 60.0).save({})
    assert path.parent == tmp_path / "checkpoints" / "plan" / "learner-0"


# --- plans ----------------------------------------------------------------------------------------------------------


def test_partial_batches_and_counters_go_on(new_workers, through_a_file):
    def build(workers, config):
        train = ParallelRollouts(workers).combine(ConcatBatches(500)).for_each(TrainOneStep(workers))
        return StandardMetricsReporting(train.for_each(UpdateTargetNetwork(workers, 700)), workers, config)

    plan = Plan(build)
    first = plan.build(new_workers(1))
    first.train()
    concat = first.results.stage
    while not isinstance(getattr(concat, "fn", None), ConcatBatches):
        [concat] = concat.inputs
    concat = concat.fn
    concat.set_state([first.workers.objects[0].sample() for _ in range(3)])  # as after three more rounds
    second = resume(plan, new_workers(1), first, through_a_file)
    result = second.train()
    assert result["info"]["num_steps_sampled"] == 500 + 200  # two rounds were enough
    assert result["info"]["num_steps_trained"] == 1000
    assert "num_target_updates" not in result["info"]  # 700 steps are not more than 700
    assert result["timesteps_this_iter"] == 200
    assert result["episodes_this_iter"] == 2
    assert result["episode_reward_mean"] == 100
    assert second.workers.local_worker().get_policy().weight == 2
    assert second.workers.remote_workers()[0].submit("get_weights").result(20) == {"default_policy": 2.0}


def test_gradients_that_wait_for_others_go_on(new_workers, through_a_file):
    def build(workers, config):
        gradients = ParallelRollouts(workers).for_each(ComputeGradients(workers))
        return gradients.batch(4).for_each(AverageGradients())

    plan = Plan(build)
    first = plan.build(new_workers(1))
    batches = first.results.stage.inputs[0]
    batches._waiting = [Item(({"w": [np.array(8.0), None]}, 100), (Origin(a, 0),)) for a in _actors(first) * 3]
    second = resume(plan, new_workers(1), first, lambda state: through_a_file(state, _by_name(first)))
    mean, steps = second.train()
    assert (mean["w"][0], steps) == (6.0, 400)


def _actors(running):
    return running.workers.remote_workers()


def _by_name(running):
    return {actor.name: actor for actor in _actors(running)}


@pytest.mark.parametrize("replay", [True, False])
def test_replay_goes_on_if_asked(new_workers, through_a_file, replay):
    made = []

    def build(workers, config):
        buffer = LocalReplayBuffer(learning_starts=300, capacity=1000, replay_batch_size=10, seed=0)
        made.append(buffer)
        store = ParallelRollouts(workers).for_each(StoreToReplayBuffer(local_buffer=buffer))
        train = Replay(local_buffer=buffer).for_each(TrainOneStep(workers))
        return Concurrently([store, train], mode="round_robin", output_indexes=[1], round_robin_weights=[1, 2.5])

    plan = Plan(build)
    first = plan.build(new_workers(1))
    within(30, first.train)
    again = plan.build(new_workers(1))
    again.set_state(through_a_file(first.get_state(replay=replay)))
    assert made[1].num_added == (300 if replay else 0)
    within(30, again.train)
    assert made[1].num_added == (300 if replay else 300 + 0)
    assert again.metrics.counters["num_steps_sampled"] == (300 if replay else 600)
    for buffer in made:
        buffer.close()


def test_old_batches_of_a_mixture_go_on_if_asked(through_a_file):
    def build(workers, config):
        return LocalIterator.of([numbered(0, 1)]).combine(MixInReplay(5, 1.0, seed=1))

    first, second = (Plan(build).build(_no_workers()) for _ in range(2))
    assert first.train()["obs"] == [0]
    mixture = second.results.stage.inputs[0].fn
    second.set_state(through_a_file(first.get_state()))
    assert len(mixture._buffer) == 1
    assert second.train()["obs"] == [0]  # the old one, which was not handed on yet


def _no_workers():
    from topology.nodes.flow import RolloutWorker, WorkerSet

    return WorkerSet(RolloutWorker({}))


def test_a_state_of_another_plan_is_refused(new_workers):
    def build(workers, config):
        rollouts = ParallelRollouts(workers)
        return rollouts.combine(ConcatBatches(10)) if config["joined"] else rollouts

    state = Plan(build, {"joined": True}).build(new_workers(1)).get_state()
    with pytest.raises(ProgramError, match=r"has changed[\s\S]*ConcatBatches: in the state, but not in this plan"):
        Plan(build, {"joined": False}).build(new_workers(1)).set_state(state)


def test_users_operators_are_asked_too(through_a_file):
    class Sum:
        total = 0

        def __call__(self, value):
            self.total += value
            return self.total

        def get_state(self):
            return {"total": self.total}

        def set_state(self, state):
            self.total = state["total"]

    def build(workers, config):
        return LocalIterator.of([1, 2, 3]).for_each(Sum())

    first, second = (Plan(build).build(_no_workers()) for _ in range(2))
    assert [first.train(), first.train()] == [1, 3]
    second.set_state(through_a_file(first.get_state()))
    assert second.train() == 4


@pytest.mark.parametrize(
    "build",
    [
        lambda flow: flow.batch(3),
        lambda flow: flow.shuffle(3, seed=5),
        lambda flow: flow.combine(lambda x: [x, -x, x]),
        lambda flow: flow.for_each(lambda x: x, max_concurrency=1),
        lambda flow: Concurrently([flow, LocalIterator.of(range(100, 120))], mode="async"),
        lambda flow: Concurrently(
            [flow, LocalIterator.of(range(100, 120))], mode="round_robin", round_robin_weights=[2, 1.5], seed=3
        ),
        lambda flow: _joined_copies(*flow.duplicate(2)),
    ],
    ids=["batch", "shuffle", "combine", "for_each", "async", "round_robin", "duplicate"],
)
@pytest.mark.parametrize("taken", [0, 1, 4, 7])
def test_every_stage_goes_on_where_it_was(through_a_file, build, taken):
    """As if it had never been interrupted: what is read before and after is what is read without a break."""

    def plan(source):
        return Plan(lambda workers, config: build(LocalIterator.of(source)))

    whole = list(plan(range(20)).build(_no_workers()))
    left = iter(range(20))  # an iterable has no state: both plans read one
    first = plan(left).build(_no_workers())
    before = [next(first) for _ in range(taken)]
    others = _leaves(first.results.stage)[1:]
    second = plan(left).build(_no_workers())
    second.set_state(through_a_file(first.get_state()))
    for stage, other in zip(_leaves(second.results.stage)[1:], others, strict=True):
        stage._items = other._items  # alike
    assert before + list(second) == whole


def _joined_copies(first, second):
    return Concurrently([first.batch(2), second], mode="async")


def _leaves(stage):
    return [leaf for source in stage.inputs for leaf in _leaves(source)] if stage.inputs else [stage]


def test_what_threads_work_on_is_begun_again(through_a_file):
    gate = Gate()

    def slow(value):
        if value == 0:
            gate()
        return value

    def build(workers, config):
        return LocalIterator.of(config["items"]).for_each(slow, max_concurrency=2)

    first = Plan(build, {"items": [0, 1]}).build(_no_workers())
    assert first.train() == 1
    gate.wait_entered()
    second = Plan(build, {"items": [2]}).build(_no_workers())
    second.set_state(through_a_file(first.get_state()))
    gate.release()
    assert sorted(second) == [0, 2]
    assert first.train() == 0


# --- learners in threads --------------------------------------------------------------------------------------------


@pytest.fixture
def learner(new_worker):
    made = []

    def make(**settings):
        made.append(LearnerThread(new_worker(), **settings))
        return made[-1]

    yield make
    for thread in made:
        thread.stop()


def test_batches_that_wait_for_a_learner_are_learned_from_later(learner, through_a_file):
    first, second = learner(num_sgd_iter=2, minibatch_buffer_size=2), learner(num_sgd_iter=2, minibatch_buffer_size=2)
    for number in range(3):
        first.inqueue.put(numbered(number, 1))
    first.start()
    told = [first.outqueue.get(20).env_steps for _ in range(5)]
    first.stop()
    left = through_a_file(first.get_state())
    assert len(left["outqueue"]) + len([place for place in left["ring"] if place]) + len(left["inqueue"]) >= 1
    second.set_state(left)
    second.start()
    assert [*told, within(20, second.outqueue.get).env_steps] == [1] * 6


def test_a_learner_that_waits_takes_up_what_it_is_given(learner):
    """A plan's learner runs already when the plan takes up its state."""
    thread = learner(num_sgd_iter=2)
    thread.start()
    thread.set_state({"inqueue": [], "ring": [[numbered(0, 4), 1]], "outqueue": []})
    assert thread.outqueue.get(20).env_steps == 4


def test_a_learner_rests_while_its_state_is_taken(new_workers):
    """The weights and the queues belong together: a batch is in them as waiting, or as learned from and told."""
    workers = new_workers(1)
    gate = Gate()
    policy = workers.local_worker().get_policy()
    learn = policy.learn_on_batch
    policy.learn_on_batch = lambda batch: (gate(), learn(batch))[1]
    threads = []

    def build(workers, config):
        thread = make_learner_thread(workers.local_worker(), config)
        thread.start()
        threads.append(thread)
        feed = LocalIterator.of([numbered(0, 1), numbered(1, 1)]).for_each(Enqueue(thread.inqueue))
        outputs = Dequeue(thread.outqueue, check=thread.is_alive)
        return Concurrently([feed, outputs], mode="async", output_indexes=[1])

    with Plan(build).build(workers) as running:
        threads[0].inqueue.put(numbered(2, 1))
        gate.wait_entered()
        states = []
        taking = threading.Thread(target=lambda: states.append(running.get_state()))
        taking.start()
        taking.join(0.1)
        assert not states  # it waits for the batch that is being learned from
        gate.release()
        taking.join(20)
        [state] = states
        updates = state["worker"]["weights_version"]
        queues = next(part for name, part in state["parts"].items() if "LearnerThread" in name)
        assert updates == len(queues["outqueue"])
        assert len(queues["outqueue"]) + len(queues["inqueue"]) == 1


def test_queues_of_users_threads(through_a_file):
    queues = []

    def build(workers, config):
        queues.append(Queue(5))
        return LocalIterator.of([1, 2]).for_each(Enqueue(queues[-1]))

    first, second = (Plan(build).build(_no_workers()) for _ in range(2))
    first.train()
    second.set_state(through_a_file(first.get_state()))
    assert queues[1].get(1.0) == 1


# --- replay nodes ---------------------------------------------------------------------------------------------------


def test_a_replay_node_goes_on_from_its_newest_state(tmp_path):
    settings = {"learning_starts": 5, "capacity": 100, "replay_batch_size": 4}
    with bind_context(NodeContext(label="replay", index=1, launch_type="test_mt", run_directory=tmp_path)):
        first = ReplayActor(**settings, checkpoint_period_s=1e-9)
        first.add_batch(numbered(0, 8))
        second = ReplayActor(**settings, checkpoint_period_s=60.0)
        assert second.stats() == {"sizes": {"default_policy": 8}, "num_added": 8}
        assert second.replay().count == 4
        assert ReplayActor(**settings).stats()["num_added"] == 0
    assert (tmp_path / "checkpoints" / "replay" / "replay-1").is_dir()
