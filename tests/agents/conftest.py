"""Fixtures for agents: a clock moved by hand, rows kept in a list, a node's context."""

import threading
from concurrent.futures import Future

import pytest

from topology.context import NodeContext


class HandClock:
    """A clock that stands until it is moved; waits return when their predicate holds or their time has come."""

    def __init__(self):
        self.now = 1000.0
        self._waiting = threading.Condition()

    def time(self):
        return self.now

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def wait_for(self, condition, predicate, timeout_s=None):
        until = None if timeout_s is None else self.now + timeout_s
        return (
            condition.wait_for(lambda: predicate() or (until is not None and self.now >= until), 20.0) and predicate()
        )

    def advance(self, seconds, *conditions):
        self.now += seconds
        for condition in conditions:
            with condition:
                condition.notify_all()


class Rows(list):
    """A metrics writer that keeps its rows."""

    def write(self, **values):
        self.append(values)


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def rows():
    return Rows()


@pytest.fixture
def context(tmp_path):
    return NodeContext(label="actor", index=2, launch_type="test_mt", run_directory=tmp_path, seed=17)


class Remote:
    """An object as a courier client shows it: calls of asynchronous methods block, those of `futures` do not."""

    def __init__(self, target):
        self._target = target

    def __getattr__(self, name):
        method = getattr(self._target, name)

        def call(*args):
            result = method(*args)
            return result.result(20) if isinstance(result, Future) else result

        return call

    @property
    def futures(self):
        return self._target


@pytest.fixture
def remote():
    return Remote


@pytest.fixture
def run_in_thread():
    """Starts functions as threads, in the current context; joins them, and raises what they raised, at the end."""
    started = []

    def start(function):
        outcome = Future()

        def run():
            try:
                outcome.set_result(function())
            except BaseException as error:
                outcome.set_exception(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        started.append((thread, outcome))
        return outcome

    yield start
    for thread, outcome in started:
        thread.join(20)
        assert not thread.is_alive()
        outcome.result(0)
