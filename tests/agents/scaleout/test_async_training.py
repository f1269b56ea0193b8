"""ASYNC: the trainer never waits while there is data; staleness is measured and bounded; nothing is lost or doubled."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from scaleout_fakes import Crash, FakeLearner, FakeMemory, FakeStore, Faults, saved_history

from topology.agents.scaleout.intake import Admission, Intake
from topology.agents.scaleout.saving import PolicySaver
from topology.agents.scaleout.training import AsyncTraining
from topology.errors import LeaseHeld
from topology.testing import ManualClock

SESSIONS = ("a", "b", "c")
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
SAVE_S = 2.0


class Run:
    def __init__(self, max_staleness=None, max_unsaved_steps=1000):
        self.faults = Faults()
        self.memory, self.store = FakeMemory(self.faults), FakeStore(self.faults)
        self.clock = ManualClock()
        self.max_staleness, self.max_unsaved_steps = max_staleness, max_unsaved_steps
        self.receptions = []
        self.sequences = dict.fromkeys(SESSIONS, 0)
        self.start()

    def start(self):
        self.learner = FakeLearner(self.faults)
        self.intake = Intake(self.max_staleness)
        self.training = AsyncTraining(
            memory=self.memory,
            saver=PolicySaver(self.store, self.learner, run="run", clock=self.clock),
            learner=self.learner,
            intake=self.intake,
            save_s=SAVE_S,
            max_unsaved_steps=self.max_unsaved_steps,
            on_reception=self.receptions.append,
            clock=self.clock,
        )
        self.training.begin()

    def step(self):
        try:
            return self.training.step(0.0)
        except Crash:
            self.restart()
            return None

    def restart(self):
        try:
            self.start()
        except Crash:
            self.start()

    def play(self, session, policy, times=1):
        self.sequences[session] += 1
        for _ in range(times):
            meta = {"session": session, "sequence": self.sequences[session], "policy": policy}
            self.memory.store({"x": np.zeros(4)}, meta)


def key(meta):
    return meta["session"], meta["sequence"]


class AsyncMachine(RuleBasedStateMachine):
    @initialize(bound=st.none() | st.integers(0, 3), most=st.sampled_from([4, 16, 1000]))
    def begin(self, bound, most):
        self.bound = bound
        self.run = Run(bound, most)
        self.policies = dict.fromkeys(SESSIONS, 0)

    @rule(session=st.sampled_from(SESSIONS))
    def load(self, session):
        self.policies[session] = self.run.store.newest()

    @rule(session=st.sampled_from(SESSIONS), times=st.integers(1, 2))
    def play(self, session, times):
        self.run.play(session, self.policies[session], times)

    @rule(seconds=st.sampled_from([0.5, SAVE_S]))
    def wait(self, seconds):
        self.run.clock.advance(seconds)

    @rule()
    def train(self):
        self.run.step()  # the fake memory fails when it is waited for while it has something

    @rule(point=st.sampled_from(POINTS))
    def train_and_die(self, point):
        self.run.faults.at = point
        self.run.step()
        self.run.faults.at = None

    @rule()
    def kill_trainer(self):
        self.run.restart()

    @invariant()
    def each_counts_once(self):
        keys = [key(meta) for batch in saved_history(self.run.store) for meta in batch]
        assert len(keys) == len(set(keys))
        for session in SESSIONS:
            order = [number for name, number in keys if name == session]
            assert order == sorted(order)

    @invariant()
    def what_is_gone_was_learned_from_or_was_to_be_dropped(self):
        learned = {key(meta) for batch in saved_history(self.run.store) for meta in batch}
        there = {key(e.meta) for e in (*self.run.memory.waiting, *self.run.memory.delivered)}
        lost = {key(e.meta) for e in self.run.memory.acknowledged} - learned - there
        assert not lost or self.bound is not None, f"{lost} were acknowledged and never learned from"

    @invariant()
    def staleness_is_bounded(self):
        taken = [reception for reception in self.run.receptions if reception.verdict is Admission.IN]
        assert self.bound is None or all(reception.policies <= self.bound for reception in taken)
        assert all(reception.seconds >= 0 for reception in taken)
        assert all(reception.policies or not reception.seconds for reception in taken)

    def teardown(self):
        """Whatever happened: what is played with the newest policy is learned from, and a policy comes of it."""
        if not hasattr(self, "run"):
            return
        self.run.step()
        before = self.run.store.newest()
        for session in SESSIONS:
            self.run.play(session, before)
        self.run.step()
        self.run.clock.advance(SAVE_S)
        self.run.step()
        assert self.run.store.newest() > before
        learned = {key(meta) for batch in saved_history(self.run.store) for meta in batch}
        assert all((session, self.run.sequences[session]) in learned for session in SESSIONS) or self.bound == 0


AsyncMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAsync = AsyncMachine.TestCase


def test_a_policy_is_saved_by_the_clock_and_only_when_there_is_something_new():
    run = Run()
    run.clock.advance(10 * SAVE_S)
    run.step()
    assert run.store.newest() == 0
    run.play("a", 0)
    run.step()
    assert run.store.newest() == 1
    run.clock.advance(SAVE_S / 2)
    run.play("a", 1)
    run.step()
    assert run.store.newest() == 1
    run.clock.advance(SAVE_S / 2)
    run.step()
    assert run.store.newest() == 2


def test_what_fills_the_memory_is_saved_before_its_time():
    run = Run(max_unsaved_steps=8)
    run.play("a", 0)
    run.step()
    assert run.store.newest() == 0
    assert run.memory.delivered
    run.play("a", 0)
    run.step()
    assert run.store.newest() == 1
    assert not run.memory.delivered


def test_a_learner_with_work_is_not_given_more():
    run = Run()
    run.play("a", 0)
    run.step()
    run.learner.wants_more = False
    run.learner.pending = [{"session": "x", "sequence": 0}]
    run.play("a", 0)
    outcome = run.step()
    assert outcome.learned is not None
    assert len(run.memory.waiting) == 1
    assert run.memory.waits == 0


def test_staleness_is_counted_in_policies_and_in_seconds():
    run = Run()
    for _ in range(3):
        run.play("a", 0)
        run.step()
        run.clock.advance(SAVE_S)
        run.step()
    assert run.store.newest() == 3
    run.receptions.clear()
    run.clock.advance(0.5)
    run.play("b", 1)
    run.play("b", 3)
    run.step()
    stale, fresh = run.receptions
    assert (stale.policies, stale.seconds) == (2, SAVE_S + 0.5)
    assert (fresh.policies, fresh.seconds) == (0, 0.0)


def test_what_is_too_old_is_dropped_counted_and_frees_the_memory():
    run = Run(max_staleness=0)
    run.play("a", 0)
    run.step()
    run.clock.advance(SAVE_S)
    run.step()
    run.play("a", 0)
    run.step()
    assert run.training.counts() == {"dropped_duplicates": 0, "dropped_stale": 1}
    assert not run.memory.delivered
    assert run.store.newest() == 1


@pytest.mark.parametrize("point", POINTS)
def test_the_training_goes_on_wherever_the_trainer_dies(point):
    run = Run()
    run.faults.at = point
    run.play("a", 0)
    run.clock.advance(SAVE_S)
    for _ in range(4):
        run.step()
        run.clock.advance(SAVE_S)
    assert run.faults.at is None, "it did not die"
    assert [key(meta) for batch in saved_history(run.store) for meta in batch] == [("a", 1)]
    assert not run.memory.delivered
    assert not run.memory.waiting


class LeasedStore(FakeStore):
    """Whose lease a trainer of another run has left behind."""

    def __init__(self):
        super().__init__(Faults())
        self.asked = []

    def lease(self, owner, ttl_s, *, timeout_s=0.0):
        self.asked.append((ttl_s, timeout_s))
        if timeout_s <= ttl_s:
            raise LeaseHeld("'gone' holds the lease")
        return super().lease(owner, ttl_s)


def test_a_lease_that_a_dead_trainer_has_left_is_waited_for(caplog):
    store = LeasedStore()
    saver = PolicySaver(store, FakeLearner(Faults()), run="run", clock=ManualClock())
    saver.begin()
    assert [timeout_s > ttl_s for ttl_s, timeout_s in store.asked] == [False, True]
    assert "'gone' holds the lease" in caplog.text
    saver.close()
