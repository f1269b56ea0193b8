"""An actor as a node: it ends at the limit, at the stop, and closes what it holds."""

import threading

import pytest

from topology.agents.core.actor_runner import ActorParts, ActorRunner
from topology.agents.core.counter import ChildCounter, Counter
from topology.agents.core.loop import EnvironmentLoop
from topology.agents.core.stopping import until_stopped
from topology.agents.core.types import Variables
from topology.agents.core.variables import VariableClient
from topology.context import StopToken
from topology.environments import Catch
from topology.errors import ProgramStopped, ReplayError


class Staying:
    """An actor that stays where it is; `on_step` is called at each of its steps."""

    def __init__(self, on_step=lambda: None):
        self.on_step = on_step

    def select_action(self, observation):
        return 1

    def observe_first(self, timestep):
        pass

    def observe(self, action, next_timestep):
        self.on_step()

    def update(self):
        pass


class Source:
    def get_variables(self, names):
        return Variables(4, 0.0, [0])


class Closing:
    closed = False

    def close(self):
        self.closed = True


@pytest.fixture
def make(rows, remote, clock):
    def make(counter, actor, *, stop=None, limit=None, source=None, closing=None):
        environment = Catch(seed=0)
        client = VariableClient(source or Source(), ["policy"], clock=clock)
        return ActorRunner(
            parts=ActorParts(EnvironmentLoop(environment, actor), client, (closing or Closing(), environment)),
            counter=remote(counter),
            counts=ChildCounter(counter, "actor", max_delay_s=0),
            metrics=rows,
            stop=stop or StopToken(),
            max_actor_steps=limit,
            clock=clock,
        )

    return make


def test_it_ends_when_all_actors_together_have_made_enough_steps(make):
    counter, closing = Counter({"actor_steps": 80}), Closing()
    make(counter, Staying(), limit=100, closing=closing).run()
    assert counter.get_counts() == {"actor_steps": 100, "actor_episodes": 2}
    assert closing.closed


def test_it_makes_no_step_when_there_are_enough_already(make):
    counter = Counter({"actor_steps": 100})
    make(counter, Staying(), limit=100).run()
    assert counter.get_counts() == {"actor_steps": 100}


def test_it_ends_with_the_program(make):
    counter, stop = Counter(), StopToken()
    steps = iter(range(1000))
    make(counter, Staying(lambda: next(steps) == 30 and stop.set()), stop=stop).run()
    assert counter.get_counts() == {"actor_steps": 31, "actor_episodes": 3}


def test_a_wait_that_the_stop_ends_is_a_clean_end(make):
    def blocked():
        raise ProgramStopped("while it waited for room in replay")

    closing = Closing()
    make(Counter(), Staying(blocked), closing=closing).run()
    assert closing.closed


def test_a_service_that_is_gone_first_means_the_stop_is_near(make):
    stop = StopToken()

    def gone():
        threading.Timer(0.01, stop.set).start()
        raise ReplayError("the replay server was stopped")

    make(Counter(), Staying(gone), stop=stop).run()
    assert stop.is_set()


def test_a_service_that_is_gone_without_a_stop_is_a_failure():
    with pytest.raises(ReplayError), until_stopped(StopToken(), grace_s=0.01):
        raise ReplayError("gone")


def test_other_failures_are_raised_and_all_is_closed(make):
    def broken():
        raise RuntimeError("broken environment")

    closing = Closing()
    with pytest.raises(RuntimeError, match="broken environment"):
        make(Counter(), Staying(broken), closing=closing).run()
    assert closing.closed


def test_what_cannot_be_closed_keeps_nothing_else_from_being_closed(rows, remote):
    class Stuck:
        def close(self):
            raise OSError("no window to close")

    def broken():
        raise RuntimeError("broken environment")

    counter, closing, environment = Counter(), Closing(), Catch(seed=0)
    runner = ActorRunner(
        parts=ActorParts(
            EnvironmentLoop(environment, Staying(broken)),
            VariableClient(Source(), ["policy"]),
            (Stuck(), closing, environment),
        ),
        counter=remote(counter),
        counts=ChildCounter(counter, "actor", max_delay_s=0),
        metrics=rows,
        stop=StopToken(),
    )
    with pytest.raises(OSError, match="no window to close") as error:
        runner.run()
    assert closing.closed
    assert str(error.value.__context__) == "broken environment"


def test_it_reports_averages_and_the_age_of_its_weights(make, rows, clock):
    counter, steps = Counter(), iter(range(1, 10_000))
    make(counter, Staying(lambda: clock.advance(0.1) if next(steps) % 9 else None), limit=30).run()
    assert rows
    row = rows[0]
    assert row["episode_length"] == 9
    assert -1 <= row["episode_return"] <= 1
    assert row["actor_steps"] == 18
    assert row["steps_per_second"] == pytest.approx(18 / 1.6)
    assert row["weights_version"] == 4
    assert row["weights_age_s"] > 1000


def test_it_reports_also_where_no_episode_ends(make, rows, clock):
    stop, steps = StopToken(), iter(range(1, 1000))

    def step():
        clock.advance(4.0)
        return next(steps) == 8 and stop.set()

    make(Counter(), Staying(step), stop=stop).run()  # the ninth step would end the first episode
    assert [row["actor_steps"] for row in rows] == [3, 6]
    assert rows[0]["steps_per_second"] == pytest.approx(1 / 4)
    assert "weights_age_s" in rows[0]
    assert "episode_return" not in rows[0]


def test_two_actors_share_one_limit(make, run_in_thread):
    counter, both = Counter(), threading.Barrier(2)
    first_steps = [iter(range(1000)) for _ in range(2)]

    def meet(steps):
        return lambda: next(steps) == 0 and both.wait(10)

    outcomes = [run_in_thread(make(counter, Staying(meet(steps)), limit=500).run) for steps in first_steps]
    for outcome in outcomes:
        outcome.result(20)
    assert 500 <= counter.get_counts()["actor_steps"] <= 502
