"""A node that others wait for at their start."""

from __future__ import annotations

from typing import Any

import pytest

import topology as lp
from topology.errors import ProgramStopped
from topology.nodes import courier, replay
from topology.testing import Gate

TIMEOUT_S = 20


def test_it_opens_when_the_last_is_ready_and_stays_open() -> None:
    barrier = lp.StartBarrier(parties=2)
    early = [barrier.wait(), barrier.wait()]
    early[0].cancel()
    barrier.ready("learner/0")
    barrier.ready("learner/0")
    assert (early[1].done(), barrier.missing()) == (False, 1)
    barrier.ready("learner/1")
    assert early[1].result(0) is None
    barrier.ready("learner/2")
    assert (barrier.wait().done(), barrier.missing()) == (True, 0)


def test_nobody_to_wait_for_is_refused() -> None:
    with pytest.raises(ValueError, match="parties=0"):
        lp.StartBarrier(0)


def test_a_hundred_clients_wait_without_a_thread_each() -> None:
    barrier = lp.StartBarrier()
    with courier.Server("barrier", thread_pool_size=1) as server:
        courier.bind_object(server, barrier)
        with courier.Client(server.address, call_timeout=TIMEOUT_S) as client:
            waiting = [client.futures.wait() for _ in range(100)]
            assert client.missing() == 1
            assert not any(future.done() for future in waiting)
            client.ready("learner")
            assert [future.result(TIMEOUT_S) for future in waiting] == [None] * 100


def tables() -> list[replay.Table]:
    return [replay.Table.queue("queue", max_size=10)]


arrived = Gate(TIMEOUT_S)


def act(barrier: Any, client: Any) -> None:
    waiting = barrier.futures.wait()
    assert barrier.missing() == 1
    assert not waiting.done()
    arrived()
    waiting.result(TIMEOUT_S)
    client.insert([1.0], {"queue": 1.0})


def test_no_step_is_inserted_before_the_learner_is_ready() -> None:
    program = lp.Program("start")
    barrier = program.add_node(lp.CourierNode(lp.StartBarrier), label="barrier")
    client = program.add_node(lp.ReverbNode(tables), label="replay")
    with program.group("actor"):
        for _ in range(3):
            program.add_node(lp.PyNode(act, barrier, client))
    with lp.launch(program, "test_mt") as run:
        arrived.wait_entered(3)
        arrived.release()
        assert client.dereference().server_info()["queue"].current_size == 0
        barrier.dereference().ready("learner")
        assert run.wait(["actor"], timeout=TIMEOUT_S)
        assert client.dereference().server_info()["queue"].current_size == 3


def test_who_waits_hears_of_the_stop() -> None:
    node = lp.CourierNode(lp.StartBarrier)
    with lp.launch(lp.make_program(node), "test_mt") as run:
        barrier = node.create_handle().dereference()
        waiting = barrier.futures.wait()
        assert barrier.missing() == 1
        run.stop()
        with pytest.raises(ProgramStopped):
            waiting.result(TIMEOUT_S)
