"""Batches: what each caller passes and gets, when they are run, what happens when they fail."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import datetime
import gc
import pickle
import threading
import typing
import weakref

import numpy as np
import pytest

from topology import errors
from topology.nodes.courier import batched_handler, bind_object
from topology.nodes.courier.batching import stack, unstack
from topology.testing import Gate, ManualClock


class State(typing.NamedTuple):
    hidden: np.ndarray
    cell: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class Output:
    action: np.ndarray
    extra: dict


class Inference:
    def __init__(self):
        self.sizes = []

    @batched_handler(batch_size=32)
    def act(self, x, scale=1.0):
        self.sizes.append(len(x))
        return x * scale


def test_64_callers_of_a_handler_of_32_with_default_settings(new_server, new_client):
    served = Inference()
    server = new_server()
    bind_object(server, served)
    server.start()
    client = new_client(server)
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        for _ in range(5):
            assert list(pool.map(lambda k: float(client.act(float(k))), range(64))) == list(range(64))
    assert sum(served.sizes) == 5 * 64
    assert max(served.sizes) <= 32
    assert server.stats()["threads"] <= 3  # a waiting call holds none


def test_fewer_callers_than_a_batch_are_served_all_the_same(new_server, new_client):
    server = new_server()
    bind_object(server, Inference())
    server.start()
    assert new_client(server).act(2.0, scale=3.0) == 6.0


def gather(handler, arguments):
    return [handler.submit(*args) for args in arguments]


def test_structures_are_stacked_and_split():
    seen = []

    @batched_handler(batch_size=2)
    def step(observation, state):
        seen.append((observation, state))
        return Output(action=observation["x"] + 1, extra={"state": state, "none": None})

    futures = gather(step, [({"x": np.full(3, i)}, State(np.full(2, i), None)) for i in range(2)])
    results = [future.result(10) for future in futures]
    step.close()
    (observation, state) = seen[0]
    assert observation["x"].shape == (2, 3)
    assert type(state) is State
    assert state.hidden.shape == (2, 2)
    assert state.cell is None
    for i, result in enumerate(results):
        assert type(result) is Output
        np.testing.assert_array_equal(result.action, np.full(3, i + 1))
        np.testing.assert_array_equal(result.extra["state"].hidden, np.full(2, i))
        assert result.extra["none"] is None


def test_a_full_batch_does_not_wait_and_a_partial_one_waits_for_the_timeout():
    clock = ManualClock()
    sizes = []

    @batched_handler(batch_size=3, timeout=datetime.timedelta(seconds=5), clock=clock)
    def handler(x):
        sizes.append(len(x))
        return x

    full = gather(handler, [(i,) for i in range(3)])
    assert [future.result(10) for future in full] == [0, 1, 2]
    partial = gather(handler, [(7,), (8,)])
    clock.wait_until_waiting()
    clock.advance(4.9)
    assert not partial[0].done()
    clock.advance(0.2)
    assert [future.result(10) for future in partial] == [7, 8]
    assert sizes == [3, 2]
    handler.close()


def test_padding_shows_one_shape_only_and_is_not_seen_by_callers():
    seen = []

    @batched_handler(batch_size=4, timeout=0, pad_batch=True)
    def handler(x):
        seen.append(x.copy())
        return 10 * x

    assert handler(3) == 30
    handler.close()
    np.testing.assert_array_equal(seen[0], [3, 3, 3, 3])


def test_an_error_reaches_every_caller_and_the_next_batch_runs():
    @batched_handler(batch_size=2)
    def handler(x):
        if x.sum() == 1:
            raise ValueError("bad batch")
        return x

    for future in gather(handler, [(0,), (1,)]):
        with pytest.raises(ValueError, match="bad batch"):
            future.result(10)
    assert [future.result(10) for future in gather(handler, [(2,), (3,)])] == [2, 3]
    handler.close()


@pytest.mark.parametrize("result", [5, None, [1, 2], np.zeros(()), np.zeros(3), {"a": np.zeros(3)}])
def test_a_result_that_cannot_be_split_says_why(result):
    if result is None:
        assert unstack(None, 2, 2) == [None, None]
        return
    with pytest.raises(TypeError, match="leading axis of 2"):
        unstack(result, 2, 2)


@pytest.mark.parametrize(
    "elements",
    [[{"a": 1}, {"b": 1}], [(1,), (1, 2)], [None, 1], [1, (1,)], [np.zeros(2), np.zeros(3)], [(1,), [1]]],
)
def test_calls_that_do_not_fit_together_are_refused(elements):
    with pytest.raises(ValueError, match=r"differ in structure|same shape"):
        stack(elements)


def test_leaves_of_several_types_fit_together():
    np.testing.assert_array_equal(stack([1, 2.5, np.float32(3)]), [1, 2.5, 3])


def test_batches_run_in_parallel_when_allowed():
    gate = Gate()

    @batched_handler(batch_size=1, max_parallelism=2)
    def handler(x):
        gate()
        return x

    futures = gather(handler, [(i,) for i in range(4)])
    gate.wait_entered(2)
    assert gate.entered == 2
    gate.release()
    assert [future.result(10) for future in futures] == [0, 1, 2, 3]
    handler.close()


def test_closing_fails_who_waits_and_the_handler_works_again_afterwards():
    handler = batched_handler(batch_size=2, timeout=3600)(lambda x: x)
    waiting = handler.submit(1)
    handler.close()
    with pytest.raises(errors.CourierClosed, match="waited for a batch"):
        waiting.result(10)
    assert [future.result(10) for future in gather(handler, [(1,), (2,)])] == [1, 2]
    handler.close()


def test_stopping_the_server_fails_calls_that_wait_for_a_batch(new_server, new_client):
    server = new_server()
    handler = batched_handler(batch_size=2, timeout=3600)(lambda x: x)
    server.bind("handler", handler)
    server.start()
    call = new_client(server).futures.handler(1)
    while not server.stats()["methods"]["handler"]["calls"]:
        pass
    server.stop()
    with pytest.raises(errors.CourierError):
        call.result(10)


def test_a_cancelled_call_is_left_out():
    sizes = []
    clock = ManualClock()

    @batched_handler(batch_size=3, timeout=1, clock=clock)
    def handler(x):
        sizes.append(len(x))
        return x

    first, second = gather(handler, [(1,), (2,)])
    clock.wait_until_waiting()
    assert first.cancel()
    clock.advance(2)
    assert second.result(10) == 2
    assert sizes == [1]
    handler.close()


def test_each_instance_has_batches_of_its_own_and_may_go():
    one, two = Inference(), Inference()
    assert one.act(1.0) == 1.0
    assert (one.sizes, two.sizes) == ([1], [])
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None
    two.act.close()


def test_objects_with_batched_methods_travel():
    served = Inference()
    served.act(1.0)
    copy = pickle.loads(pickle.dumps(served))
    assert copy.act(2.0) == 2.0
    copy.act.close()
    served.act.close()


def test_the_function_keeps_its_name_and_docstring():
    @batched_handler(batch_size=2)
    def documented(x):
        """Says what it does."""
        return x

    assert (documented.__name__, documented.__doc__) == ("documented", "Says what it does.")


@pytest.mark.parametrize(
    "bad", [{"batch_size": 0}, {"batch_size": 1, "max_parallelism": 0}, {"batch_size": 1, "timeout": -1}]
)
def test_settings_are_checked(bad):
    with pytest.raises(ValueError, match="batched_handler"):
        batched_handler(**bad)


def test_a_direct_call_blocks_for_its_part():
    handler = batched_handler(batch_size=2, timeout=3600)(lambda x: x + 1)
    results = []
    threads = [threading.Thread(target=lambda i=i: results.append(int(handler(i)))) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(results) == [1, 2]
    handler.close()
