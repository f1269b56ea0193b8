"""A program that runs: what `lp.launch` returns."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, final

from launch import at_exit, signals
from launch.aside import call_aside, start_thread
from launch.deployment import Deployment
from launch.engine import Backend, Engine
from launch.outcome import Outcome, add_note, failure_of, failure_text
from launch.output import Terminal
from launch.run_status import RunStatus, WorkerStatus
from launch.supervisor import Interrupted, NodeState, StopRequested
from launch.surroundings import Surroundings
from topology import address, stopping
from topology.clock import SYSTEM_CLOCK, Deadline
from topology.context import StopToken, try_get_context
from topology.errors import CourierError, LaunchError, ReplayError
from topology.executable import Executable

__all__ = ["Run", "run_in"]

_logger = logging.getLogger(__name__)
_runs: weakref.WeakValueDictionary[tuple[int, Path], Run] = weakref.WeakValueDictionary()  # by process and directory


def run_in(directory: Path) -> Run | None:
    """The run that this process launches, or has launched last, in `directory`."""
    return _runs.get((os.getpid(), directory.resolve()))


@final
class Run:
    """A program that runs, or has run. As a context manager it stops the program when the block ends.

    Methods may be called from any thread. Launchers make it with `Run.start`.

    Attributes:
        problems: what could not be given back at its end, a line each.
    """

    def __init__(self, surroundings: Surroundings) -> None:
        plan = surroundings.plan
        self._surroundings = surroundings
        self._nodes = plan.nodes
        self._stop = StopToken(self._request_stop)
        self._engine = Engine(
            [node.policy for node in plan.nodes],
            plan.options.termination_notice_s,
            on_stop=self._tell_script,
            on_change=self._record,
        )
        self._backend: Backend | None = None
        self._cancelled = StopToken()
        self._ended = threading.Event()
        self._abandoned = ""  # how it ended that was never started
        self._raised = False
        self._is_watched = False  # somebody stops it, so whether it failed is for them to ask
        self._recorder = surroundings.recorder
        self.problems: list[str] = []
        undo, endpoints = surroundings.undo, surroundings.endpoints.table
        undo.push("its addresses", address.register_endpoints(endpoints, surroundings.secret, self._stop))
        undo.push("its place among the programs of this process", stopping.register_run(self._stop))
        undo.push("its stop token", lambda: self._tell_script("the program has ended"))
        _runs[os.getpid(), self.run_directory.resolve()] = self

    def __repr__(self) -> str:
        return f"<Run {self.run_id} {self.state}>"

    def start(self, backend: Backend) -> Run:
        """Starts the nodes on `backend`: for launchers. Raises `LaunchError` when the system has no thread for it."""
        if self._cancelled.is_set():
            raise LaunchError(self._cancelled.reason)
        self._backend = backend
        signals.register(self)
        _logger.info("the run %s starts; its logs are in %s", self.run_id, self._surroundings.directory.logs)
        with signals.waiting(raise_later=True):  # a Ctrl-C from here on stops the run, and is raised by its `wait`
            start_thread(threading.Thread(target=self._drive, name=f"run {self.run_id}", daemon=True))
            at_exit.wait_for(self)
            self._engine.started.wait()  # some Pythons start no thread once the script has ended
        return self

    def abandon(self, error: BaseException) -> LaunchError | None:
        """It was not started, because of `error`: for launchers. Gives back what there was of it.

        Returns what is to be raised in place of `error`; None for that itself.
        """
        cancelled = self._cancelled.is_set()
        self.problems = self._surroundings.abandon(error, cancelled=cancelled)
        signals.unregister(self)
        with self._engine.changed:
            self._abandoned = "stopped" if cancelled else "failed"
            self._ended.set()
            self._engine.changed.notify_all()
        if not (cancelled and isinstance(error, LaunchError)):
            return None
        return LaunchError(f"The run {self.run_id} was stopped while it was starting: {self._cancelled.reason}")

    def deployment(self, terminal: Terminal | None) -> Deployment:
        """What a launcher makes a backend of."""
        return Deployment(
            surroundings=self._surroundings,
            terminal=terminal,
            post=self._engine.post,
            request_stop=lambda reason: self._engine.post(StopRequested(reason, purpose="finished")),
            cancelled=self._cancelled,
        )

    @property
    def run_id(self) -> str:
        """Name of the run: that of its directory."""
        return self._surroundings.directory.run_id

    @property
    def run_directory(self) -> Path:
        """Where the run keeps logs, metrics and checkpoints. Test launches remove it at the end."""
        return self._surroundings.directory.path

    @property
    def is_test(self) -> bool:
        """Whether it was launched as one of the test types."""
        return self._surroundings.plan.options.temporary

    @property
    def stop_token(self) -> StopToken:
        """Set when the program is to stop."""
        return self._stop

    @property
    def state(self) -> str:
        """`starting`, `running`, `stopping`, then `finished`, `failed` or `stopped`."""
        supervisor = self._engine.supervisor
        if self._abandoned:
            return self._abandoned
        if not supervisor.done:
            if supervisor.nodes[0].state is NodeState.PENDING:
                return "starting"
            return "stopping" if supervisor.stopping else "running"
        return "failed" if supervisor.failures else supervisor.purpose

    @property
    def exit_codes(self) -> dict[str, int | None]:
        """Exit code of every node by `label/index`; None while it runs."""
        return {worker.name: worker.exit_code for worker in self.report().workers}

    def status(self) -> dict[str, str]:
        """State of every node by `label/index`: pending, running, restarting, finished, failed or stopped."""
        return {worker.name: worker.state for worker in self.report().workers}

    def report(self) -> RunStatus:
        """How the run and all of its workers are now."""
        plan = self._surroundings.plan
        with self._engine.changed:
            return RunStatus(
                run_id=self.run_id,
                program=plan.program,
                launch_type=plan.options.launch_type,
                state=self.state,
                error=failure_text(self._failures()),
                workers=tuple(map(WorkerStatus.of, self._nodes, self._engine.supervisor.nodes)),
            )

    @property
    def has_ended(self) -> bool:
        """Whether it is over, and what it had is given back."""
        return self._ended.is_set()

    def wait(
        self,
        labels: Sequence[str] | float | None = None,
        timeout: float | None = None,
        *,
        raise_error: bool = True,
        return_on_first_completed: bool = False,
    ) -> bool:
        """Blocks until the program, or all nodes of the groups `labels`, have ended; returns False on a timeout.

        A failure of any node, also outside `labels`, ends the wait when the program has stopped. It is raised once: a
        second `wait` returns.

        Args:
            labels: groups to wait for; None for all. A number is taken as the timeout.
            timeout: seconds; None for ever.
            raise_error: False leaves the failure to a later `wait`.
            return_on_first_completed: one node of the groups is enough.

        Raises:
            NodeFailed: a node failed. A node that ran as a thread has its own exception raised here.
            LaunchError: a label is no group of the program.
            KeyboardInterrupt: Ctrl-C was pressed, and the program has ended.
        """
        if isinstance(labels, int | float):
            labels, timeout = None, labels
        nodes = self._numbers(labels)
        enough = any if return_on_first_completed else all
        try:
            with signals.waiting():
                ended = self._wait_until(lambda: enough(self._is_over(node) for node in nodes), timeout)
        except KeyboardInterrupt as interrupt:
            raise interrupt.with_traceback(None) from None  # where in here it came tells nobody anything
        if ended and raise_error:
            self._raise_failure()
        return ended

    def _numbers(self, labels: Sequence[str] | None) -> list[int]:
        if labels is None:
            return list(range(len(self._nodes)))
        known = {node.executable.label for node in self._nodes}
        labels = [labels] if isinstance(labels, str) else labels
        for label in labels:
            if label not in known:
                raise LaunchError(
                    f"wait() was asked for {label!r}: the groups are {', '.join(map(repr, sorted(known)))}"
                )
        return [number for number, node in enumerate(self._nodes) if node.executable.label in labels]

    def _is_over(self, node: int) -> bool:
        return self._engine.supervisor.nodes[node].state in (NodeState.FINISHED, NodeState.FAILED, NodeState.STOPPED)

    def _wait_until(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        supervisor = self._engine.supervisor
        deadline = Deadline(timeout)
        with self._engine.changed:
            met = SYSTEM_CLOCK.wait_for(
                self._engine.changed,
                lambda: supervisor.done or self.has_ended or (condition() and not supervisor.failures),
                deadline.remaining(),
            )
            must_end = supervisor.done or self.has_ended
        if not (met and must_end):
            return met
        return self._ended.wait(deadline.remaining()) and self._join_handlers(deadline)

    def _join_handlers(self, deadline: Deadline) -> bool:
        """Waits for the stop handlers of this script; returns False when the deadline cuts the notice short."""
        notice_s = self._surroundings.plan.options.termination_notice_s
        late = self._stop.join_handlers(notice_s, coming=True, timeout_s=deadline.remaining())
        return not late or not deadline.expired

    def _raise_failure(self) -> None:
        with self._engine.changed:
            failures = self._failures()
            raised, self._raised = self._raised, True
        if failures and not raised:
            raise failure_of(self._surroundings.plan.program, failures)

    def _failures(self) -> list[tuple[Executable, Outcome]]:
        return [(self._nodes[node].executable, its) for node, its in self._engine.supervisor.reported_failures()]

    def stop(self, reason: str = "Run.stop() was called", *, timeout: float | None = None) -> bool:
        """Stops the program and blocks until it has ended; returns False on a timeout. Only `wait` raises failures.

        Called by a node of this very run it does not block.
        """
        self._is_watched = True
        self._request_stop(reason)
        context = try_get_context()
        if context is not None and context.endpoints is self._surroundings.endpoints.table:
            return False
        return self.wait(timeout=timeout, raise_error=False)

    def _request_stop(self, reason: str) -> None:
        if self._backend is None:
            self._cancelled.set(reason)
        self._engine.post(StopRequested(reason))

    def _tell_script(self, reason: str) -> None:
        call_aside(lambda: self._stop.set(reason), f"stop of {self.run_id}")

    def interrupt(self, reason: str, *, now: bool = False) -> None:
        """Ctrl-C: the first stops the program, the second (or `now`) at once. Safe in a signal handler."""
        self._engine.post(Interrupted(reason))
        if now:
            self._engine.post(Interrupted(reason))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop("the with block of the run ended")
        if error is None or isinstance(error, CourierError | ReplayError):
            self._raise_failure()  # the failure of a node is why a call of the block did not get through
        elif text := failure_text(self._failures()):
            add_note(error, text)

    def unreported_failure(self) -> BaseException | None:
        """The failure nobody has asked about: for the end of the script."""
        return None if self._is_seen() else failure_of(self._surroundings.plan.program, self._failures())

    def is_settled(self) -> bool:
        """Whether it has ended, and nothing is left to say of it at the end of the script."""
        return self._ended.is_set() and self._is_seen()

    def _is_seen(self) -> bool:
        return self._raised or self._is_watched or not self._engine.supervisor.failures

    def _drive(self) -> None:
        assert self._backend is not None
        try:
            self._engine.run(self._backend)
        finally:
            self._close()

    def _close(self) -> None:
        try:
            self.problems = self._surroundings.undo.run()
            self._recorder.ended(failure_text(self._failures()), self.problems)
            self._report_late()
            self._surroundings.remove_temporary(self.problems)
        finally:
            signals.unregister(self)
            self._engine.started.set()
            self._ended.set()

    def _report_late(self) -> None:
        for node, record in zip(self._nodes, self._engine.supervisor.nodes, strict=True):
            if record.late:
                _logger.warning("%s %s", node.name, record.message)

    def _record(self) -> None:
        self._recorder.changed(self.state, self._engine.supervisor.nodes)
