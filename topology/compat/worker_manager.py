"""Launchpad's WorkerManager: threads and processes started one by one, waited for and stopped together.

`lp.launch` does not use it, it returns a `Run`; it is here for programs that manage workers themselves.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from datetime import timedelta
from types import FrameType
from typing import Any, NamedTuple, final

import psutil

from launch.launch_types import flag_value
from launch.plan import DEFAULT_NOTICE_S
from topology.clock import SYSTEM_CLOCK
from topology.context import NodeContext, StopToken, bind_context

__all__ = ["ThreadWorker", "WorkerManager", "get_worker_manager"]


class ThreadWorker(NamedTuple):
    """A worker that is a thread, and the future of what it returns."""

    thread: threading.Thread
    future: Future[Any]


_Worker = ThreadWorker | subprocess.Popen[bytes] | psutil.Process

_current: ContextVar[WorkerManager | None] = ContextVar("topology_worker_manager", default=None)


def get_worker_manager() -> WorkerManager:
    """The manager of the worker that calls.

    Raises:
        RuntimeError: it is not the worker of a manager; nodes that `lp.launch` runs are not.
    """
    manager = _current.get()
    if manager is None:
        raise RuntimeError(
            "get_worker_manager() was called outside a worker of a WorkerManager: in nodes use lp.wait_for_stop(), "
            "lp.stop_event() and lp.stop(), in the launching script the run that lp.launch() returned"
        )
    return manager


@final
class WorkerManager:
    """Runs workers until all have ended. The first that fails stops the others.

    A stop sets the event that thread workers wait for, and sends SIGTERM to processes; those left after
    --lp_termination_notice_secs are killed. A thread cannot be.

    Args:
        kill_main_thread: accepted; this process is never killed.
        register_in_thread: `lp.wait_for_stop()` and its relatives speak of this manager in this thread, too, until
            `cleanup_after_test`.
        register_signals: SIGTERM, and the first Ctrl-C, stop the workers, while any are there. Main thread only.
        termination_notice_secs: instead of the flag; below 0 nothing is ever killed.
        handle_user_stop: whether Ctrl-C is among the signals.
        stop_main_thread: accepted; this thread hears of a stop as its workers do.
    """

    def __init__(
        self,
        kill_main_thread: bool = True,
        register_in_thread: bool = False,
        register_signals: bool = True,
        *,
        termination_notice_secs: float | None = None,
        handle_user_stop: bool = True,
        stop_main_thread: bool = False,
    ) -> None:
        del kill_main_thread, stop_main_thread
        self._notice_s = termination_notice_secs
        self._changed = threading.Condition(threading.RLock())  # a signal handler may come while its thread holds it
        self._token = StopToken(lambda _: self._stop())
        self._active_workers: defaultdict[str, list[_Worker]] = defaultdict(list)
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._failure: BaseException | None = None
        self._kill_timer: threading.Timer | None = None
        self._replaced: dict[int, Any] = {}
        self._entered = contextlib.ExitStack()
        self._owner = threading.get_ident()
        if register_signals and flag_value("lp_worker_manager_registers_signals") is not False:
            self._take_signals((signal.SIGTERM, signal.SIGINT) if handle_user_stop else (signal.SIGTERM,))
        if register_in_thread:
            self._enter_thread()

    def thread_worker(self, name: str, function: Callable[[], Any]) -> None:
        """Runs `function` in a thread."""
        future: Future[Any] = Future()
        with self._changed:
            context = self._context(name, self._counts[name])
            thread = threading.Thread(target=self._run, args=(function, future, context), name=name, daemon=True)
            worker = ThreadWorker(thread, future)
            self._add(name, worker)
            future.add_done_callback(lambda _: self._ended(name, worker, future.exception()))
            thread.start()

    def process_worker(
        self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None, **kwargs: Any
    ) -> None:
        """Starts a process. `kwargs` are of `subprocess.Popen`; `env` is its whole environment, by default empty."""
        process = subprocess.Popen(command, env=dict(env or {}), **kwargs)
        self._add(name, process)
        self._watch(name, process)

    def register_existing_process(self, name: str, pid: int) -> None:
        """Counts a process that runs already as a worker. How it ends is not known, so it never fails."""
        process = psutil.Process(pid)
        self._add(name, process)
        self._watch(name, process)

    def wait(
        self,
        labels_to_wait_for: Sequence[str] | None = None,
        raise_error: bool = True,
        return_on_first_completed: bool = False,
    ) -> None:
        """Blocks until the workers of these groups, or all, have ended, or one of any group has failed.

        Args:
            labels_to_wait_for: groups; None for all.
            raise_error: raise the first failure, once; otherwise it is left to a later `wait`.
            return_on_first_completed: one worker of the groups is enough.
        """

        def over() -> bool:
            if raise_error and self._failure is not None:
                return True
            labels = list(labels_to_wait_for or self._active_workers)
            left = [len(self._active_workers[label]) for label in labels]
            first = any(count < self._counts[label] for count, label in zip(left, labels, strict=True))
            return not any(left) or (return_on_first_completed and first)

        with self._changed:
            SYSTEM_CLOCK.wait_for(self._changed, over)
            failure = self._failure
            if raise_error and failure is not None:
                self._failure = None
                raise failure

    def join(self) -> None:
        """`wait()`."""
        self.wait()

    def stop_and_wait(self) -> None:
        """Stops the workers and blocks until they have ended. Failures are left to a later `wait`."""
        self._stop()
        self.wait(raise_error=False)

    def cleanup_after_test(self, test_case: object) -> None:
        """Stops the workers, waits for them, and raises the first failure."""
        del test_case
        self.stop_and_wait()
        self._give_signals_back()
        self._leave_thread()
        self.wait()

    def wait_for_stop(self, timeout_secs: float | timedelta | None = None) -> bool:
        """Blocks until the workers are to stop, at most so many seconds; returns whether they are."""
        return self._token.wait(timeout_secs.total_seconds() if isinstance(timeout_secs, timedelta) else timeout_secs)

    def stop_event(self) -> threading.Event:
        """Set when the workers are to stop."""
        return self._token.event

    def check_for_thread_worker_exception(self) -> None:
        """Raises what a thread worker has raised."""
        if self._failure is not None:
            raise self._failure

    def _enter_thread(self) -> None:
        self._entered.enter_context(bind_context(self._context("main", 0)))
        token = _current.set(self)
        self._entered.callback(lambda: _current.reset(token))

    def _leave_thread(self) -> None:
        if self._owner == threading.get_ident():
            self._entered.close()

    def _context(self, name: str, index: int) -> NodeContext:
        return NodeContext(program="workers", label=name, index=index, launch_type="test_mt", stop=self._token)

    def _add(self, name: str, worker: _Worker) -> None:
        with self._changed:
            self._active_workers[name].append(worker)
            self._counts[name] += 1

    def _run(self, function: Callable[[], Any], future: Future[Any], context: NodeContext) -> None:
        try:
            with bind_context(context):
                _current.set(self)
                future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised again by `wait`
            future.set_exception(error)

    def _watch(self, name: str, process: subprocess.Popen[bytes] | psutil.Process) -> None:
        def watch() -> None:
            code = process.wait()
            failed = bool(code) and isinstance(process, subprocess.Popen)
            error = RuntimeError(f"One of the workers exited with code {code}: {name}") if failed else None
            self._ended(name, process, error)

        threading.Thread(target=watch, name=f"{name} watch", daemon=True).start()

    def _ended(self, name: str, worker: _Worker, error: BaseException | None) -> None:
        with self._changed:
            self._active_workers[name].remove(worker)
            failed = error is not None and not self._token.is_set()
            if failed and self._failure is None:
                self._failure = error
            if self._kill_timer is not None and not any(self._active_workers.values()):
                self._kill_timer.cancel()
            self._changed.notify_all()
        if failed:
            self._stop()

    def _stop(self) -> None:
        if self._token.is_set():
            return
        self._token.set("the workers are to stop")
        self._send(subprocess.Popen.terminate, psutil.Process.terminate)
        notice_s = flag_value("lp_termination_notice_secs") if self._notice_s is None else self._notice_s
        with self._changed:
            active = any(self._active_workers.values())
            if active and self._kill_timer is None and (notice_s is None or notice_s >= 0):
                self._kill_timer = threading.Timer(DEFAULT_NOTICE_S if notice_s is None else notice_s, self._kill)
                self._kill_timer.daemon = True
                self._kill_timer.start()

    def _kill(self) -> None:
        self._send(subprocess.Popen.kill, psutil.Process.kill)

    def _send(self, to_ours: Callable[..., None], to_others: Callable[..., None]) -> None:
        with self._changed:
            workers = [worker for group in self._active_workers.values() for worker in group]
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                if isinstance(worker, subprocess.Popen):
                    to_ours(worker)
                elif isinstance(worker, psutil.Process):
                    to_others(worker)

    def _take_signals(self, numbers: Sequence[int]) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in numbers:
                self._replaced[number] = signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._token.is_set() or not any(self._active_workers.values()):
            self._give_signals_back()
            signal.raise_signal(number)
            return
        self._stop()
        previous = self._replaced.get(number)
        if callable(previous) and previous is not signal.default_int_handler:
            previous(number, frame)

    def _give_signals_back(self) -> None:
        for number, handler in self._replaced.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, handler)
        self._replaced.clear()
