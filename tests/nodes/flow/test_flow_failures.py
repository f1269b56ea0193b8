"""Workers that raise or go away: others go on, nothing is built anew, nothing is lost."""

import threading
from concurrent.futures import Future

import pytest

from topology.clock import Deadline
from topology.errors import ConnectionBroken
from topology.nodes.courier import Client, Server, bind_object
from topology.nodes.flow import (
    AsyncGradients,
    ConcatBatches,
    Concurrently,
    LocalReplayBuffer,
    ParallelRollouts,
    Replay,
    ReplayActor,
    StandardMetricsReporting,
    StoreToReplayBuffer,
    TrainOneStep,
    WorkerFailures,
    WorkerSet,
    from_actors,
    from_range,
)
from topology.nodes.flow.actors import Actor, results_of
from topology.nodes.flow.failures import Crew, Verdict
from topology.nodes.flow.shards import HOST_OPTIONS, release
from topology.testing import within


def train(workers, mode="bulk_sync", size=100):
    rollouts = ParallelRollouts(workers, mode=mode)
    return rollouts.combine(ConcatBatches(size)).for_each(TrainOneStep(workers))


def breaking(after, count=10**9):
    """Makes a sampler raise, after so many fragments, so many times."""

    def before(sampler):
        calls = sampler.calls = getattr(sampler, "calls", 0) + 1
        if after < calls <= after + count:
            raise ZeroDivisionError(f"fragment {calls}")

    return before


@pytest.fixture
def one_breaks(new_worker):
    """A set of two workers, the first of which raises."""
    made = []

    def new(before, **failures):
        remote = [new_worker(1, before=before), new_worker(2)]
        made.append(WorkerSet(new_worker(), remote, failures=WorkerFailures(**failures)))
        made[-1].objects = remote
        return made[-1]

    yield new
    for workers in made:
        workers.stop()


# --- workers that raise ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["bulk_sync", "async"])
def test_a_worker_that_raises_is_left_out(one_breaks, mode):
    workers = one_breaks(breaking(after=1), leave_out=True)
    plan = StandardMetricsReporting(train(workers, mode), workers, {})
    results = []

    def read_until_it_is_left_out():  # the other one may be first many times
        while not results or results[-1]["num_healthy_workers"] != 1:
            results.append(next(plan))
        results.append(next(plan))

    within(30, read_until_it_is_left_out)
    assert results[-1]["num_healthy_workers"] == 1
    assert results[0]["timesteps_total"] < results[-1]["timesteps_total"]  # counters go on
    assert len(workers.remote_workers()) == 1


def test_gradients_and_replay_go_on_with_the_others(one_breaks):
    workers = one_breaks(breaking(after=0), leave_out=True)
    assert within(30, AsyncGradients(workers).take, 3)[-1][1] == 100
    workers = one_breaks(breaking(after=2), leave_out=True)
    buffer = LocalReplayBuffer(learning_starts=300, capacity=2000, replay_batch_size=10)
    store = ParallelRollouts(workers).for_each(StoreToReplayBuffer(local_buffer=buffer))
    plan = Concurrently([store, Replay(local_buffer=buffer)], mode="round_robin", output_indexes=[1])
    assert len(within(30, plan.take, 6)) == 6
    assert buffer.num_added >= 500  # what was stored before is still there
    buffer.close()


def test_the_failure_is_raised_whole_by_default(one_breaks):
    workers = one_breaks(breaking(after=1, count=1))
    plan = train(workers)
    next(plan)
    with pytest.raises(ZeroDivisionError, match="fragment 2") as caught:
        within(30, next, plan)
    assert caught.value.__notes__[-1] == f"raised by {workers.crew.actors[0].name}"
    # The other worker's fragment is kept, and the plan goes on where it was.
    batch, _ = within(30, next, plan)
    assert batch.count == 200
    assert plan.shared_metrics.get().counters["num_steps_sampled"] == 400
    assert [worker.sampler.rows for worker in workers.objects] == [200, 200]


@pytest.mark.parametrize("hangs", [0, 1], ids=["the first hangs", "the second hangs"])
def test_a_round_hears_at_once_of_a_failure_whichever_worker_it_is(new_worker, latch, hangs):
    remote = [new_worker(1), new_worker(2)]
    workers = WorkerSet(new_worker(), remote)
    try:
        plan = train(workers)
        next(plan)
        remote[hangs].sampler.before = latch
        remote[1 - hangs].sampler.before = breaking(after=0)
        latch.close()
        with pytest.raises(ZeroDivisionError):
            within(20, next, plan)
        assert latch.waiting.acquire(timeout=20)  # it hangs
    finally:
        latch.open()
        workers.stop()


def test_a_failure_in_a_long_round_is_heard_of_when_it_happens(new_worker, latch, new_latch):
    """Also when the round has been waited for longer than its replies are read one after the other."""
    remote = [new_worker(1), new_worker(2)]
    workers = WorkerSet(new_worker(), remote)
    second = new_latch()
    remote[0].sampler.before = latch
    remote[1].sampler.before = lambda sampler: (second(sampler), 1 / 0)
    latch.close()
    second.close()
    try:
        plan = train(workers)
        heard = []
        reader = threading.Thread(target=lambda: heard.append(_error_of(plan)))
        reader.start()
        assert second.waiting.acquire(timeout=20)
        reader.join(0.1)
        assert reader.is_alive()
        second.open()
        reader.join(20)
        assert isinstance(heard[0], ZeroDivisionError)
    finally:
        latch.open()
        second.open()
        workers.stop()


def _error_of(plan):
    try:
        next(plan)
    except Exception as error:
        return error


def test_a_call_of_all_workers_hears_of_the_first_failure(new_worker, latch):
    remote = [new_worker(1, before=latch), new_worker(2, before=breaking(after=0)), new_worker(3)]
    workers = WorkerSet(new_worker(), remote)
    latch.close()
    try:
        with pytest.raises(ZeroDivisionError):
            within(20, workers.foreach_worker, "sample")
        latch.open()
        with pytest.raises(TimeoutError, match="1 of 1 workers had not answered"):
            results_of([Future()], 0.01)
    finally:
        latch.open()
        workers.stop()


def test_when_all_workers_fail_the_last_failure_is_raised(new_workers):
    workers = new_workers(2, before=breaking(after=0), failures=WorkerFailures(leave_out=True))
    with pytest.raises(ZeroDivisionError) as caught:
        within(30, next, train(workers))
    assert "last worker" in caught.value.__notes__[-1]


def test_a_worker_that_raised_recovers_and_is_asked_again(one_breaks):
    workers = one_breaks(breaking(after=1, count=2), max_restarts=2)
    plan = train(workers, size=200)
    sizes = [within(30, next, plan)[0].count for _ in range(4)]
    assert sizes == [200] * 4  # no round without it
    assert workers.objects[0].sampler.recovered == 2
    assert workers.crew.failed[workers.crew.actors[0]] == 2
    assert set(within(30, next, plan)[0]["obs"]) == {4.0}  # with the newest weights


def test_more_failures_than_are_forgiven(one_breaks):
    workers = one_breaks(breaking(after=1), max_restarts=2)
    plan = train(workers)
    next(plan)
    with pytest.raises(ZeroDivisionError):
        within(30, plan.take, 3)
    assert workers.objects[0].sampler.recovered == 2


def test_partial_batches_outlive_a_failure(one_breaks):
    workers = one_breaks(breaking(after=1), leave_out=True)
    plan = train(workers, mode="bulk_sync", size=500)  # 200, then 100 of one worker, 100 and 100
    batch, _ = within(30, next, plan)
    assert batch.count == 500
    assert plan.shared_metrics.get().counters["num_steps_sampled"] == 500


def test_stop_iteration_of_a_worker_is_an_error():
    def stop(item):
        raise StopIteration

    for gather in ("gather_sync", "gather_async"):
        with pytest.raises(RuntimeError, match="StopIteration"):
            within(20, next, getattr(from_range(4).for_each(stop), gather)())


def test_stop_iteration_of_sample_is_an_error(new_workers):
    def stop(sampler):
        raise StopIteration

    with pytest.raises(RuntimeError, match="does not end"):
        within(20, next, train(new_workers(1, before=stop)))


def test_settings_that_make_no_sense():
    for wrong in ({"max_restarts": -1}, {"patience_s": 0}):
        with pytest.raises(ValueError, match="max_restarts must be"):
            WorkerFailures(**wrong)


# --- workers that go away -------------------------------------------------------------------------------------------


class Place:
    """A worker's process, as far as a client can tell: it can go away, and come back as a new object."""

    def __init__(self, address, make):
        self._address, self._make = address, make
        self.worker = self.server = None
        self.start()

    def start(self):
        self.worker = self._make()
        self.server = Server("worker", address=self._address, **HOST_OPTIONS)
        bind_object(self.server, self.worker)
        self.server.start()

    def stop(self):
        self.server.stop()


@pytest.fixture
def places(tmp_path, new_worker):
    """Two workers that can go away, and a set of them."""
    made = []

    def new(**failures):
        both = [Place(f"unix:{tmp_path}/{i}", lambda i=i: new_worker(i + 1)) for i in range(2)]
        clients = [Client(f"unix:{tmp_path}/{i}") for i in range(2)]
        actors = [Actor(client, f"worker/{i}") for i, client in enumerate(clients)]
        workers = WorkerSet(new_worker(), actors, failures=WorkerFailures(**failures))
        made.extend([*both, *map(_Closing, clients), workers])
        return workers, both

    yield new
    for thing in reversed(made):
        thing.stop()


class _Closing:
    def __init__(self, client):
        self.stop = client.close


def test_a_worker_that_was_started_again_between_rounds_is_brought_up_to_date(places):
    workers, (first, _) = places()
    plan = train(workers, size=200)
    next(plan)
    first.stop()
    first.start()
    batch, _ = within(30, next, plan)
    assert batch.count == 200
    assert set(batch["obs"]) == {1.0}
    workers.crew.actors[0].submit("ping").result(20)  # after the weights
    assert first.worker.weights_version == 2
    assert plan.shared_metrics.get().counters["num_steps_sampled"] == 400


@pytest.mark.parametrize("mode", ["bulk_sync", "async"])
def test_a_worker_that_goes_away_is_waited_for(places, latch, mode):
    workers, (first, _) = places(max_restarts=1)
    plan = train(workers, mode, size=200)
    next(plan)
    first.worker.sampler.before = latch
    latch.close()
    ask = plan.for_each(lambda pair: pair[0])
    restart = _in_thread(
        lambda: (latch.waiting.acquire(timeout=20), first.server.stop(0.0), latch.open(), first.start())
    )
    sizes = [within(30, next, ask).count for _ in range(4)]
    restart()
    assert min(sizes) >= 200
    while not first.worker.sampler.rows:  # until the new one plays
        assert within(30, next, ask).count >= 200
    assert len(workers.remote_workers()) == 2


def _in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    return thread.join


def test_a_worker_that_does_not_come_back_is_left_out(places, latch):
    workers, (first, _) = places(max_restarts=1, patience_s=0.2, leave_out=True)
    plan = train(workers, size=100)
    next(plan)
    first.worker.sampler.before = latch
    latch.close()
    end = _in_thread(lambda: (latch.waiting.acquire(timeout=20), first.server.stop(0.0), latch.open()))
    sizes = [within(30, next, plan)[0].count for _ in range(3)]
    end()
    assert sizes == [100] * 3
    assert [actor.name for actor in workers.remote_workers()] == ["worker/1"]


def test_a_worker_that_does_not_come_back_is_left_out_though_others_always_have_something(places, latch):
    workers, (first, _) = places(max_restarts=1, patience_s=0.2, leave_out=True)
    plan = from_actors((), crew=workers.crew).gather_async(num_async=4)
    next(plan)
    first.worker.sampler.before = latch
    latch.close()
    end = _in_thread(lambda: (latch.waiting.acquire(timeout=20), first.server.stop(0.0), latch.open()))
    deadline = Deadline(30)
    while len(workers.remote_workers()) == 2 and not deadline.expired:
        within(30, next, plan)
    end()
    assert [actor.name for actor in workers.remote_workers()] == ["worker/1"]


def test_a_worker_that_goes_away_is_an_error_by_default(places, latch):
    workers, (first, _) = places()
    plan = train(workers)
    next(plan)
    first.worker.sampler.before = latch
    latch.close()
    end = _in_thread(lambda: (latch.waiting.acquire(timeout=20), first.server.stop(0.0), latch.open()))
    with pytest.raises(ConnectionBroken):
        within(30, next, plan)
    end()


def test_several_requests_that_fail_together_are_one_failure(places, latch):
    workers, (first, _) = places(max_restarts=1)
    stream = from_actors((), crew=workers.crew).gather_async(num_async=4)
    next(stream)
    first.worker.sampler.before = latch
    latch.close()
    end = _in_thread(lambda: (latch.waiting.acquire(timeout=20), first.server.stop(0.0), latch.open(), first.start()))
    assert len(within(30, stream.take, 40)) == 40
    end()
    assert workers.crew.failed == {workers.crew.actors[0]: 1}


# --- replay nodes that go away --------------------------------------------------------------------------------------


class ReplayPlace(Place):
    """The place of a replay node, which can be left in the middle of storing a batch."""

    def __init__(self, address, latch, **settings):
        self.latch = latch
        self.num_added = 0  # ever, in all that were started here
        super().__init__(address, lambda: ReplayActor(**settings))

    def start(self):
        super().start()
        store = self.worker.add_batch

        def add_batch(batch):
            self.latch(None)
            store(batch)
            self.num_added += batch.count

        self.server.bind("add_batch", add_batch)

    def stop(self):
        self.server.stop(0.0)
        self.latch.open()
        release(self.worker)

    def stop_while_it_stores(self, plan):
        """Reads the plan until the node has got a batch, and ends the node before the batch is stored."""
        self.latch.close()
        found = []
        while not self.latch.waiting.acquire(blocking=False):
            found += read(plan, 1)
        self.stop()
        return found


@pytest.fixture
def replay_places(tmp_path, new_worker, new_latch):
    """A set of workers with two replay nodes that can go away."""
    made = []

    def new(**failures):
        limits = {"learning_starts": 10, "capacity": 1000, "replay_batch_size": 10}
        both = [ReplayPlace(f"unix:{tmp_path}/replay{i}", new_latch(), **limits) for i in range(2)]
        clients = [Client(f"unix:{tmp_path}/replay{i}") for i in range(2)]
        actors = [Actor(client, f"replay/{i}") for i, client in enumerate(clients)]
        workers = WorkerSet(new_worker(0, size=10), replay_actors=actors, failures=WorkerFailures(**failures))
        made.extend([*both, *map(_Closing, clients), workers])
        return workers, both

    yield new
    for thing in reversed(made):
        thing.stop()


def store_and_replay(workers):
    store = ParallelRollouts(workers).for_each(StoreToReplayBuffer(actors=workers.replay_actors, seed=0))
    train = Replay(actors=workers.replay_actors, num_async=2).for_each(TrainOneStep(workers))
    return Concurrently([store.for_each(lambda batch: "stored"), train], mode="async")


def read(plan, count):
    return [within(30, next, plan) for _ in range(count)]


def test_a_replay_node_that_is_started_again_is_one_failure_for_all_who_use_it(replay_places):
    workers, (first, second) = replay_places(max_restarts=1)
    plan = store_and_replay(workers)
    read(plan, 40)
    first.stop_while_it_stores(plan)
    first.start()
    before = first.num_added, second.num_added
    assert any(read(plan, 10) and first.num_added > before[0] and second.num_added > before[1] for _ in range(100))
    crew = workers.replay_actors[0].crew
    assert crew.failed == {workers.replay_actors[0]: 1}
    assert len(crew.alive) == 2


def test_what_was_asked_before_a_worker_was_back_fails_of_the_same_outage(new_workers):
    """Whoever hears of it last may hear of it when another one has brought the worker back already."""
    actor = new_workers(1).remote_workers()[0]
    crew = Crew([actor], failures=WorkerFailures(max_restarts=1))
    broken = ConnectionBroken("the peer closed the connection")
    asked = crew.outages_over(actor)
    assert crew.judge(actor, broken, asked) is Verdict.RETRY
    assert crew.judge(actor, broken, asked) is Verdict.RETRY
    crew.end_outage(actor)
    assert crew.judge(actor, broken, asked) is Verdict.RETRY
    assert crew.failed == {actor: 1}
    assert crew.judge(actor, ValueError("of the worker's own code"), asked) is Verdict.RAISE
    assert crew.judge(actor, broken, crew.outages_over(actor)) is Verdict.RAISE


def test_a_replay_node_that_does_not_come_back_is_left_out_and_its_batches_go_to_the_other(replay_places):
    workers, (first, second) = replay_places(max_restarts=1, patience_s=0.2, leave_out=True)
    plan = store_and_replay(workers)
    stored = read(plan, 40).count("stored")
    crew = workers.replay_actors[0].crew
    stored += first.stop_while_it_stores(plan).count("stored")
    deadline = Deadline(30)
    while len(crew.alive) == 2 and not deadline.expired:
        stored += read(plan, 10).count("stored")
    assert crew.alive == [workers.replay_actors[1]]
    stored += read(plan, 100).count("stored")
    workers.replay_actors[1].submit("ping").result(20)  # after what was stored
    assert second.num_added + first.num_added >= 10 * stored


def test_a_replay_node_that_goes_away_is_an_error_by_default(replay_places):
    workers, (first, _) = replay_places()
    plan = store_and_replay(workers)
    read(plan, 40)
    first.stop_while_it_stores(plan)
    with pytest.raises(ConnectionBroken) as caught:
        read(plan, 200)
    assert any("replay/0" in note for note in caught.value.__notes__)
