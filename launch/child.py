"""The main function of a node's process."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import io
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, final

from launch import absl_programs
from launch.aside import call_aside
from launch.channel import Channel
from launch.debugging import attach_terminal
from launch.import_guard import importing
from launch.log_levels import show_levels
from launch.outcome import Outcome, outcome_of
from launch.python_process import PythonProcess
from topology.context import NodeContext, StopToken, seed_after_restarts, set_process_context
from topology.executable import Executable

__all__ = ["Setup", "main"]

_HEARSAY_S = 0.2  # a call may fail since its server heard of a stop that is on its way to this node, too
_AGAIN_S = 0.05  # from an interrupt that was lost to the next
_FAILED_EXIT_S = 5.0  # for the exit functions of a node that failed


@final
@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a launcher tells a node's process.

    Attributes:
        context: fields of the node's context, but for those that only the process can make.
        payload: absl's flags of the script, if it has parsed them, and the entry, pickled. It is read last, when
            everything its imports may look at is in place.
        module_path: `sys.path` of the launching script.
        argv: `sys.argv` of the node.
        parse_flags: the launching script parsed absl's flags, so nodes may read them.
        directory: working directory.
        notice_s: of the node's stop; for what it launches itself.
        process: how its process was started; for what it launches itself.
        terminal: becomes its standard files, for a debugger; None for no terminal.
    """

    context: dict[str, Any]
    payload: bytes
    module_path: Sequence[str]
    argv: Sequence[str]
    parse_flags: bool
    directory: str
    notice_s: float
    process: PythonProcess
    terminal: str | None = None

    def after_restarts(self, restarts: int) -> Setup:
        """For a process that takes the place of so many that failed."""
        seed = seed_after_restarts(self.context["seed"], restarts)
        return replace(self, context={**self.context, "seed": seed})

    def dumps(self) -> bytes:
        """As the file that `main` reads."""
        return pickle.dumps(self, protocol=5)


def main(channel: Channel, setup_file: int) -> int:
    """Runs one node and returns the exit code; the caller must end the process with it at once."""
    with open(setup_file, "rb", closefd=True) as file:
        file.seek(0)
        setup: Setup = pickle.load(file)
    _prepare(setup)
    node = _Node(channel, setup)
    signal.signal(signal.SIGTERM, node.on_sigterm)  # before anybody listens to a launcher that may want it raised
    threading.Thread(target=node.listen, name="launcher", daemon=True).start()
    return node.run()


def _prepare(setup: Setup) -> None:
    sys.argv = list(setup.argv)
    own = [part for part in sys.path if part not in setup.module_path]
    sys.path[:] = [*setup.module_path, *own]
    with contextlib.suppress(OSError):  # it may have gone; then the one of the fork server must do
        os.chdir(setup.directory)
    if setup.terminal is not None:
        attach_terminal(setup.terminal)
    sys.stdout = sys.__stdout__ = _line_writer(1)  # type: ignore[misc]  # as they are made at an interpreter's start
    sys.stderr = sys.__stderr__ = _line_writer(2)  # type: ignore[misc]
    faulthandler.enable()
    show_levels()
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()  # forks of one process would all draw the same numbers


def _line_writer(descriptor: int) -> io.TextIOWrapper:
    raw = open(descriptor, "wb", closefd=False)  # noqa: SIM115 - as long as the process
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def _log(text: str) -> None:
    """Writes to the node's log, whatever the node has put in the place of `sys.stderr`."""
    with contextlib.suppress(Exception):
        if sys.stderr is not None:
            sys.stderr.flush()
    with contextlib.suppress(OSError, ValueError), _line_writer(2) as stderr:
        stderr.write(text)


@final
class _Node:
    def __init__(self, channel: Channel, setup: Setup) -> None:
        self._channel = channel
        self._setup = setup
        self._stop = StopToken(self._request_stop)
        self._announced = threading.Event()  # our own: asking the token would make the node look aware of the stop
        self._in_user_code = False
        self._in_exit_functions = False
        self._interrupts = 0
        self._report_unraisable = sys.unraisablehook
        self._pid = os.getpid()
        self._main_thread = threading.main_thread().ident or 0
        self.context = NodeContext(**setup.context, stop=self._stop, run_in_processes=self._run_in_processes)

    def run(self) -> int:
        """The main thread's part."""
        set_process_context(self.context)
        sys.unraisablehook = self._on_unraisable
        outcome = self._run_entry()
        _log(outcome.remote_traceback)
        if os.getpid() != self._pid:  # the child of a node that forks has come out of the node's code
            return outcome.exit_code or 0
        self._channel.send(
            {
                "event": "outcome",
                "failed": outcome.failed,
                "message": outcome.message,
                "exit_code": outcome.exit_code,
                "remote_traceback": outcome.remote_traceback,
                "secondary": outcome.secondary,
                "final": outcome.final,
            }
        )
        self._finish(failed=outcome.failed)
        return outcome.exit_code or 0

    def _run_entry(self) -> Outcome:
        error: BaseException | None = None
        try:
            self._in_user_code = True
            self._heed_interrupts()
            self._entry()
            self._in_user_code = False
        except BaseException as raised:  # noqa: BLE001 - told to the launcher, which judges it
            self._in_user_code = False
            error = raised
        outcome = outcome_of(error, stopping=self._announced.is_set(), skip_frames=2)
        if outcome.secondary and self._announced.wait(_HEARSAY_S):
            return outcome_of(error, stopping=True)
        return outcome

    def _entry(self) -> None:
        if self._setup.parse_flags:
            absl_programs.begin()
        with importing(f"the node {self.context.name} imported what it needs"):
            _, entry = pickle.loads(self._setup.payload)
        if self._setup.parse_flags:
            absl_programs.read_flags()
        entry()

    def _finish(self, *, failed: bool) -> None:
        """What the end of a Python process does: waits for the user's threads, then calls exit functions.

        Before that come the handlers of a stop. Without a stop nothing is waited for after a failure, or the program
        would hear of it late. The stop's interrupt ends this.
        """
        self._interruptible(self._join_handlers)
        if failed:
            timer = threading.Timer(_FAILED_EXIT_S, os._exit, [1])
            timer.daemon = True
            timer.start()
        if not failed:
            self._interruptible(self._join_threads)
        self._in_exit_functions = True
        self._interruptible(atexit._run_exitfuncs)  # noqa: SLF001 - what the interpreter calls at its end

    def _join_handlers(self) -> None:
        notice_s = self._setup.notice_s
        try:
            self._heed_interrupts()
            all_late = self._stop.join_handlers(notice_s, coming=self._announced.is_set())
        except SystemExit:  # by the launcher's clock the notice is over already
            self._in_user_code = False
            all_late = self._stop.join_handlers(0.0)
        for late in all_late:
            _log(f"the stop handler {late!r} did not end within the notice of {notice_s:g} s, and is cut off\n")

    def _join_threads(self) -> None:
        self._heed_interrupts()
        # Private, but what multiprocessing calls at the end of its processes.
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001

    def _heed_interrupts(self) -> None:
        """Raises the interrupt that came when it could not be raised."""
        if self._interrupts:
            sys.exit()

    def _interruptible(self, function: Callable[[], None]) -> None:
        try:
            self._in_user_code = True
            function()
            self._in_user_code = False
        except SystemExit:
            self._in_user_code = False

    def listen(self) -> None:
        """What the launcher says, until it is gone."""
        for message in self._channel.messages():
            match message["do"]:
                case "stop":
                    self._announce(message["reason"])
                case "nudge":
                    if not (self._stop.observed or self._in_exit_functions):  # who exits already ends by itself
                        self._interrupt()
                case "interrupt":
                    self._interrupt()
        self._announce("the launcher is gone")
        self._interrupt()

    def _announce(self, reason: str) -> None:
        self._announced.set()
        # Its handlers may take long, and this thread must hear of what comes next.
        call_aside(lambda: self._stop.set(reason), "stop")

    def _interrupt(self) -> None:
        """Raises `SystemExit` in the main thread, also inside a sleep or a blocking read."""
        self._interrupts += 1
        signal.pthread_kill(self._main_thread, signal.SIGTERM)

    def on_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        """The signal handler."""
        if not self._interrupts:
            # Not from us: somebody wants this process to end, and what is good for one is good for all.
            self._channel.send({"event": "stop_requested", "reason": f"{self.context.name} received SIGTERM"})
        elif self._in_user_code:
            raise SystemExit

    def _on_unraisable(self, unraisable: sys.UnraisableHookArgs) -> None:
        """An interrupt that came where Python can raise nothing, e.g. in a `__del__`: it is raised again, later."""
        if unraisable.exc_type is not SystemExit or not self._interrupts:
            self._report_unraisable(unraisable)
        elif not self._in_exit_functions:
            again = threading.Timer(_AGAIN_S, signal.pthread_kill, [self._main_thread, signal.SIGTERM])
            again.daemon = True
            again.start()

    def _request_stop(self, reason: str) -> None:
        if not self._channel.send({"event": "stop_requested", "reason": reason}):
            self._announce(reason)

    def _run_in_processes(self, executables: Sequence[Executable]) -> None:
        from launch.nested import run_nested

        run_nested(executables, self.context, self._setup.process, self._setup.notice_s)
