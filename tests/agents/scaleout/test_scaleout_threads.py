"""SYNC and ASYNC with real stores, workers in threads, delays, deaths and restarts."""

import contextlib
import random
import threading

import numpy as np
import pytest
from scaleout_fakes import FakeLearner, Faults

from topology.agents.core.loop import EpisodeResult
from topology.agents.scaleout.intake import Admission, Intake
from topology.agents.scaleout.playing import Played
from topology.agents.scaleout.saving import PolicySaver
from topology.agents.scaleout.training import AsyncTraining, SyncTraining
from topology.agents.scaleout.workers import AsyncWorker, PolicyFollower, SyncWorker, WorkerParts
from topology.context import StopToken
from topology.nodes.store.memory import open_memory_backend
from topology.nodes.store.policies import open_data_store
from topology.nodes.store.rounds import RoundLedger, RoundPlan, RoundService, Unit

DEADLINE_S = 60.0


class Died(Exception):
    """A worker was killed."""


class Silent:
    """A metrics writer."""

    def write(self, **values):
        pass


class Acting:
    """Remembers the policy that was loaded last; its array says how many updates made it."""

    number = -1

    def load(self, policy):
        assert policy.arrays["w"][0] == policy.meta["updates"], "half a policy, or another one"
        self.number = policy.number


class Player:
    """Plays at an uneven pace, and dies now and then."""

    def __init__(self, acting, seed, stop, *, deaths=0.0):
        self.acting, self.stop = acting, stop
        self.random = random.Random(seed)
        self.deaths = deaths

    def play_steps(self, steps):
        self.stop.wait(self.random.choice([0.0, 0.0, 0.001, 0.005]))
        if self.random.random() < self.deaths:
            raise Died
        return Played([[None] * steps], [EpisodeResult(1.0, steps)], self.acting.number)

    def close(self):
        pass


class Workplace:
    """A memory, a directory of policies, workers that are started again when they die."""

    def __init__(self, tmp_path, trainer_of):
        self.name = f"test-{tmp_path}"
        self.directory = str(tmp_path / "policies")
        self.stop = StopToken()
        self.trainer_of = trainer_of
        self.threads, self.errors = [], []
        self.lives = 0

    def memory(self, max_steps=10_000):
        return open_memory_backend("local:", name=self.name, max_steps=max_steps)

    def store(self):
        return open_data_store(self.directory, keep=3)

    def join(self, worker):
        self.trainer_of().join(worker)

    def claim(self, worker, policy):
        return self.trainer_of().claim(worker, policy)

    def start_workers(self, count, make, *, deaths):
        for index in range(count):
            thread = threading.Thread(target=self._live, args=(index, make, deaths))
            self.threads.append(thread)
            thread.start()

    def _live(self, index, make, deaths):
        try:
            while not self.stop.is_set():
                self.lives += 1
                session = f"{index}-{self.lives}-{threading.get_ident()}"
                acting = Acting()
                parts = WorkerParts(
                    name=f"worker/{index}",
                    session=session,
                    player=Player(acting, session, self.stop, deaths=deaths),
                    acting=acting,
                    make_columns=lambda played, _: {"made_by": np.full(played.num_steps, played.oldest)},
                    memory=self.memory(),
                    store=self.store(),
                    trainer=self,
                    metrics=Silent(),
                    stop=self.stop,
                )
                with contextlib.suppress(Died):
                    make(parts).run()
                    return
        except BaseException as error:  # told to the test
            self.errors.append(error)

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
        assert not self.errors, self.errors


@pytest.mark.parametrize("deaths", [0.0, 0.1])
def test_sync_trains_every_round_on_exactly_its_policy(tmp_path, deaths):
    plan = RoundPlan(unit=Unit.STEPS, total=20, share=4)
    rounds, until = None, 30
    place = Workplace(tmp_path, lambda: rounds)

    def make_training(learner):
        nonlocal rounds
        ledger = RoundService(RoundLedger(plan, lease_s=0.05))
        saver = PolicySaver(place.store(), learner, run="run")
        training = SyncTraining(memory=place.memory(), saver=saver, learner=learner, rounds=ledger)
        training.begin()
        rounds = ledger  # workers ask it from here on
        return training

    kept = place.memory()  # a backend within a process is there as long as somebody has it
    learner = FakeLearner(Faults())
    training = make_training(learner)
    place.start_workers(3, SyncWorker, deaths=deaths)
    try:
        while training.saver.number < until:
            if training.step(1.0).saved and training.saver.number % 10 == 0:
                training.close()  # the trainer is started again
                learner = FakeLearner(Faults())
                training = make_training(learner)
        training.saver.finish("enough")
    finally:
        place.end()
        training.close()
        kept.close()
    assert len(learner.history) == training.saver.number
    for policy, batch in enumerate(learner.history):
        assert [meta["share"] for meta in batch] == [f"{policy}/{part}" for part in range(5)]
        assert {meta["policy"] for meta in batch} == {policy}


def test_async_never_waits_while_there_is_data_and_bounds_staleness(tmp_path):
    place = Workplace(tmp_path, lambda: RoundService(RoundLedger(RoundPlan(unit=Unit.STEPS, total=1, share=1), 1.0)))
    learner, receptions = FakeLearner(Faults()), []
    memory = place.memory()
    training = AsyncTraining(
        memory=memory,
        saver=PolicySaver(place.store(), learner, run="run"),
        learner=learner,
        intake=Intake(max_staleness=2),
        save_s=0.02,
        max_unsaved_steps=1000,
        on_reception=receptions.append,
    )
    fetch = memory.fetch

    def watched_fetch(**arguments):
        if arguments["timeout_s"] > 0:
            asked.append(None)
        return fetch(**arguments)

    asked = []
    memory.fetch = watched_fetch
    training.begin()

    def make(parts):
        return AsyncWorker(parts, PolicyFollower(parts.store), share_steps=4)

    place.start_workers(3, make, deaths=0.02)
    try:
        while training.saver.number < 30:
            waits, there, before = len(asked), memory.stats().waiting_steps, len(receptions)
            training.step(1.0)
            assert not there or len(asked) == waits, "it waited though there was data"
            assert not there or len(receptions) > before
        training.end()
        training.saver.finish("enough")
    finally:
        place.end()
        training.close()
    taken = [reception for reception in receptions if reception.verdict is Admission.IN]
    assert max(reception.policies for reception in taken) <= 2
    # What came while it waited, and then saved, it has taken and not learned from yet.
    keys = [(meta["session"], meta["sequence"]) for batch in (*learner.history, learner.pending) for meta in batch]
    assert len(keys) == len(set(keys)) == len(taken)
    assert len({meta["policy"] for batch in learner.history for meta in batch}) > 3, "workers never loaded policies"
