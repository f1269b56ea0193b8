"""A memory backend and a data store without threads or I/O, that break down when they are told to; and a learner."""

import itertools
import json

import numpy as np

from topology.errors import PoliciesFinished, PolicyNotFound, StoreDeadlineExceeded
from topology.nodes.store.experience import Experience
from topology.nodes.store.memory import MemoryStats
from topology.nodes.store.policies import Policy


class Crash(Exception):
    """The trainer died here."""


class Faults:
    """Says where the trainer is to die next: "before save", "after save", "before learn", ..."""

    def __init__(self):
        self.at = None

    def __call__(self, point):
        if self.at == point:
            self.at = None
            raise Crash(point)


class FakeMemory:
    def __init__(self, faults):
        self.faults = faults
        self.waiting, self.delivered, self.acknowledged = [], [], []
        self.blocked = 0
        self.waits = 0
        self._ids = itertools.count()

    def store(self, columns, meta=None, *, timeout_s=None):
        experience = Experience(dict(columns), dict(meta or {}), whole_episode=False, id=str(next(self._ids)))
        self.waiting.append(experience)
        return experience.id

    def fetch_available(self, *, max_steps=None):
        self.faults("before fetch")
        taken = []
        while self.waiting and (not taken or max_steps is None or steps_of([*taken, self.waiting[0]]) <= max_steps):
            taken.append(self.waiting.pop(0))
        self.delivered += taken
        self.faults("after fetch")
        return taken

    def fetch(self, *, num_steps=None, num_episodes=None, timeout_s=None):
        assert not self.waiting, "the trainer waits while there is data"
        self.waits += 1
        raise StoreDeadlineExceeded("nothing there")

    def acknowledge(self, experiences):
        self.faults("before acknowledge")
        gone = {experience.id for experience in experiences}
        self.acknowledged += [experience for experience in self.delivered if experience.id in gone]
        self.delivered = [experience for experience in self.delivered if experience.id not in gone]
        self.faults("after acknowledge")

    def recover(self):
        self.waiting, self.delivered = self.delivered + self.waiting, []

    def stats(self):
        waiting = sum(experience.steps for experience in self.waiting)
        return MemoryStats(None, None, None, None, waiting, None, None, self.blocked)

    def close(self):
        pass


class FakeLease:
    def renew(self):
        pass

    def release(self):
        pass


class FakeStore:
    def __init__(self, faults):
        self.faults = faults
        self.policies, self.states = [], []
        self.end = None

    def lease(self, owner, ttl_s, **_):
        self.end = None
        return FakeLease()

    def save(self, arrays, meta=None, *, state=None, lease=None):
        self.faults("before save")
        number = len(self.policies)
        self.policies.append(Policy(number, dict(arrays), dict(meta or {})))
        self.states.append(dict(state))
        self.faults("after save")
        return number

    def newest(self):
        return len(self.policies) - 1

    def load(self, number=None):
        number = self.newest() if number is None else number
        if not 0 <= number < len(self.policies):
            raise PolicyNotFound(f"no policy {number}")
        return self.policies[number]

    def load_state(self, number=None):
        return self.states[self.newest() if number is None else number]

    def wait_newer(self, than, *, timeout_s=None):
        if self.newest() > than:
            return self.policies[-1]
        if self.end is not None:
            raise PoliciesFinished(self.end)
        raise StoreDeadlineExceeded("nothing newer")

    def announce_ready(self, *, lease=None):
        pass

    def announce_finished(self, reason, *, lease=None):
        self.end = reason

    def finished(self):
        return self.end

    def close(self):
        pass


class FakeLearner:
    """Remembers what it learned from: `history` has the metas of each batch, and is saved."""

    def __init__(self, faults, *, hungry=True):
        self.faults = faults
        self.history, self.pending = [], []
        self.wants_more = hungry
        self.steps = self.episodes = self.updates = 0

    def take(self, experiences):
        self.pending += [dict(experience.meta) for experience in experiences]
        self.steps += sum(experience.steps for experience in experiences)

    def learn(self):
        if not self.pending:
            return None
        self.faults("before learn")
        self.history, self.pending = [*self.history, self.pending], []
        self.updates += 1
        self.faults("after learn")
        return {"loss": 0.5}

    def policy_arrays(self):
        return {"w": np.array([float(self.updates)])}

    def state_arrays(self):
        saved = json.dumps([self.history, self.pending, self.steps, self.updates])
        return {"all": np.frombuffer(saved.encode(), np.uint8)}

    def restore(self, arrays, state):
        self.history, self.pending, self.steps, self.updates = json.loads(state["all"].tobytes())


def steps_of(experiences):
    return sum(experience.steps for experience in experiences)


def saved_history(store):
    """What the newest policy was learned from, batch by batch."""
    return json.loads(store.states[-1]["all"].tobytes())[0]
