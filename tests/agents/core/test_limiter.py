"""The limiter: stops once, at the limit, after the last evaluation."""

import threading

import pytest

from topology.agents.core.counter import Counter
from topology.agents.core.limiter import FINAL_EVALUATIONS, StepsLimiter
from topology.context import StopToken
from topology.errors import ConnectionBroken


@pytest.fixture
def stops():
    """Reasons for which the program was asked to stop."""
    return []


@pytest.fixture
def make(stops, remote):
    def make(counter, limit, **settings):
        return StepsLimiter(remote(counter), limit, stop=StopToken(stops.append), **settings)

    return make


def test_it_stops_once_at_the_limit_and_tells_the_overshoot(stops, make, capsys):
    counter = Counter({"actor_steps": 104})
    make(counter, 100).run()
    assert len(stops) == 1
    assert "actor_steps reached 100" in stops[0]
    assert "(4 steps over)" in capsys.readouterr().out


def test_the_count_that_reaches_the_limit_wakes_it(stops, make, run_in_thread):
    counter = Counter()
    registered = threading.Event()
    original = counter.when_reached
    counter.when_reached = lambda *args: (original(*args), registered.set())[0]
    done = run_in_thread(make(counter, 100).run)
    assert registered.wait(10)
    counter.increment(actor_steps=99)
    assert not done.done()
    assert stops == []
    counter.increment(actor_steps=1)
    done.result(10)
    counter.increment(actor_steps=100)
    assert len(stops) == 1


def test_it_waits_for_the_final_evaluation(stops, make, run_in_thread):
    counter = Counter({"actor_steps": 100})
    asked = threading.Event()
    original = counter.when_reached
    counter.when_reached = lambda *args: (original(*args), asked.set() if args[0] == FINAL_EVALUATIONS else None)[0]
    done = run_in_thread(make(counter, 100, final_evaluations=1).run)
    assert asked.wait(10)
    assert stops == []
    counter.increment(**{FINAL_EVALUATIONS: 1})
    done.result(10)
    assert len(stops) == 1


def test_it_does_not_wait_for_ever(stops, make, caplog):
    make(Counter({"actor_steps": 1}), 1, final_evaluations=1, final_timeout_s=0.01).run()
    assert len(stops) == 1
    assert "the program stops without" in caplog.text
    assert "more time with final_evaluation_timeout_s" in caplog.text


def test_a_limit_of_zero_is_refused(make):
    with pytest.raises(ValueError, match="at least 1, got 0"):
        make(Counter(), 0)


def test_a_counter_that_hears_of_the_stop_first_is_no_failure():
    stop = StopToken()

    class Gone:
        def when_reached(self, name, count):
            stop.set()
            raise ConnectionBroken("the counter was stopped")

    StepsLimiter(Gone(), 100, stop=stop).run()
