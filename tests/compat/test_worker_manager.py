"""What Launchpad's own tests check of the WorkerManager."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import psutil
import pytest

from topology.compat import provided
from topology.testing import Gate, Sequencer, no_leaks

with provided():
    import launchpad as lp
    from launchpad.launch.worker_manager import WorkerManager, get_worker_manager

pytestmark = pytest.mark.usefixtures("provided")

TIMEOUT_S = 20


@pytest.fixture
def manager() -> Iterator[WorkerManager]:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with no_leaks():
        manager = WorkerManager(register_in_thread=True)
        yield manager
        manager.stop_and_wait()
        manager.cleanup_after_test(None)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def fail() -> None:
    raise RuntimeError("the error of the worker")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_workers(manager: WorkerManager, number: int) -> None:
    stopped: list[bool] = []
    manager.thread_worker("worker", lambda: stopped.append(lp.wait_for_stop(TIMEOUT_S)))
    manager.thread_worker("worker", lambda: stopped.append(lp.stop_event().wait(TIMEOUT_S)))
    assert not lp.wait_for_stop(0)
    assert not manager.wait_for_stop(timedelta(milliseconds=1))
    signal.raise_signal(number)
    assert lp.wait_for_stop(TIMEOUT_S), "the thread of the manager hears of it, too"
    manager.wait()
    assert stopped == [True, True]


def test_a_second_ctrl_c_is_what_it_always_was(manager: WorkerManager) -> None:
    gate = Gate()
    manager.thread_worker("worker", gate)
    gate.wait_entered()
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    gate.release()


def test_a_worker_that_takes_its_time_is_waited_for(manager: WorkerManager) -> None:
    steps = Sequencer()

    def work() -> None:
        lp.wait_for_stop()
        with steps(1):
            pass

    manager.thread_worker("worker", work)
    lp.stop()
    assert lp.wait_for_stop(TIMEOUT_S)
    with steps(0):
        assert len(manager._active_workers["worker"]) == 1
    manager.wait()
    with steps(2):
        assert manager._active_workers["worker"] == []


def test_stop_and_wait_joins_every_worker(manager: WorkerManager) -> None:
    ended: list[bool] = []
    for _ in range(3):
        manager.thread_worker("worker", lambda: ended.append(get_worker_manager().wait_for_stop(TIMEOUT_S)))
    manager.stop_and_wait()
    assert ended == [True] * 3


def test_stop_handlers_are_called(manager: WorkerManager) -> None:
    called, registered = threading.Event(), Gate()

    def work() -> None:
        lp.register_stop_handler(called.set)
        registered()
        assert called.wait(TIMEOUT_S)

    manager.thread_worker("worker", work)
    registered.wait_entered()
    registered.release()
    manager.stop_and_wait()
    assert called.is_set()


def test_the_error_of_one_worker_ends_the_wait_for_another(manager: WorkerManager) -> None:
    manager.thread_worker("a", lp.wait_for_stop)
    manager.thread_worker("b", fail)
    with pytest.raises(RuntimeError, match="the error of the worker"):
        manager.wait(["a"])
    manager.wait()


def test_an_error_may_be_left_to_a_later_wait(manager: WorkerManager) -> None:
    manager.thread_worker("worker", fail)
    manager.wait(raise_error=False)
    with pytest.raises(RuntimeError, match="the error of the worker"):
        manager.check_for_thread_worker_exception()
    with pytest.raises(RuntimeError, match="the error of the worker"):
        manager.join()


def test_the_first_that_ends_may_be_enough(manager: WorkerManager) -> None:
    manager.thread_worker("worker", lp.wait_for_stop)
    manager.thread_worker("worker", int)
    manager.wait(return_on_first_completed=True)
    assert not lp.wait_for_stop(0)


def test_a_process_is_ended_by_the_stop(manager: WorkerManager) -> None:
    manager.process_worker("process", ["sleep", "3600"])
    (process,) = manager._active_workers["process"]
    other = subprocess.Popen(["sleep", "3600"])
    manager.register_existing_process("other", other.pid)
    manager.stop_and_wait()
    assert isinstance(process, subprocess.Popen)
    assert process.returncode == -signal.SIGTERM
    assert other.wait(TIMEOUT_S) in (0, -signal.SIGTERM)  # the manager may have taken its code
    assert not psutil.pid_exists(other.pid)


def test_a_notice_of_its_own() -> None:
    """Whoever copied the original's colocation gives it; nothing is killed below 0, and Ctrl-C stays what it was."""
    before = signal.getsignal(signal.SIGINT)
    other = WorkerManager(termination_notice_secs=0.01, handle_user_stop=False, stop_main_thread=True)
    assert signal.getsignal(signal.SIGINT) == before
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
    with no_leaks():
        other.process_worker("deaf", [sys.executable, "-c", code], stdout=subprocess.PIPE)
        (process,) = other._active_workers["deaf"]
        assert isinstance(process, subprocess.Popen)
        assert process.stdout is not None
        with process.stdout:
            process.stdout.readline()
        other.stop_and_wait()
        assert process.returncode == -signal.SIGKILL
        other.cleanup_after_test(None)


def test_a_process_that_fails(manager: WorkerManager) -> None:
    manager.process_worker("process", [sys.executable, "-c", "raise SystemExit(7)"])
    with pytest.raises(RuntimeError, match="One of the workers exited with code 7"):
        manager.wait()


def test_two_managers_hear_of_one_signal(manager: WorkerManager) -> None:
    second = WorkerManager()
    ended: list[str] = []

    def work(name: str) -> Callable[[], None]:
        return lambda: ended.append(name) if lp.wait_for_stop(TIMEOUT_S) else None

    manager.thread_worker("worker", work("first"))
    second.thread_worker("worker", work("second"))
    signal.raise_signal(signal.SIGTERM)
    second.wait()
    manager.wait()
    assert sorted(ended) == ["first", "second"]
    second.cleanup_after_test(None)


def test_outside_a_worker_there_is_no_manager() -> None:
    with pytest.raises(RuntimeError, match=r"in nodes use lp.wait_for_stop\(\)"):
        get_worker_manager()
