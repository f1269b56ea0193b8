"""lp.stop() and its relatives: which program they speak of."""

from __future__ import annotations

import concurrent.futures
import gc
import logging
import pickle
import weakref
from contextlib import contextmanager
from datetime import timedelta

import pytest

import topology as lp
from topology.context import NodeContext, StopToken, bind_context
from topology.stopping import register_run


def node(token):
    return bind_context(NodeContext(label="a", index=0, launch_type="test_mt", stop=token))


@contextmanager
def running(token):
    remove = register_run(token)
    try:
        yield
    finally:
        remove()


def in_thread(function, *args):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result(10)


def test_in_a_node_they_speak_of_its_program():
    token, other = StopToken(), StopToken()
    with running(other), node(token):
        assert not lp.wait_for_stop(0)
        lp.stop("enough")
        assert lp.wait_for_stop(0)
        assert lp.stop_event().is_set()
    assert token.reason == "enough"
    assert not other.is_set()


def test_the_threads_of_a_node_speak_of_its_program():
    token = StopToken()
    with node(token):
        in_thread(lp.stop)
    assert token.is_set()


def test_two_programs_do_not_stop_each_other():
    one, two = StopToken(), StopToken()
    with node(one):
        in_thread(lp.stop)
    assert (one.is_set(), two.is_set()) == (True, False)


def test_in_a_script_they_speak_of_the_program_launched_last_by_that_thread():
    first, second = StopToken(), StopToken()
    with running(first):
        with running(second):
            lp.stop()
        assert (first.is_set(), second.is_set()) == (False, True)
        lp.stop()
        assert first.is_set()


def test_a_thread_that_launched_nothing_speaks_of_the_only_program():
    token = StopToken()
    with running(token):
        in_thread(lp.stop)
    assert token.is_set()


def test_which_of_several_programs_must_be_said():
    with running(StopToken()), running(StopToken()), pytest.raises(RuntimeError, match="2 programs run in this"):
        in_thread(lp.stop)


def test_with_no_program_there_is_nothing_to_stop(caplog):
    with caplog.at_level(logging.WARNING, "topology.stopping"):
        lp.stop()
    assert "no program is running" in caplog.text
    for ask in (lp.wait_for_stop, lp.stop_event):
        with pytest.raises(RuntimeError, match=rf"lp\.{ask.__name__}\(\) was called, but no program is running"):
            ask()


@pytest.mark.parametrize("timeout", [0, 0.0, timedelta(0)])
def test_wait_for_stop_takes_seconds_and_timedelta(timeout):
    with running(StopToken()):
        assert lp.wait_for_stop(timeout) is False


def test_handlers_run_at_the_stop_and_can_be_taken_back():
    token, calls = StopToken(), []

    def kept():
        calls.append("kept")

    def taken_back():
        calls.append("taken back")

    with node(token):
        lp.register_stop_handler(kept)
        lp.register_stop_handler(taken_back)
        lp.unregister_stop_handler(taken_back)
        lp.unregister_stop_handler(taken_back)
        lp.stop()
    assert calls == ["kept"]


def test_a_handler_registered_twice_runs_once():
    token, calls = StopToken(), []

    def handler():
        calls.append(1)

    with node(token):
        lp.register_stop_handler(handler)
        lp.register_stop_handler(handler)
        lp.stop()
        assert calls == [1]
        lp.register_stop_handler(handler)  # the program has stopped: at once
    assert calls == [1, 1]


def test_one_handler_can_serve_two_programs():
    one, two, calls = StopToken(), StopToken(), []

    def handler():
        calls.append(1)

    for token in (one, two):
        with node(token):
            lp.register_stop_handler(handler)
    with node(two):
        lp.unregister_stop_handler(handler)
    one.set()
    two.set()
    assert calls == [1]


def test_a_program_that_has_ended_is_forgotten():
    token = StopToken()
    with node(token):
        lp.register_stop_handler(print)
    gone = weakref.ref(token)
    del token
    gc.collect()
    assert gone() is None


def test_outside_a_program_handlers_are_kept_and_not_called():
    lp.register_stop_handler(pytest.fail)
    lp.unregister_stop_handler(pytest.fail)


def test_a_stopper_travels():
    stopper = pickle.loads(pickle.dumps(lp.make_program_stopper("local_mp")))
    token = StopToken()
    with node(token):
        stopper()
    assert token.is_set()
