"""SYNC: every batch was made by exactly its policy, every share counts once, whatever dies and whatever comes twice."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from scaleout_fakes import Crash, FakeLearner, FakeMemory, FakeStore, Faults, saved_history

from topology.agents.scaleout.saving import PolicySaver
from topology.agents.scaleout.training import SyncTraining
from topology.errors import StoreFull
from topology.nodes.store.rounds import RoundLedger, RoundPlan, RoundService, Unit
from topology.testing import ManualClock

WORKERS = ("worker/0", "worker/1", "worker/2")
POINTS = (
    "before fetch",
    "after fetch",
    "before learn",
    "after learn",
    "before save",
    "after save",
    "before acknowledge",
    "after acknowledge",
)
LEASE_S = 10.0


class Run:
    """A trainer that can be killed, between a memory and a store that cannot."""

    def __init__(self, shares=3, clock=None):
        self.faults = Faults()
        self.memory, self.store = FakeMemory(self.faults), FakeStore(self.faults)
        self.clock = clock or ManualClock()
        self.plan = RoundPlan(unit=Unit.STEPS, total=4 * shares, share=4)
        self.start()

    def start(self):
        learner = FakeLearner(self.faults)
        self.rounds = RoundService(RoundLedger(self.plan, LEASE_S), clock=self.clock)
        saver = PolicySaver(self.store, learner, run="run", clock=self.clock)
        self.training = SyncTraining(
            memory=self.memory, saver=saver, learner=learner, rounds=self.rounds, clock=self.clock
        )
        self.training.begin()

    def step(self):
        """One step; a trainer that dies in it is started again, also if it dies while it begins."""
        try:
            self.training.step(0.0)
        except Crash:
            self.restart()

    def restart(self):
        try:
            self.start()
        except Crash:
            self.start()

    def deliver(self, share, policy):
        self.memory.store({"x": np.zeros(share.amount)}, {"share": share.id, "policy": policy})


class Worker:
    policy, share = -1, None


class SyncMachine(RuleBasedStateMachine):
    @initialize(shares=st.integers(1, 4))
    def begin(self, shares):
        self.shares = shares
        self.run = Run(shares)
        self.workers = {name: Worker() for name in WORKERS}

    @rule(name=st.sampled_from(WORKERS))
    def claim(self, name):
        worker = self.workers[name]
        if worker.share is not None:
            return
        claim = self.run.rounds.claim(name, worker.policy)
        if claim.share is None and claim.wait_s is None:
            worker.policy = self.run.store.load(claim.policy).number
            claim = self.run.rounds.claim(name, worker.policy)
        worker.share = claim.share
        if claim.share is None:
            worker.policy = self.run.store.newest()
        else:
            assert claim.share.policy == worker.policy, "a share of another round than that of the worker's policy"

    @rule(name=st.sampled_from(WORKERS), times=st.integers(1, 2))
    def deliver(self, name, times):
        """However late: others may have done it meanwhile, and the round may be over."""
        worker = self.workers[name]
        if worker.share is not None:
            for _ in range(times):
                self.run.deliver(worker.share, worker.policy)
            worker.share = None

    @rule(name=st.sampled_from(WORKERS), joins=st.booleans())
    def die(self, name, joins):
        self.workers[name] = Worker()
        if joins:
            self.run.rounds.join(name)

    @rule(seconds=st.sampled_from([1.0, LEASE_S / 2, LEASE_S]))
    def wait(self, seconds):
        self.run.clock.advance(seconds)

    @rule()
    def train(self):
        self.run.step()

    @rule(point=st.sampled_from(POINTS))
    def train_and_die(self, point):
        self.run.faults.at = point
        self.run.step()
        self.run.faults.at = None

    @rule()
    def kill_trainer(self):
        self.run.restart()

    @invariant()
    def every_batch_is_exactly_its_round(self):
        history = saved_history(self.run.store)
        assert len(history) == self.run.store.newest()
        for policy, batch in enumerate(history):
            assert [meta["share"] for meta in batch] == [f"{policy}/{index}" for index in range(self.shares)]
            assert {meta["policy"] for meta in batch} == {policy}

    @invariant()
    def what_is_gone_was_learned_from_or_of_no_use(self):
        kept = {meta["share"] for batch in saved_history(self.run.store) for meta in batch}
        missing = {meta.meta["share"] for meta in self.run.memory.acknowledged} - kept
        there = {meta.meta["share"] for meta in (*self.run.memory.waiting, *self.run.memory.delivered)}
        assert missing <= there, "a share was acknowledged, and neither learned from nor there in another copy"

    @invariant()
    def only_what_the_round_needs_is_kept(self):
        assert len(self.run.memory.delivered) == self.run.rounds.stats.counted

    def teardown(self):
        """One worker that lives is enough to go on, whatever happened before."""
        if not hasattr(self, "run"):
            return
        before = self.run.store.newest()
        for _ in range(8 * self.shares + 8):
            self.run.clock.advance(LEASE_S)
            self.claim(WORKERS[0])
            self.deliver(WORKERS[0], 1)
            self.run.step()
        assert self.run.store.newest() >= before + 2


SyncMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSync = SyncMachine.TestCase


@pytest.mark.parametrize("point", POINTS)
def test_a_round_is_gone_on_with_wherever_the_trainer_dies(point):
    run = Run(shares=2)
    shares = [run.rounds.claim("a", 0).share, run.rounds.claim("b", 0).share]
    run.faults.at = point
    for share in shares:
        run.deliver(share, 0)
        run.step()
    run.step()
    assert run.faults.at is None, "it did not die"
    assert run.store.newest() == 1
    assert [meta["share"] for meta in saved_history(run.store)[0]] == ["0/0", "0/1"]
    assert not run.memory.delivered
    assert run.training.counts()["dropped_duplicates"] == 0


def test_a_trainer_that_is_started_again_grants_only_what_is_not_there():
    run = Run(shares=3)
    claims = [run.rounds.claim("a", 0).share for _ in range(2)]
    run.deliver(claims[0], 0)
    run.step()  # counted, not acknowledged
    run.deliver(claims[1], 0)  # not even fetched
    run.restart()
    assert run.rounds.claim("b", 0).share.id == "0/2"
    assert run.rounds.claim("b", 0).share is None


def test_a_round_is_learned_from_in_the_order_of_its_shares():
    run = Run(shares=3)
    shares = [run.rounds.claim("a", 0).share for _ in range(3)]
    for share in reversed(shares):
        run.deliver(share, 0)
    run.step()
    assert [meta["share"] for meta in saved_history(run.store)[0]] == ["0/0", "0/1", "0/2"]


def test_workers_that_wait_for_room_in_a_round_that_needs_theirs_are_an_error():
    run = Run()
    run.deliver(run.rounds.claim("a", 0).share, 0)
    run.step()
    run.memory.blocked = 2
    with pytest.raises(StoreFull, match="memory_max_steps"):
        run.training.step(0.0)


def test_what_is_left_when_the_training_is_over_is_dropped():
    run = Run(shares=2)
    run.deliver(run.rounds.claim("a", 0).share, 0)
    run.step()  # held, for a round that will never be whole
    run.deliver(run.rounds.claim("a", 0).share, 0)
    run.training.discard()
    run.training.discard()
    assert not run.memory.delivered
    assert not run.memory.waiting
    assert len(run.memory.acknowledged) == 2
