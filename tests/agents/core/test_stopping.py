"""Services that go away for a moment are asked again; those that are gone with the program are a clean end."""

import threading
from concurrent.futures import Future

import numpy as np
import pytest

from topology.agents.core.actor_runner import ActorParts, ActorRunner
from topology.agents.core.counter import ChildCounter, Counter
from topology.agents.core.inference import ServedPolicy
from topology.agents.core.limiter import StepsLimiter
from topology.agents.core.replay import ReplayBatches
from topology.agents.core.stopping import follow
from topology.agents.core.types import Variables
from topology.agents.core.variables import VariableClient
from topology.context import StopToken, bind_context
from topology.errors import ConnectionBroken, CourierClosed, ProgramStopped, StaleError
from topology.nodes import replay
from topology.nodes.replay import ReplaySample, SampleInfo


class Dying:
    """Breaks the first calls of a service, as one does that dies while it answers."""

    def __init__(self, target, deaths):
        self.target, self.deaths, self.calls = target, deaths, 0

    def __getattr__(self, name):
        method = getattr(self.target, name)

        def call(*args):
            self.calls += 1
            if self.calls <= self.deaths:
                raise ConnectionBroken("the peer closed the connection")
            return method(*args)

        return call


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("topology.agents.core.stopping._PAUSE_S", 0.001)


def test_a_call_that_broke_is_made_again(quick, caplog):
    counter = Dying(Counter({"a": 3}), deaths=2)
    assert follow(counter.get_counts, StopToken(), what="the counter") == {"a": 3}
    assert counter.calls == 3
    assert "the counter went away and is asked again: the peer closed the connection" in caplog.text


def test_it_is_not_made_again_outside_of_a_program_or_for_other_reasons(quick):
    counter = Dying(Counter(), deaths=1)
    with pytest.raises(ConnectionBroken):
        follow(counter.get_counts, None, what="the counter")

    def stale():
        raise StaleError("stale")

    with pytest.raises(StaleError):
        follow(stale, StopToken(), what="the counter")


def test_the_stop_ends_it():
    stop = StopToken()
    counter = Dying(Counter(), deaths=10**9)
    threading.Timer(0.05, stop.set).start()
    with pytest.raises(ProgramStopped, match="while the counter was away"):
        follow(counter.get_counts, stop, what="the counter")


def test_counts_wait_for_a_counter_that_is_started_again(quick, context):
    counter = Counter()
    with bind_context(context):
        child = ChildCounter(Dying(counter, deaths=2), "actor", max_delay_s=0)
    child.increment(steps=5)
    assert counter.get_counts() == {"actor_steps": 5}
    child.close()


def test_the_limit_is_heard_of_by_a_counter_that_was_started_again(quick, remote):
    stop = StopToken()
    StepsLimiter(Dying(remote(Counter({"actor_steps": 7})), deaths=2), 7, stop=stop).run()
    assert stop.is_set()


def test_an_actor_goes_on_when_its_inference_server_dies(quick, context):
    class Server:
        def act(self, *inputs):
            return ("action",), 4, 1.0

    with bind_context(context):
        policy = ServedPolicy(Dying(Server(), deaths=1))
    assert policy(None, None, None).action == "action"
    assert policy.version == 4


class Table:
    """A replay client whose server dies: iterators that were made before give nothing more."""

    def __init__(self):
        self.made, self.set, self.broken = 0, [], True

    def batches(self, table, batch_size, *, prefetch):
        self.made += 1
        dies = self.made == 1

        class Batches:
            def __next__(self):
                if dies:
                    raise ConnectionBroken("the replay server died")
                info = SampleInfo(np.arange(2, dtype=np.uint64), np.ones(2), np.full(2, 9), np.ones(2), np.ones(2))
                return ReplaySample(info, "data")

        return Batches()

    def update_priorities(self, table, keys, priorities):
        if self.broken:
            self.broken = False
            raise ConnectionBroken("the replay server died")
        self.set.append((table, list(keys), list(priorities)))


def test_a_learner_goes_on_when_replay_dies(quick, context):
    table = Table()
    with bind_context(context):
        batches = ReplayBatches(table, table="steps", batch_size=2)
    batch = batches.sample()
    assert (batch.data, batch.table_size, table.made) == ("data", 9, 2)
    batches.update_priorities(batch.keys, np.ones(2))
    assert table.set == [("steps", [0, 1], [1.0, 1.0])]


def test_batches_close_their_client():
    with replay.Server([replay.Table.queue("steps", 4)]) as server:
        client = replay.Client(server.address)
        ReplayBatches(client, table="steps", batch_size=2).close()
        with pytest.raises(CourierClosed):
            client.server_info()


class Source:
    """A source as a courier client shows it."""

    error = None

    def __init__(self):
        self.futures = self

    def get_variables(self, names):
        answer = Future()
        answer.set_result(Variables(4, 0.0, [0])) if self.error is None else answer.set_exception(self.error)
        return answer


def test_weights_are_asked_for_again(clock, context, monkeypatch):
    source = Source()
    source.error = ConnectionBroken("the learner died")

    def wait(stop, timeout_s=None):
        source.error = None
        return False

    monkeypatch.setattr(StopToken, "wait", wait)
    with bind_context(context):
        assert VariableClient(source, ["policy"], clock=clock).update_and_wait()


def test_weights_in_use_stay_in_use_while_their_source_is_away(clock, context, caplog):
    source = Source()
    clock.now = 10.0
    with bind_context(context):
        client = VariableClient(source, ["policy"], max_age_s=60.0, clock=clock)
        client.update_and_wait()
        source.error = ConnectionBroken("the learner died")
        assert not client.update()
        assert "there are no fresh weights; going on with version 4, 10.0 s old" in caplog.text
        clock.now = 61.0
        with pytest.raises(ConnectionBroken):
            client.update()


def test_an_actor_ends_although_nobody_tells_it_that_there_are_enough_steps(context, rows):
    """The counter has died since it was asked to say so."""

    class Forgetful:
        def __init__(self):
            self.futures = self

        def when_reached(self, name, count):
            broken = Future()
            broken.set_exception(ConnectionBroken("the counter died"))
            return broken

    class Loop:
        num_environments = 1
        steps = 0

        def run_steps(self):
            self.steps += 1
            return []

    loop, counter = Loop(), Counter({"actor_steps": 100})
    weights = VariableClient(Source(), ["policy"])
    ActorRunner(
        parts=ActorParts(loop, weights),
        counter=Forgetful(),
        counts=ChildCounter(counter, "actor", max_delay_s=100.0),
        metrics=rows,
        stop=context.stop,
        max_actor_steps=200,
    ).run()
    assert loop.steps == 128
