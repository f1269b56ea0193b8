"""Workers of plans that are quick and can be followed: a policy with one number, a sampler that counts."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from topology.nodes.flow import Episode, LocalIterator, RolloutWorker, SampleBatch, WorkerSet


class NumberPolicy:
    """Its weight is one number, its gradient the mean of the observations; `learn_on_batch` adds 1."""

    def __init__(self, weight=0.0):
        self.weight = weight
        self.target = weight
        self.learned = []
        self.global_vars = {}

    def get_weights(self):
        return self.weight

    def set_weights(self, weights):
        self.weight = weights

    def learn_on_batch(self, batch):
        self.learned.append(batch.count)
        self.weight += 1
        return {"learner_stats": {"loss": 1.0, "rows": batch.count}}

    def compute_gradients(self, batch):
        return {"w": [np.mean(batch["obs"]), None]}, {"learner_stats": {"grad_rows": batch.count}}

    def apply_gradients(self, gradients):
        self.weight += float(gradients["w"][0])

    def update_target(self):
        self.target = self.weight

    def on_global_vars_update(self, global_vars):
        self.global_vars = dict(global_vars)

    def get_state(self):
        return {"weight": self.weight, "target": self.target}

    def set_state(self, state):
        self.weight, self.target = state["weight"], state["target"]


class CountingSampler:
    """Fragments whose observations are the policy's weight, and whose rows are numbered on; an episode in each."""

    def __init__(self, policy, size=100, before=None):
        self.policy = policy
        self.size = size
        self.before = before
        self.rows = 0
        self.recovered = 0
        self.closed = False
        self._episodes = []

    def sample(self):
        if self.before is not None:
            self.before(self)
        first, self.rows = self.rows, self.rows + self.size
        self._episodes.append(Episode(float(self.size), self.size))
        rows = np.arange(first, self.rows)
        return SampleBatch(obs=np.full(self.size, self.policy.weight, float), t=rows, rewards=np.ones(self.size))

    def drain_episodes(self):
        episodes, self._episodes = self._episodes, []
        return episodes

    def recover(self):
        self.recovered += 1

    def close(self):
        self.closed = True


def make_worker(index=0, size=100, before=None, policy=None):
    policy = policy or NumberPolicy()
    return RolloutWorker(policy, CountingSampler(policy, size, before), worker_index=index)


@pytest.fixture
def new_worker():
    return make_worker


@pytest.fixture
def new_workers():
    """Makes sets of workers that are served in this process; ends them with the test."""
    made = []

    def new(count=2, size=100, before=None, **settings):
        remote = [make_worker(i + 1, size, before) for i in range(count)]
        workers = WorkerSet(make_worker(0, size), remote, **settings)
        workers.objects = remote
        made.append(workers)
        return workers

    yield new
    for workers in made:
        workers.stop()


@pytest.fixture
def in_plan():
    """Runs a function as an operator of a plan, where counters are at hand."""

    def run(function, *items):
        return LocalIterator.of(list(items)).for_each(function).take(len(items))

    return run


class Latch:
    """A gate of samplers that can be closed again."""

    def __init__(self):
        self._open = threading.Event()
        self._open.set()
        self.waiting = threading.Semaphore(0)

    def close(self):
        self._open.clear()

    def open(self):
        self._open.set()

    def __call__(self, sampler):
        if not self._open.is_set():
            self.waiting.release()
            assert self._open.wait(30)


@pytest.fixture
def new_latch():
    made = []
    yield lambda: made.append(Latch()) or made[-1]
    for each in made:
        each.open()


@pytest.fixture
def latch(new_latch):
    return new_latch()
