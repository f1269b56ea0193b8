"""Node contexts, their threads, seeds, and the stop token."""

from __future__ import annotations

import concurrent.futures
import logging
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import topology as lp
from topology.context import (
    NodeContext,
    StopToken,
    bind_context,
    derive_seeds,
    set_process_context,
    try_get_context,
)
from topology.testing import within

START = threading.Thread.start


def context(label="actor", index=0, **kwargs):
    return NodeContext(label=label, index=index, launch_type="test_mt", **kwargs)


def in_thread(function):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(10)


def test_outside_a_node_there_is_no_context():
    assert try_get_context() is None
    with pytest.raises(RuntimeError, match="called outside a node"):
        lp.get_context()


def test_code_in_a_node_finds_its_context():
    mine = context(index=3)
    with bind_context(mine):
        assert lp.get_context() is mine
        assert lp.get_context().name == "actor/3"
    assert try_get_context() is None


def test_the_secret_is_not_printed():
    assert "hush" not in repr(context(secret=b"hush"))


def test_threads_inherit_the_context():
    mine = context()
    with bind_context(mine):
        assert in_thread(lp.get_context) is mine
        assert in_thread(lambda: in_thread(lp.get_context)) is mine


def test_subclasses_of_thread_inherit_the_context():
    seen = []

    class Worker(threading.Thread):
        def run(self):
            seen.append(try_get_context())

    with bind_context(mine := context()):
        worker = Worker()
        worker.start()
        worker.join(10)
    assert seen == [mine]


def test_a_thread_keeps_its_context_after_the_block():
    entered, release = threading.Event(), threading.Event()

    def late():
        entered.set()
        release.wait(10)
        return lp.get_context()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with bind_context(mine := context()):
            future = pool.submit(late)
            assert entered.wait(10)
        release.set()
        assert future.result(10) is mine


def test_threads_of_others_are_left_alone():
    barrier = threading.Barrier(2, timeout=10)

    def outsider():
        barrier.wait()  # the other thread has bound its context
        try:
            return try_get_context(), in_thread(try_get_context)
        finally:
            barrier.wait()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(outsider)
        with bind_context(context()):
            barrier.wait()
            barrier.wait()
        assert future.result(10) == (None, None)
    assert threading.Thread.start is START  # and the door is closed again


def test_two_contexts_in_one_process():
    barrier = threading.Barrier(2, timeout=10)

    def node(mine):
        with bind_context(mine):
            barrier.wait()
            seen = lp.get_context(), in_thread(lp.get_context)
            barrier.wait()
            return seen

    contexts = [context(program=name) for name in ("one", "two")]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for mine, seen in zip(contexts, pool.map(node, contexts, timeout=10), strict=True):
            assert seen == (mine, mine)


def test_nested_contexts_end_in_order():
    outer, inner = context("box"), context("part")
    with bind_context(outer):
        with bind_context(inner):
            assert lp.get_context() is inner
        assert lp.get_context() is outer


def test_the_context_of_a_process_reaches_threads_started_before():
    started, go = threading.Event(), threading.Event()

    def early():
        started.set()
        go.wait(10)
        return try_get_context()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(early)
        assert started.wait(10)
        set_process_context(mine := context())
        try:
            go.set()
            assert future.result(10) is mine
        finally:
            set_process_context(None)


def test_seeds_are_pinned():
    """A run is repeated by its seed: a change here makes every recorded run unrepeatable."""
    assert derive_seeds(0, ["learner/0", "actor/0", "actor/1"]) == {
        "learner/0": 1566171392,
        "actor/0": 1606045154,
        "actor/1": 913736972,
    }
    assert derive_seeds(1, ["learner/0"]) == {"learner/0": 244258889}


@given(st.integers(0, 2**63), st.lists(st.text(max_size=8), unique=True))
def test_seeds_are_distinct_and_fit_in_31_bits(run_seed, names):
    seeds = derive_seeds(run_seed, names)
    assert list(seeds) == names
    assert len(set(seeds.values())) == len(names)
    assert all(0 <= seed < 2**31 for seed in seeds.values())


def test_a_seed_does_not_depend_on_the_other_nodes():
    assert derive_seeds(7, ["a/0", "b/0"])["b/0"] == derive_seeds(7, ["b/0"])["b/0"]


def test_seeds_stay_distinct_when_names_hash_alike(monkeypatch):
    class Colliding:
        def __init__(self, data, digest_size):
            self.attempt = int(data.decode().rpartition(":")[2])

        def digest(self):
            return (self.attempt << 33).to_bytes(8, "little")

    monkeypatch.setattr("topology.context.hashlib.blake2b", Colliding)
    assert derive_seeds(0, ["a", "b", "c"]) == {"a": 0, "b": 1, "c": 2}


def test_a_token_is_set_once():
    token = StopToken()
    assert not token.is_set()
    assert not token.wait(0)
    token.set("first")
    token.set("second")
    assert token.is_set()
    assert token.wait(0)
    assert token.reason == "first"


def test_setting_a_token_wakes_those_who_wait():
    token = StopToken()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(token.wait, 10), pool.submit(token.event.wait, 10)]
        token.set()
        assert [wait.result(10) for wait in waits] == [True, True]


def test_handlers_run_once_in_order():
    token, calls = StopToken(), []
    token.on_stop(lambda: calls.append("first"))
    token.subscribe(lambda: calls.append("second"))
    token.set()
    token.set()
    assert calls == ["first", "second"]


def test_a_handler_that_comes_late_runs_at_once():
    token, calls = StopToken(), []
    token.set()
    token.on_stop(lambda: calls.append(1))()
    assert calls == [1]


def test_a_handler_can_be_taken_back():
    token, calls = StopToken(), []
    remove = token.on_stop(lambda: calls.append(1))
    remove()
    remove()
    token.set()
    assert calls == []


def test_a_handler_that_raises_does_not_keep_the_others_from_running(caplog):
    token, calls = StopToken(), []
    token.on_stop(lambda: 1 / 0)
    token.on_stop(lambda: calls.append(1))
    with caplog.at_level(logging.ERROR, "topology.context"):
        token.set()
    assert calls == [1]
    assert "ZeroDivisionError" in caplog.text


def test_a_handler_may_use_the_token():
    token = StopToken()
    seen = []
    token.on_stop(lambda: seen.append((token.is_set(), token.reason)))
    token.on_stop(lambda: token.on_stop(lambda: seen.append("inner")))
    within(10, token.set, "why")
    assert seen == [(True, "why"), "inner"]


def test_a_request_goes_to_the_launcher():
    asked = []
    token = StopToken(asked.append)
    token.request("please")
    assert asked == ["please"]
    assert not token.is_set()
    own = StopToken()
    own.request("now")
    assert (own.is_set(), own.reason) == (True, "now")


@pytest.mark.parametrize(
    "look",
    [lambda t: t.is_set(), lambda t: t.wait(0), lambda t: t.event, lambda t: t.on_stop(lambda: None)],
    ids=["is_set", "wait", "event", "on_stop"],
)
def test_looking_at_the_token_is_observed(look):
    token = StopToken()
    token.subscribe(lambda: None)
    repr(token)
    assert not token.observed
    look(token)
    assert token.observed
