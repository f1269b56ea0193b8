"""Weights on their way: periods, versions, ages, stale sources."""

from concurrent.futures import Future

import pytest

from topology.agents.core.types import Variables
from topology.agents.core.variables import VariableClient
from topology.context import bind_context
from topology.errors import ConnectionBroken, ProgramStopped, StaleError


class Source:
    """A remote learner that answers when it is told to."""

    def __init__(self, clock):
        self.clock = clock
        self.version = 0
        self.requests = []
        self.answer_at_once = True
        self.error = None
        self.futures = self

    def get_variables(self, names):
        request = Future()
        self.requests.append((list(names), request))
        if self.answer_at_once:
            self.answer()
        return request

    def answer(self):
        request = self.requests[-1][1]
        if self.error is not None:
            request.set_exception(self.error)
        else:
            request.set_result(Variables(self.version, self.clock.time(), [f"weights {self.version}"]))


@pytest.fixture
def source(clock):
    return Source(clock)


def test_the_first_weights_are_waited_for(source, clock):
    client = VariableClient(source, ("policy",), clock=clock)
    assert client.version == -1
    with pytest.raises(RuntimeError, match="update_and_wait"):
        _ = client.values
    assert client.update_and_wait()
    assert (client.version, client.values, source.requests[0][0]) == (0, ["weights 0"], ["policy"])


def test_a_request_goes_out_every_period_and_is_taken_when_it_is_there(source, clock):
    client = VariableClient(source, ["policy"], update_period=3, clock=clock)
    client.update_and_wait()
    source.answer_at_once, source.version = False, 7
    assert [client.update() for _ in range(5)] == [False] * 5
    assert len(source.requests) == 2
    source.answer()
    assert client.update()
    assert (client.version, client.values) == (7, ["weights 7"])
    assert [client.update() for _ in range(2)] == [False] * 2
    assert len(source.requests) == 2


def test_the_same_version_again_is_not_newer_but_fresher(source, clock):
    client = VariableClient(source, ["policy"], clock=clock)
    client.update_and_wait()
    clock.advance(30.0)
    assert client.age_s == 30.0
    assert not client.update()
    assert client.age_s == 0.0


def test_age_counts_from_the_learner_not_from_the_cache(clock):
    class Cache:
        def get_variables(self, names):
            return Variables(3, clock.time() - 8.0, [0])

    client = VariableClient(Cache(), ["policy"], clock=clock)
    client.update_and_wait()
    assert client.age_s == 8.0


def test_a_stale_source_is_forgiven_while_the_weights_are_young(source, clock, caplog):
    client = VariableClient(source, ["policy"], max_age_s=60.0, clock=clock)
    client.update_and_wait()
    source.error = StaleError("stale for 20 s", age_s=20.0)
    clock.advance(20.0)
    assert not client.update()
    assert client.values == ["weights 0"]
    assert "going on with version 0, 20.0 s old, until 60 s: stale for 20 s" in caplog.text
    clock.advance(41.0)
    with pytest.raises(StaleError):
        client.update()
    source.error, source.version = None, 5
    assert client.update()


def test_a_stale_source_is_asked_again_until_the_bound(source, clock):
    source.error = StaleError("stale")
    client = VariableClient(source, ["policy"], max_age_s=10.0, clock=clock)
    with pytest.raises(StaleError):
        client.update_and_wait()
    assert 10 < len(source.requests) < 30


def test_waiting_for_a_stale_source_ends_with_the_program(source, clock, context):
    source.error = StaleError("stale")
    context.stop.set()
    with bind_context(context), pytest.raises(ProgramStopped):
        VariableClient(source, ["policy"], clock=clock).update_and_wait()


def test_other_failures_surface(source, clock):
    client = VariableClient(source, ["policy"], clock=clock)
    client.update_and_wait()
    source.error = ConnectionBroken("learner died")
    with pytest.raises(ConnectionBroken):
        client.update()


def test_without_a_period_only_waiting_asks(source, clock):
    client = VariableClient(source, ["policy"], update_period=None, clock=clock)
    client.update_and_wait()
    source.version = 9
    assert not any(client.update() for _ in range(100))
    assert len(source.requests) == 1
    with pytest.raises(ValueError, match="update_period must be at least 1, got 0"):
        VariableClient(source, ["policy"], update_period=0)
