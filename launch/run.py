"""A program that runs: what `lp.launch` returns."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, final

from launch import at_exit, signals
from launch.aside import call_aside
from launch.engine import Backend, Engine
from launch.outcome import Outcome, add_note, node_failed
from launch.recorder import Recorder
from launch.supervisor import Interrupted, NodeState, StopRequested
from launch.surroundings import Surroundings
from topology import address, stopping
from topology.clock import SYSTEM_CLOCK, Deadline
from topology.context import StopToken, try_get_context
from topology.errors import CourierError, LaunchError, ReplayError

__all__ = ["Run"]

_logger = logging.getLogger(__name__)


@final
class Run:
    """A program that runs, or has run. As a context manager it stops the program when the block ends.

    Methods may be called from any thread. Launchers make it with `Run.start`.
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
        self._ended = threading.Event()
        self._raised = False
        self._is_watched = False  # somebody stops it, so whether it failed is for them to ask
        self._recorder = Recorder(surroundings.directory, plan)
        self._undo: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<Run {self.run_id} {self.state}>"

    def start(self, backend: Backend) -> Run:
        """Starts the nodes on `backend`: for launchers. Raises `LaunchError` when the system has no thread for it."""
        self._backend = backend
        surroundings = self._surroundings
        self._undo = [
            address.register_endpoints(surroundings.endpoints.table, surroundings.secret, self._stop),
            stopping.register_run(self._stop),
        ]
        signals.register(self)
        _logger.info("the run %s starts; its logs are in %s", self.run_id, surroundings.directory.logs)
        with signals.waiting(raise_later=True):  # a Ctrl-C from here on stops the run, and is raised by its `wait`
            try:
                threading.Thread(target=self._drive, name=f"run {self.run_id}", daemon=True).start()
            except RuntimeError as error:
                self._close()
                raise LaunchError(f"The system refused a thread for the run: {error}. Nothing was started.") from error
            at_exit.wait_for(self)
            self._engine.started.wait()  # some Pythons start no thread once the script has ended
        return self

    def post_stop(self, reason: str) -> None:
        """A node asked for the stop: for backends."""
        self._engine.post(StopRequested(reason, purpose="finished"))

    @property
    def engine(self) -> Engine:
        """For backends, which post to it."""
        return self._engine

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
        if not supervisor.done:
            if supervisor.nodes[0].state is NodeState.PENDING:
                return "starting"
            return "stopping" if supervisor.stopping else "running"
        return "failed" if supervisor.failures else supervisor.purpose

    @property
    def exit_codes(self) -> dict[str, int | None]:
        """Exit code of every node by `label/index`; None while it runs."""
        with self._engine.changed:
            records = self._engine.supervisor.nodes
            return {node.name: record.exit_code for node, record in zip(self._nodes, records, strict=True)}

    def status(self) -> dict[str, str]:
        """State of every node by `label/index`: pending, running, restarting, finished, failed or stopped."""
        with self._engine.changed:
            records = self._engine.supervisor.nodes
            return {node.name: record.state.value for node, record in zip(self._nodes, records, strict=True)}

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
                lambda: supervisor.done or (condition() and not supervisor.failures),
                deadline.remaining(),
            )
            must_end = supervisor.done
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
            failures = self._engine.supervisor.reported_failures()
            raised, self._raised = self._raised, True
        if not failures or raised:
            return
        raise self._error(failures)

    def _error(self, failures: list[tuple[int, Outcome]]) -> BaseException:
        node, outcome = failures[0]
        executable = self._nodes[node].executable
        if isinstance(outcome.error, Exception):
            error: BaseException = outcome.error
            add_note(error, f"in node {executable.name} of the program {self._surroundings.plan.program!r}")
        else:
            error = node_failed(executable.label, executable.index, outcome)
        for other, its_outcome in failures[1:]:
            add_note(error, f"node {self._nodes[other].name} failed, too: {its_outcome.message}")
        return error

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
        elif text := self._failure_text():
            add_note(error, text)

    def unreported_failure(self) -> BaseException | None:
        """The failure nobody has asked about: for the end of the script."""
        return None if self._is_seen() else self._error(self._engine.supervisor.reported_failures())

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
        assert self._backend is not None
        self._backend.close()
        self._tell_script("the program has ended")
        for undo in self._undo:
            undo()
        self._recorder.ended(self._failure_text())
        self._report_late()
        self._surroundings.release()
        signals.unregister(self)
        self._engine.started.set()
        self._ended.set()

    def _report_late(self) -> None:
        for node, record in zip(self._nodes, self._engine.supervisor.nodes, strict=True):
            if record.late:
                _logger.warning("%s %s", node.name, record.message)

    def _record(self) -> None:
        self._recorder.changed(self.state, self._engine.supervisor.nodes)

    def _failure_text(self) -> str | None:
        failures = self._engine.supervisor.reported_failures()
        if not failures:
            return None
        node, outcome = failures[0]
        executable = self._nodes[node].executable
        return str(node_failed(executable.label, executable.index, outcome))
