"""Servers that stay away, and such that come back and have lost everything."""

import functools
import json
import threading
from types import SimpleNamespace

import pytest
from scaleout_fakes import FakeLearner, FakeStore

import topology as lp
from topology.agents.core.loop import EpisodeResult
from topology.agents.core.metrics import MetricsWriter
from topology.agents.scaleout.config import ScaleOutPPOConfig
from topology.agents.scaleout.evaluator import PolicyEvaluator
from topology.agents.scaleout.patience import patience_ends
from topology.agents.scaleout.program import ScaleOutAgent
from topology.agents.scaleout.saving import PolicySaver
from topology.agents.scaleout.stores import has_trained
from topology.agents.scaleout.trainer import Trainer
from topology.agents.scaleout.workers import PolicyFollower
from topology.context import StopToken
from topology.errors import LeaseHeld, StoreDataError, StoreError, StoreFull, StoreUnavailable

DEADLINE_S = 60.0


class ForgetfulStore(FakeStore):
    """Has policy 3; has nothing when somebody asks for a newer one; and then has policy 0 and the end."""

    def __init__(self):
        super().__init__(lambda point: None)
        self.asked = []
        self.asked_anew = threading.Event()
        self.save_all(4)

    def save_all(self, count):
        for _ in range(count):
            self.save({}, state={})

    def wait_newer(self, than, *, timeout_s=None):
        self.asked.append(than)
        if than == 3:
            self.policies.clear()
        elif than == -1 and len(self.asked) > 1:
            self.save_all(1)
            self.announce_finished("over")
            self.asked_anew.set()
        return super().wait_newer(than, timeout_s=timeout_s)


def test_a_worker_follows_numbers_that_begin_anew():
    store = ForgetfulStore()
    follower = PolicyFollower(store)
    assert follower.begin().number == 3
    try:
        assert store.asked_anew.wait(DEADLINE_S), "it waits for numbers that will not come"
        assert follower.finished.wait(DEADLINE_S)
        assert follower.take().number == 0
    finally:
        follower.close()


def test_the_evaluator_follows_numbers_that_begin_anew():
    evaluated = []
    player = SimpleNamespace(
        play_episodes=lambda count: SimpleNamespace(episodes=[EpisodeResult(1.0, 1)] * count), close=lambda: None
    )
    PolicyEvaluator(
        player=player,
        acting=SimpleNamespace(load=lambda policy: evaluated.append(policy.number)),
        store=ForgetfulStore(),
        trainer=SimpleNamespace(join=lambda worker: None, finish=lambda reason: None),
        period_s=0.0,
        episodes=1,
        final_episodes=1,
        target_return=None,
        metrics=SimpleNamespace(write=lambda **row: None),
        report=lambda text: None,
        stop=StopToken(),
    ).run()
    assert evaluated == [3, 0, 0]  # the last one is the final evaluation


class HeldStore(FakeStore):
    """Its lease is another trainer's; or it fails as it is told to."""

    def __init__(self, error=None):
        super().__init__(lambda point: None)
        self.error, self.released, self.closed = error, 0, 0

    def lease(self, owner, ttl_s, **_):
        if self.error is None:
            raise LeaseHeld("by another one")
        return self

    def announce_finished(self, reason, *, lease=None):
        raise self.error

    def release(self):
        self.released += 1
        raise self.error

    def close(self):
        self.closed += 1


def test_a_lease_that_is_renewed_while_it_is_watched_is_final():
    saver = PolicySaver(HeldStore(), FakeLearner(lambda point: None), run="mine")
    with pytest.raises(LeaseHeld) as told:
        saver.begin()
    assert told.value.is_final


@pytest.mark.parametrize(("error", "tries"), [(StoreUnavailable, 0), (StoreFull, 0), (StoreError, 1)])
def test_what_was_waited_for_in_vain_is_not_waited_for_at_the_end(error, tries):
    store = HeldStore(error("no"))
    saver = PolicySaver(store, FakeLearner(lambda point: None), run="mine")
    saver.begin()
    with pytest.raises(error):
        saver.finish("over")
    saver.close()
    saver.close()
    assert (store.released, store.closed) == (tries, 2)


@pytest.mark.parametrize(("error", "final"), [(StoreUnavailable, True), (StoreFull, True), (StoreDataError, False)])
def test_what_was_waited_for_in_vain_is_final(error, final):
    with pytest.raises(error) as told, patience_ends():
        raise error("no")
    assert told.value.is_final is final
    assert not error.is_final


def test_a_run_without_its_server_ends_when_it_has_waited_once(tmp_path):
    config = ScaleOutPPOConfig(environment="catch", data_store="redis://127.0.0.1:1/0", server_patience_s=0.2)
    pytest.importorskip("redis", reason="redis-py is not installed")
    agent = ScaleOutAgent(config, "topology.agents.scaleout.ppo:PPO")
    program = lp.Program("one-worker")
    with program.group("worker"):
        program.add_node(lp.PyClassNode(functools.partial(agent.worker, 0), None, None))
    run = lp.launch(program, "test_mt", run_directory=tmp_path, restarts={"worker": 5}, serialize_py_nodes=False)
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1/0"):
        run.wait(DEADLINE_S)
    run.stop()
    nodes = json.loads((tmp_path / "run.json").read_text())["nodes"]
    assert [node["restarts"] for node in nodes] == [0]


@pytest.mark.parametrize(("found", "measured", "told"), [(0, True, 1), (0, False, 0), (1, True, 0)])
def test_who_has_trained_and_finds_no_policy_says_so(tmp_path, caplog, found, measured, told):
    context = SimpleNamespace(run_directory=tmp_path, label="trainer", index=0)
    if measured:
        MetricsWriter(context).write(actor_steps=1)
    store = FakeStore(lambda point: None)
    for _ in range(found):
        PolicySaver(store, FakeLearner(lambda point: None), run="mine").begin()
    learner = FakeLearner(lambda point: None)
    saver = PolicySaver(store, learner, run="mine")
    Trainer(
        training=SimpleNamespace(begin=saver.begin, saver=saver),
        learner=learner,
        rounds=None,
        reporter=SimpleNamespace(begin=lambda steps: None),
        max_steps=None,
        stops_program=False,
        report=lambda text: None,
        stop=StopToken(),
        has_trained=has_trained(context),
    )
    assert len([record for record in caplog.records if "begins anew" in record.message]) == told
