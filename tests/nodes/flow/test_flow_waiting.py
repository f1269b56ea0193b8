"""The waker: what may end a wait, and what a wait may be for."""

import threading
from concurrent.futures import Future

import pytest

from topology.context import StopToken
from topology.errors import ProgramStopped
from topology.nodes.flow.events import Waker
from topology.testing import ManualClock, within


def test_a_wake_up_before_the_wait_is_not_lost():
    waker = Waker()
    waker.clear()
    waker.arm()
    waker.wake()
    within(10, waker.wait)


def test_nobody_has_promised_to_wake_it():
    waker = Waker()
    waker.clear()
    with pytest.raises(RuntimeError, match="never go on"):
        within(10, waker.wait)


def test_the_earliest_deadline_counts():
    clock = ManualClock()
    waker = Waker(clock)
    waker.clear()
    waker.wake_at(50.0)
    waker.wake_at(20.0)
    waiting = threading.Thread(target=waker.wait)
    waiting.start()
    clock.wait_until_waiting()
    clock.advance(20.0)
    waiting.join(10)
    assert not waiting.is_alive()


@pytest.mark.parametrize("others", [False, True], ids=["the future alone", "beside something else"])
def test_futures_end_a_wait(others):
    waker = Waker()
    waker.clear()
    futures = [Future(), Future()]
    waker.arm_futures(futures[:1])
    if others:
        waker.arm_futures(futures[1:])
    threading.Timer(0.02, futures[-1 if others else 0].set_result, (1,)).start()
    within(10, waker.wait)


def test_the_stop_ends_a_wait():
    token = StopToken()
    waker = Waker(stop=token)
    waker.clear()
    waker.arm()
    threading.Timer(0.02, token.set).start()
    with pytest.raises(ProgramStopped):
        within(10, waker.wait)
