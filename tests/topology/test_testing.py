"""The test kit."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import socket
import subprocess
import sys
import threading
from multiprocessing import shared_memory

import pytest

import topology as lp
from topology.clock import SYSTEM_CLOCK, Clock, Deadline
from topology.context import NodeContext, bind_context
from topology.testing import Gate, ManualClock, Sequencer, assert_graph_equal, no_leaks, within


@pytest.fixture
def pool():
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        yield pool


def test_a_manual_clock_moves_by_hand():
    clock: Clock = ManualClock(start=100.0)
    assert clock.time() == clock.monotonic() == 100.0
    clock.advance(2.5)
    assert clock.time() == clock.monotonic() == 102.5
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)
    assert repr(clock) == "<ManualClock at 102.5, 0 waiting>"


def test_sleepers_wake_when_their_time_has_come(pool):
    clock = ManualClock()
    short, long = pool.submit(clock.sleep, 1), pool.submit(clock.sleep, 3)
    clock.wait_until_waiting(2)
    clock.advance(1)
    short.result(10)
    assert not long.done()
    clock.advance(1.5)
    clock.wait_until_waiting(1)
    assert not long.done()
    clock.advance(0.5)
    long.result(10)


def test_a_sleep_of_nothing_returns_at_once():
    ManualClock().sleep(0)


@pytest.mark.parametrize("timeout_s", [None, 10.0])
def test_a_wait_ends_with_its_predicate(pool, timeout_s):
    clock, condition, flags = ManualClock(), threading.Condition(), []

    def wait():
        with condition:
            return clock.wait_for(condition, lambda: bool(flags), timeout_s)

    future = pool.submit(wait)
    clock.advance(5)
    with condition:
        flags.append(1)
        condition.notify_all()
    assert future.result(10) is True


def test_a_wait_ends_with_its_time(pool):
    clock, condition = ManualClock(), threading.Condition()

    def wait():
        with condition:
            return clock.wait_for(condition, lambda: False, 2)

    future = pool.submit(wait)
    clock.wait_until_waiting()
    clock.advance(2)
    assert future.result(10) is False


def test_a_wait_that_nobody_ends_fails():
    clock = ManualClock(deadline_s=0.01)
    with pytest.raises(AssertionError, match="nobody moved it"):
        clock.sleep(1)
    with pytest.raises(AssertionError, match=r"0 of 1 threads wait on the clock after 0\.01 s"):
        clock.wait_until_waiting()


@pytest.mark.parametrize("clock", [SYSTEM_CLOCK, ManualClock()], ids=["system", "manual"])
def test_both_clocks_look_at_the_predicate_first(clock):
    condition = threading.Condition()
    with condition:
        assert clock.wait_for(condition, lambda: True, 0)
        assert clock.wait_for(condition, lambda: True)
        assert not clock.wait_for(condition, lambda: False, 0)
    assert clock.monotonic() <= clock.monotonic()
    assert clock.time() >= 0


def test_a_deadline_is_spread_over_several_waits():
    clock = ManualClock()
    deadline = Deadline(3.0, clock)
    clock.advance(1)
    assert (deadline.remaining(), deadline.expired) == (2.0, False)
    clock.advance(2)
    assert (deadline.remaining(), deadline.expired) == (0.0, True)
    clock.advance(1)
    assert deadline.remaining() == 0.0
    for_ever = Deadline(None, clock)
    assert (for_ever.remaining(), for_ever.expired) == (None, False)


def test_a_gate_holds_code_until_it_is_released(pool):
    gate = Gate()
    futures = [pool.submit(gate), pool.submit(gate, "any", argument=1)]
    gate.wait_entered(2)
    assert gate.entered == 2
    assert not any(future.done() for future in futures)
    gate.release()
    for future in futures:
        future.result(10)
    gate()  # stays open


def test_a_gate_does_not_hang_a_test():
    gate = Gate(deadline_s=0.01)
    with pytest.raises(AssertionError, match=r"0 of 1 calls came to the gate within 0\.01 s"):
        gate.wait_entered()
    with pytest.raises(AssertionError, match=r"nobody called release\(\)"):
        gate()


def test_a_sequencer_orders_blocks_of_threads(pool):
    sequencer, order = Sequencer(), []

    def worker(numbers):
        for number in numbers:
            with sequencer(number):
                order.append(number)

    for future in [pool.submit(worker, numbers) for numbers in ([2, 3, 7], [0, 4, 6], [1, 5])]:
        future.result(10)
    assert order == list(range(8))


def test_a_block_that_raises_breaks_the_order(pool):
    sequencer = Sequencer()

    def wait():
        with sequencer(2):
            pytest.fail("the block must not run")

    future = pool.submit(wait)
    with pytest.raises(KeyError), sequencer(0):
        raise KeyError
    with pytest.raises(AssertionError, match="block 2 cannot run: an earlier one raised") as caught:
        future.result(10)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_sequencer_does_not_hang_a_test():
    sequencer = Sequencer(deadline_s=0.01)
    with pytest.raises(AssertionError, match="block 1 waits for block 0 in vain"), sequencer(1):
        pytest.fail("the block must not run")
    with sequencer(0):
        pass
    with pytest.raises(AssertionError, match="block 0 ran already"), sequencer(0):
        pytest.fail("the block must not run")


def test_within_gives_what_the_function_gives():
    assert within(10, divmod, 7, 2) == (3, 1)
    assert within(10, dict, x=1) == {"x": 1}
    with pytest.raises(ZeroDivisionError):
        within(10, divmod, 1, 0)
    with pytest.raises(SystemExit):
        within(10, sys.exit, 3)


def test_within_shows_where_a_call_hangs():
    gate = Gate()
    with pytest.raises(AssertionError, match=r"did not return within 0\.05 s") as caught:
        within(0.05, gate)
    gate.release()
    assert "in __call__" in str(caught.value)


def test_within_keeps_the_node_context():
    context = NodeContext(label="a", index=0, launch_type="test_mt")
    with bind_context(context):
        assert within(10, lp.get_context) is context


def nested_function_that_waits(event):
    event.wait(10)


def test_a_thread_left_behind_is_shown_with_its_stack():
    event = threading.Event()
    thread = threading.Thread(target=nested_function_that_waits, args=(event,), name="forgotten", daemon=True)
    with pytest.raises(AssertionError) as caught, no_leaks(grace_s=0.01):
        thread.start()
    event.set()
    thread.join(10)
    text = str(caught.value)
    assert "thread 'forgotten' (daemon), now at:" in text
    assert "in nested_function_that_waits" in text


def test_a_thread_that_is_about_to_end_is_given_time():
    event = threading.Event()
    with no_leaks():
        thread = threading.Thread(target=nested_function_that_waits, args=(event,))
        thread.start()
        event.set()


def test_threads_can_be_allowed():
    event = threading.Event()
    thread = threading.Thread(target=event.wait, args=(10,), name="pool-7")
    with no_leaks(grace_s=0.01, allow_threads=["pool-"]):
        thread.start()
    event.set()
    thread.join(10)


def test_a_socket_left_behind_is_shown():
    made = []
    with pytest.raises(AssertionError, match=r"socket, file descriptor \d+: <socket\.socket fd="), no_leaks():
        made.append(socket.socket())
    made[0].close()
    with no_leaks():
        socket.socket().close()


@pytest.mark.skipif(sys.platform != "linux", reason="children are found through /proc")
def test_a_process_left_behind_is_shown():
    with contextlib.ExitStack() as stack:
        with pytest.raises(AssertionError, match=r"process \d+: .*python.* -c input\(\)"), no_leaks(grace_s=0.01):
            child = stack.enter_context(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
        child.stdin.close()
        assert child.wait(20) in (0, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="children are found through /proc")
def test_a_process_that_is_about_to_end_is_given_time():
    with contextlib.ExitStack() as stack:
        with no_leaks(grace_s=20):
            child = stack.enter_context(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
            child.stdin.close()
        child.wait(20)


@pytest.mark.skipif(sys.platform != "linux", reason="mappings are found through /proc")
def test_shared_memory_left_behind_is_shown():
    made = []
    with pytest.raises(AssertionError, match="shared memory /dev/shm/"), no_leaks(grace_s=0.01):
        made.append(shared_memory.SharedMemory(create=True, size=4096))
    made[0].close()
    made[0].unlink()


def test_the_servants_of_multiprocessing_do_not_count():
    with no_leaks():
        memory = shared_memory.SharedMemory(create=True, size=4096)  # starts the resource tracker
        memory.close()
        memory.unlink()
        assert not multiprocessing.active_children()


def test_an_error_in_the_block_is_not_hidden_by_its_leaks():
    made = []

    def leak_and_raise():
        made.append(socket.socket())
        raise KeyError

    with pytest.raises(KeyError), no_leaks(grace_s=0.01):
        leak_and_raise()
    made[0].close()


def test_graphs_are_compared_with_a_readable_difference():
    one, other = (lp.make_program(lp.PyNode(print, rate), name="p") for rate in (1, 2))
    assert_graph_equal(one, one.graph())
    with pytest.raises(AssertionError, match=r"not the expected one:\n~ pynode_0/0 args\[0\]: 2 -> 1"):
        assert_graph_equal(one, other)
