"""Runs every node as a thread of this process."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import ClassVar, final

from launch.aside import call_aside
from launch.deployment import Deployment
from launch.engine import Backend
from launch.launch_types import LaunchType
from launch.launcher import Launcher
from launch.outcome import Outcome, outcome_of
from launch.plan import LaunchOptions, Plan, PlannedNode, make_plan
from launch.supervisor import Ended
from launch.thread_output import ThreadOutput
from topology.context import NodeContext, StopToken, bind_context, seed_after_restarts
from topology.executable import Executable
from topology.interrupt import interrupt_thread
from topology.leak_guard import stack_of
from topology.program import Program

__all__ = ["Threads"]

_logger = logging.getLogger(__name__)


@final
@dataclass(frozen=True, kw_only=True)
class Threads(Launcher):
    """Launches every node as a thread.

    A stop sets the nodes' stop tokens. Code that never looks at its token gets a `SystemExit` at its next bytecode; a
    thread that stays inside a C call cannot be ended, and is reported with its stack and left behind.
    """

    launch_type: ClassVar[str] = LaunchType.LOCAL_MULTI_THREADING.value

    def plan(self, program: Program, options: LaunchOptions | None = None) -> Plan:
        options = options or LaunchOptions(launch_type=self.launch_type)
        return make_plan(program, options, serialize=options.check_serializable)

    def open_backend(self, deployment: Deployment) -> Backend:
        # Tests read their own stdout, so there the streams are left alone.
        output = None if deployment.plan.options.temporary else ThreadOutput(deployment.terminal)
        return _ThreadBackend(deployment, output)


@final
@dataclass
class _Worker:
    """One run of a node."""

    node: PlannedNode
    context: NodeContext
    thread: threading.Thread | None = None
    interrupted_at: tuple[FrameType, int] | None = None
    ended: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


@final
class _ThreadBackend:
    def __init__(self, deployment: Deployment, output: ThreadOutput | None) -> None:
        self._deployment = deployment
        self._output = output
        self._post = deployment.post
        self._workers: dict[int, _Worker] = {}
        self._stop_reason: str | None = None

    def start(self, node: int, restarts: int) -> None:
        planned = self._deployment.plan.nodes[node]
        seed = seed_after_restarts(planned.seed, restarts)
        context = self._context(replace(planned, seed=seed), StopToken(self._deployment.request_stop))
        worker = _Worker(planned, context)
        self._workers[node] = worker
        if self._output is not None:
            log = self._deployment.directory.log_path(planned.executable.label, planned.executable.index)
            self._output.attach(context, log)
        worker.thread = threading.Thread(target=self._run, args=(node, worker), name=planned.name, daemon=True)
        worker.thread.start()

    def _context(self, planned: PlannedNode, token: StopToken) -> NodeContext:
        def run_in_processes(executables: Sequence[Executable]) -> None:
            from launch.nested import run_nested  # only programs that have such nodes need it

            run_nested(executables, context, planned.process, self._deployment.plan.options.termination_notice_s)

        context = replace(self._deployment.context(planned, token), run_in_processes=run_in_processes)
        return context

    def _run(self, node: int, worker: _Worker) -> None:
        error: BaseException | None = None
        try:
            with bind_context(worker.context):
                worker.node.executable.entry()
        except BaseException as raised:  # noqa: BLE001 - judged by the supervisor, raised again by Run.wait
            error = raised
        with contextlib.suppress(SystemExit):  # the interrupt: the notice is over
            self._join_handlers(worker)
        outcome: Outcome | None = None
        while not worker.ended:
            # An interrupt may come late: when the entry has ended, and this thread is on its way out.
            with contextlib.suppress(SystemExit):
                outcome = outcome or outcome_of(error, stopping=self._stop_reason is not None, skip_frames=1)
                self._end(node, worker, outcome)
        # The error holds this frame by its traceback, and the frame must not hold the error: what the node's frames
        # refer to, arrays among it, is to go now and in order, not in a garbage collection some time later.
        del error, outcome

    def _join_handlers(self, worker: _Worker) -> None:
        notice_s = self._deployment.plan.options.termination_notice_s
        for late in worker.context.stop.join_handlers(notice_s, coming=self._stop_reason is not None):
            _logger.warning(
                "the stop handler %r of %s did not end within the notice of %g s, and is left behind",
                late, worker.context.name, notice_s,
            )  # fmt: skip

    def _end(self, node: int, worker: _Worker, outcome: Outcome) -> None:
        with worker.lock:
            if not worker.ended:
                try:
                    if self._output is not None:
                        self._output.write(worker.context, outcome.remote_traceback)
                finally:
                    self._post(Ended(node, outcome))
                    worker.ended = True

    def announce_stop(self, reason: str) -> None:
        self._stop_reason = reason
        for worker in self._workers.values():
            _tell(worker.context, reason)

    def nudge(self, node: int) -> None:
        if not self._workers[node].context.stop.observed:
            self._interrupt(self._workers[node])

    def _interrupt(self, worker: _Worker) -> None:
        with worker.lock:  # not while it reports its end
            if not worker.ended and worker.thread is not None:
                interrupt_thread(worker.thread)
                worker.interrupted_at = _position(worker.thread)

    def check(self, node: int) -> None:
        worker = self._workers[node]
        if worker.thread is None or worker.interrupted_at is None:
            return
        if _position(worker.thread) == worker.interrupted_at:
            self._abandon(node, "was inside a C call when the program stopped and is there still")

    def interrupt(self, node: int) -> None:
        self._interrupt(self._workers[node])

    def kill(self, node: int) -> None:
        self._abandon(node, "did not end within the notice")

    def _abandon(self, node: int, what: str) -> None:
        worker = self._workers[node]
        stack = "" if worker.thread is None else stack_of(worker.thread)
        message = f"{what}; its thread is left behind, at:\n{stack.rstrip()}"
        self._end(node, worker, Outcome(message=message, exit_code=None, late=True))

    def close(self) -> None:
        for worker in self._workers.values():
            _tell(worker.context, "the program has ended")  # for threads and handlers that a node left behind
        self._stop_reason = self._stop_reason or "the program has ended"
        for worker in self._workers.values():
            self._join_handlers(worker)
        self._workers.clear()
        if self._output is not None:
            self._output.close()


def _tell(context: NodeContext, reason: str) -> None:
    def tell() -> None:
        with bind_context(context):
            context.stop.set(reason)

    call_aside(tell, f"stop of {context.name}")


def _position(thread: threading.Thread) -> tuple[FrameType, int] | None:
    """Where a thread is: the same again later means that it has not moved."""
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - documented, in spite of its name
    return None if frame is None else (frame, frame.f_lasti)
