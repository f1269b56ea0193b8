"""The loop and the evaluator: budgets, marks, the last evaluation."""

import threading

import dm_env
import numpy as np
import pytest

from topology.agents.core.counter import ChildCounter, Counter
from topology.agents.core.evaluator import EvaluationSchedule, Evaluator
from topology.agents.core.limiter import FINAL_EVALUATIONS
from topology.agents.core.loop import EnvironmentLoop
from topology.agents.core.types import Variables
from topology.agents.core.variables import VariableClient
from topology.context import StopToken
from topology.environments import Catch


class Recorder:
    """An actor that stays where it is and notes what it sees."""

    def __init__(self):
        self.seen = []

    def select_action(self, observation):
        return 1

    def observe_first(self, timestep):
        self.seen.append("first")

    def observe(self, action, next_timestep):
        self.seen.append("last" if next_timestep.last() else "mid")

    def update(self):
        self.seen.append("update")


def test_a_loop_shows_every_step_and_returns_the_sum():
    actor = Recorder()
    result = EnvironmentLoop(Catch(rows=3, seed=0), actor).run_episode()
    assert actor.seen == ["first", "mid", "update", "last", "update"]
    assert (abs(result.episode_return), result.episode_length) == (1.0, 2)


def test_a_loop_that_is_stopped_abandons_the_episode_and_begins_anew():
    actor = Recorder()
    loop = EnvironmentLoop(Catch(seed=0), actor, should_stop=lambda: actor.seen == ["first", "mid", "update"])
    assert loop.run_episode() is None
    actor.seen.append("go on")
    loop.run_episode()
    assert actor.seen.count("first") == 2


def test_a_loop_can_be_driven_step_by_step():
    loop = EnvironmentLoop(Catch(rows=3, seed=0), Recorder())
    results = [loop.run_step() for _ in range(4)]
    assert [result is None for result in results] == [True, False, True, False]


class Learner:
    def __init__(self):
        self.version = 0

    def get_variables(self, names):
        return Variables(self.version, 0.0, [0])


@pytest.fixture
def parts(rows, remote):
    """An evaluator, and everything around it."""

    class Parts:
        counter, learner, stop, lines = Counter(), Learner(), StopToken(), []
        evaluated = threading.Semaphore(0)
        environment = Catch(rows=3, seed=0)

        def report(self, line):
            self.lines.append(line)
            self.evaluated.release()

        def make(self, **schedule):
            return Evaluator(
                loop=EnvironmentLoop(self.environment, Recorder(), should_stop=self.stop.is_set),
                client=VariableClient(self.learner, ["policy"], update_period=None),
                counter=remote(self.counter),
                counts=ChildCounter(self.counter, "evaluator", max_delay_s=0),
                schedule=EvaluationSchedule(**{"period_steps": 100, "episodes": 3, "final_episodes": 7, **schedule}),
                metrics=rows,
                stop=self.stop,
                report=self.report,
            )

    return Parts()


def test_it_evaluates_at_the_start_at_each_period_and_at_the_limit(parts, rows, run_in_thread):
    done = run_in_thread(parts.make(limit=250).run)
    assert parts.evaluated.acquire(timeout=10)
    for steps, version in ((120, 4), (100, 5), (40, 6)):
        parts.learner.version = version
        parts.counter.increment(actor_steps=steps)
        assert parts.evaluated.acquire(timeout=10)
    assert parts.counter.when_reached(FINAL_EVALUATIONS, 1).result(10)["evaluator_episodes"] == 3 + 3 + 3 + 7
    assert not done.done()
    parts.stop.set()
    done.result(10)
    keys = ("actor_steps", "learner_steps", "evaluator_episodes", "evaluator_final")
    assert [tuple(row[key] for key in keys) for row in rows] == [
        (0, 0, 3, 0),
        (120, 4, 3, 0),
        (220, 5, 3, 0),
        (260, 6, 7, 1),
    ]
    assert all(-1 <= row["evaluator_return"] <= 1 for row in rows)
    assert all(row["weights_age_s"] > 1e9 for row in rows), "its source gives weights of 1970"


def test_weights_that_are_not_newer_are_not_evaluated_again(parts, rows, run_in_thread):
    run_in_thread(parts.make(limit=300).run)
    assert parts.evaluated.acquire(timeout=10)
    parts.counter.increment(actor_steps=150)
    parts.counter.increment(actor_steps=150)
    assert parts.counter.when_reached(FINAL_EVALUATIONS, 1).result(10)
    assert [row["evaluator_final"] for row in rows] == [0, 1]
    parts.stop.set()


def test_between_evaluations_it_takes_no_steps(parts, rows, run_in_thread):
    run_in_thread(parts.make().run)
    assert parts.evaluated.acquire(timeout=10)
    parts.counter.increment(actor_steps=99)
    assert parts.counter.get_counts()["evaluator_episodes"] == 3
    parts.stop.set()
    parts.counter.increment(actor_steps=1)


def test_a_stop_in_the_middle_leaves_no_half_evaluation(parts, rows):
    parts.stop.set()
    parts.make().run()
    assert rows == []


@pytest.mark.parametrize("fails", [False, True])
def test_its_environment_is_closed_however_it_ends(parts, monkeypatch, fails):
    closed = []
    monkeypatch.setattr(parts.environment, "close", lambda: closed.append(True), raising=False)
    if fails:
        monkeypatch.setattr(parts.learner, "get_variables", {}.__getitem__)
        with pytest.raises(TypeError):
            parts.make().run()
    else:
        parts.stop.set()
        parts.make().run()
    assert closed == [True]


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(ValueError, match="episodes of an evaluation must be at least 1, got 0"):
        EvaluationSchedule(period_steps=1, episodes=0, final_episodes=1)


def test_rewards_that_are_arrays_are_summed_as_numbers():
    class Once(dm_env.Environment):
        def reset(self):
            return dm_env.restart(0)

        def step(self, action):
            return dm_env.termination(np.float32(2.0), 0)

        def observation_spec(self): ...

        def action_spec(self): ...

    assert EnvironmentLoop(Once(), Recorder()).run_episode() == (2.0, 1)
