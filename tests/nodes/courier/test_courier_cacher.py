"""A cacher asks its source once a key and interval, says when a value is too old, and recovers by itself."""

from __future__ import annotations

import concurrent.futures
import pickle
import threading

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from topology import errors
from topology.nodes.courier import CacheOptions, Cacher, codec
from topology.nodes.courier.cacher import Cache, Verdict
from topology.nodes.courier.calls import RawReply
from topology.nodes.courier.wire import Kind
from topology.testing import Gate, ManualClock, within

OPTIONS = CacheOptions(refresh_interval_s=2.0, stale_after_s=5.0, max_keys=3, idle_refreshes=10)


class Source:
    """What the cacher calls; the test decides when and how it answers."""

    def __init__(self):
        self.calls = []
        self._changed = threading.Condition()

    def __call__(self, name, body, buffers):
        future = concurrent.futures.Future()
        with self._changed:
            self.calls.append(((name, codec.decode(body, buffers)), future))
            self._changed.notify_all()
        return future

    def wait(self, count):
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.calls) >= count, 10)
            assert len(self.calls) == count

    def answer(self, value, index=-1):
        self.calls[index][1].set_result(RawReply(Kind.REPLY, *codec.encode(value)))

    def fail(self, error, index=-1):
        self.calls[index][1].set_result(RawReply(Kind.ERROR, *codec.encode_error(error)))


class Rig:
    def __init__(self, options=OPTIONS, **kwargs):
        self.clock = ManualClock()
        self.source = Source()
        self.cacher = Cacher(self.source, options, clock=self.clock, **kwargs)

    def ask(self, name="get", *args, **kwargs):
        body, buffers = codec.encode_call(args, kwargs)
        return self.cacher(name, body, list(buffers))

    def get(self, name="get", *args, **kwargs):
        reply = self.ask(name, *args, **kwargs).result(10)
        if reply.kind == Kind.ERROR:
            raise codec.decode_error(reply.body)
        return codec.decode(reply.body, reply.buffers)

    def advance(self, seconds):
        self.clock.wait_until_waiting()
        self.clock.advance(seconds)


@pytest.fixture
def rig(closing):
    rig = Rig()
    closing.callback(rig.cacher.close)
    return rig


def test_the_first_call_goes_through_and_concurrent_ones_share_it(rig):
    calls = [rig.ask("get", ["policy"]) for _ in range(10)]
    rig.source.wait(1)
    assert rig.source.calls[0][0] == ("get", ((["policy"],), {}))
    rig.source.answer("v1")
    replies = [call.result(10) for call in calls]
    assert {codec.decode(reply.body, reply.buffers) for reply in replies} == {"v1"}
    assert rig.get("get", ["policy"]) == "v1"
    rig.source.wait(1)


def test_one_source_call_a_key_and_interval_whatever_the_number_of_clients(rig):
    rig.ask()
    rig.source.answer(0)
    for interval in range(1, 4):
        for _ in range(100):
            assert rig.get() == interval - 1
        rig.advance(2.0)
        rig.source.wait(interval + 1)
        rig.source.answer(interval)
    assert rig.cacher.stats()["refreshes"] == 3


def test_a_refresh_without_an_answer_is_not_repeated(rig):
    rig.ask()
    rig.source.answer(0)
    rig.advance(2.0)
    rig.source.wait(2)
    rig.clock.advance(2.5)
    assert rig.get() == 0
    rig.source.wait(2)


def test_keys_are_method_and_arguments(rig):
    for key, call in enumerate([("get", 1), ("get", 2), ("other", 1)]):
        rig.ask(*call)
        rig.source.wait(key + 1)
        rig.source.answer(key)
        assert rig.get(*call) == key
    assert rig.get("get", 1) == 0


def test_equal_arguments_pickled_differently_are_one_key(rig):
    # One string, twice or shared: pickle writes the latter as a reference.
    a, b = "".join(["pol", "icy"]), "".join(["pol", "icy"])
    assert pickle.dumps((a, b)) != pickle.dumps((a, a))
    rig.ask("get", a, b)
    rig.source.answer("v")
    assert rig.get("get", a, a) == "v"
    rig.ask("keywords", x=1, y=2)
    rig.source.answer("k")
    assert rig.get("keywords", y=2, x=1) == "k"
    rig.source.wait(2)


def test_a_value_too_old_is_refused_with_age_and_reason_until_the_source_is_back(rig):
    rig.ask()
    rig.source.answer("old")
    rig.advance(2.0)
    rig.source.wait(2)
    rig.source.fail(ConnectionError("nobody home"))
    rig.advance(2.0)
    rig.source.wait(3)
    assert rig.get() == "old"
    rig.clock.advance(1.5)
    with pytest.raises(errors.StaleError, match="nobody home") as caught:
        rig.get()
    assert caught.value.age_s == 5.5
    assert "no answer for 1.5 s" in str(caught.value)
    rig.source.answer("new")
    assert rig.get() == "new"


def test_exceptions_reach_who_waits_and_are_not_kept(rig):
    calls = [rig.ask() for _ in range(3)]
    rig.source.wait(1)
    rig.source.fail(ValueError("not yet"))
    for call in calls:
        with pytest.raises(ValueError, match="not yet"):
            raise codec.decode_error(call.result(10).body)
    rig.ask()
    rig.source.wait(2)
    rig.source.answer("now")
    assert rig.get() == "now"


def test_a_key_nobody_asks_for_is_not_refreshed_and_fetched_anew_on_demand(rig):
    rig.ask()
    rig.source.answer(0)
    for refresh in range(1, 11):
        rig.advance(2.0)
        rig.source.wait(refresh + 1)
        rig.source.answer(refresh)
    rig.clock.advance(100.0)
    rig.source.wait(11)
    again = [rig.ask(), rig.ask()]
    rig.source.wait(12)
    rig.source.answer("fresh")
    for call in again:
        assert codec.decode(call.result(10).body, []) == "fresh"


@pytest.fixture
def idle(closing):
    """One whose key is idle sooner than its value is too old, as it is in programs that refresh weights often."""
    rig = Rig(CacheOptions(refresh_interval_s=2.0, stale_after_s=100.0, idle_refreshes=1))
    closing.callback(rig.cacher.close)
    rig.ask()
    rig.source.answer("old")
    rig.advance(2.0)
    rig.source.wait(2)
    rig.source.answer("newer")
    rig.clock.wait_until_waiting()
    rig.clock.advance(20.0)
    return rig


def test_an_idle_key_is_fetched_anew_though_its_value_is_not_too_old_and_refreshed_from_then_on(idle):
    call = idle.ask()
    idle.source.wait(3)
    idle.source.answer("fresh")
    assert codec.decode(call.result(10).body, []) == "fresh"
    idle.advance(2.0)
    idle.source.wait(4)
    idle.source.answer("fresher")
    assert idle.get() == "fresher"


def test_the_value_of_an_idle_key_is_served_while_the_source_fails(idle):
    call = idle.ask()
    idle.source.wait(3)
    idle.source.fail(ValueError("away"))
    assert codec.decode(call.result(10).body, []) == "newer"


def test_the_key_not_asked_for_longest_goes(rig):
    for key in (1, 2, 3):
        rig.ask("get", key)
        rig.source.answer(key)
    assert rig.get("get", 1) == 1
    rig.ask("get", 4)
    rig.source.answer(4)
    assert rig.cacher.stats()["keys"] == 3
    assert rig.get("get", 1) == 1
    rig.source.wait(4)
    rig.ask("get", 2)
    rig.source.wait(5)
    rig.source.answer(2)


def test_only_listed_methods_are_answered(closing):
    rig = Rig(methods=["get_variables"])
    closing.callback(rig.cacher.close)
    with pytest.raises(errors.MethodNotFound, match=r"method increment not found.*get_variables"):
        rig.ask("increment", 1)
    assert rig.source.calls == []


def test_closing_fails_who_waits(rig):
    call = rig.ask()
    rig.cacher.close()
    with pytest.raises(errors.CourierClosed):
        call.result(10)
    with pytest.raises(errors.CourierClosed):
        rig.ask()


@pytest.mark.parametrize(
    "bad", [{"refresh_interval_s": 0}, {"stale_after_s": 0.5}, {"max_keys": 0}, {"idle_refreshes": 0}]
)
def test_options_are_checked(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        CacheOptions(**{"refresh_interval_s": 1.0, "stale_after_s": 2.0, **bad})


# --- over sockets ---------------------------------------------------------------------------------------------------


def test_a_hit_is_served_as_it_came_and_an_error_with_its_type(new_server, new_client):
    source = new_server("source")
    array = np.arange(100_000)
    source.bind("get", lambda: array)
    source.bind("fail", lambda: {}["missing"])
    source.start()
    server = new_server("cacher")
    Cacher(new_client(source), CacheOptions(refresh_interval_s=60, stale_after_s=120)).bind(server)
    server.start()
    client = new_client(server)
    for _ in range(10):
        result = client.get()
        np.testing.assert_array_equal(result, array)
        result[:] = 0  # its own memory
        np.testing.assert_array_equal(client.futures.get().result(10), array)
    assert source.stats()["methods"]["get"]["calls"] == 1
    with pytest.raises(KeyError, match="missing"):
        client.fail()
    with pytest.raises(errors.MethodNotFound, match="method nothing not found"):
        client.nothing()


def test_a_stopped_source_makes_values_stale_and_its_successor_is_used(new_server, new_client, tmp_path):
    def start(value):
        source = new_server("source", address=f"unix:{tmp_path}/source")
        source.bind("get", lambda: value)
        source.start()
        return source

    source = start("one")
    server = new_server("cacher")
    Cacher(new_client(source), CacheOptions(refresh_interval_s=0.02, stale_after_s=0.1)).bind(server)
    server.start()
    client = new_client(server)
    assert client.get() == "one"
    source.stop()

    def until_stale():
        while True:
            try:
                assert client.get() == "one"
            except errors.StaleError as error:
                return error

    assert within(10, until_stale).age_s > 0.1
    start("two")

    def until_served():
        while True:
            try:
                return client.get()
            except errors.StaleError:
                continue

    assert within(10, until_served) == "two"


def test_a_waiting_call_holds_no_thread(new_server, new_client):
    source = new_server("source")
    gate = Gate()
    source.bind("get", gate)
    source.start()
    server = new_server("cacher", thread_pool_size=1)
    Cacher(new_client(source), CacheOptions(refresh_interval_s=1, stale_after_s=2)).bind(server)
    server.bind("ping", lambda: "pong")
    server.start()
    client = new_client(server)
    calls = [client.futures.get() for _ in range(20)]
    assert client.ping() == "pong"
    gate.wait_entered()
    gate.release()
    for call in calls:
        assert call.result(10) is None
    assert gate.entered == 1


# --- the rules alone ------------------------------------------------------------------------------------------------


class CacheMachine(RuleBasedStateMachine):
    """Whatever happens in whatever order, the promises hold."""

    options = OPTIONS

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.cache = Cache(self.options)
        self.flying = {}  # key -> when its fetch began
        self.newest = {}  # key -> when the fetch of the value we know of began

    keys = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])

    @rule(seconds=st.floats(0.01, 3.0))
    def time_passes(self, seconds):
        self.now += seconds

    @rule(key=keys)
    def a_call_comes(self, key):
        planned = self.cache.next_due(self.now)
        verdict, value = self.cache.ask(key, self.now)
        if verdict is Verdict.SERVE:
            assert self.cache.next_due(self.now) == planned  # who makes the refreshes is not told of a value served
            assert value is not None
            began = float(value.body)
            assert self.now - began <= self.options.stale_after_s
            assert began == self.newest[key]
        if verdict is Verdict.FETCH:
            self.flying[key] = self.now
        if verdict is Verdict.WAIT:
            assert key in self.flying
        if verdict is Verdict.STALE:
            age_s, reason = self.cache.staleness(key, self.now)
            assert age_s > self.options.stale_after_s
            assert reason

    @rule(data=st.data(), good=st.booleans())
    def the_source_answers(self, data, good):
        if not self.flying:
            return
        key = data.draw(st.sampled_from(sorted(self.flying)))
        began = self.flying.pop(key)
        if good:
            self.newest[key] = began
            self.cache.fetched(key, RawReply(Kind.REPLY, str(began).encode(), ()), self.now)
        else:
            value = self.cache.failed(key, "broken", self.now)
            assert value is None or self.now - float(value.body) <= self.options.stale_after_s

    @rule()
    def refreshes_are_made(self):
        next_due = self.cache.next_due(self.now)
        keys = self.cache.due(self.now)
        assert bool(keys) == (next_due is not None and next_due <= self.now)
        for key in keys:
            assert key not in self.flying or key not in self.newest
            self.flying[key] = self.now

    @invariant()
    def keys_are_bounded(self):
        assert len(self.cache) <= self.options.max_keys + len(self.flying)


class SoonIdleCacheMachine(CacheMachine):
    """The same where keys are idle before their values are too old."""

    options = CacheOptions(refresh_interval_s=1.0, stale_after_s=20.0, max_keys=3, idle_refreshes=2)


TestCacheMachine = CacheMachine.TestCase
TestSoonIdleCacheMachine = SoonIdleCacheMachine.TestCase
