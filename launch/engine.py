"""Drives one run: a thread that feeds events to the supervisor and carries out its commands."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Protocol, final

from launch.outcome import Outcome
from launch.supervisor import (
    AnnounceStop,
    Check,
    Command,
    Ended,
    Event,
    Interrupt,
    Kill,
    Nudge,
    RestartPolicy,
    Start,
    Supervisor,
)
from topology.clock import SYSTEM_CLOCK, Clock

__all__ = ["Backend", "Engine"]

_logger = logging.getLogger(__name__)


class Backend(Protocol):
    """Where nodes run. Nodes go by number; the backend posts an `Ended` for every start. One thread calls it."""

    def start(self, node: int, restarts: int) -> None:
        """Begins to run a node, which was started again so often, with this one: each time it has another seed."""

    def announce_stop(self, reason: str) -> None:
        """Tells all running nodes, and those that start later, that the program is to stop."""

    def nudge(self, node: int) -> None:
        """Makes the node's code raise `SystemExit`, unless it has looked at the stop."""

    def check(self, node: int) -> None:
        """Gives up on a node that was nudged and has not moved since; else does nothing."""

    def interrupt(self, node: int) -> None:
        """Makes the node's code raise `SystemExit`."""

    def kill(self, node: int) -> None:
        """Ends the node without asking."""

    def close(self) -> None:
        """Every node has ended: gives everything back."""


@final
class Engine:
    """One run's event loop.

    Attributes:
        supervisor: the state of the run. Only read it holding `changed`, where more than one value matters.
        changed: notified after every change.
        started: set when every node was told to start.

    Args:
        policies: restart policy of every node, by its number.
        notice_s: how long nodes may take to end after a stop.
        on_stop: called once, before the nodes are told of the stop.
        on_change: called after every change, in the thread of the engine.
        clock: where the time comes from.
    """

    def __init__(
        self,
        policies: Sequence[RestartPolicy],
        notice_s: float,
        *,
        on_stop: Callable[[str], None],
        on_change: Callable[[], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.supervisor = Supervisor.of(policies, notice_s)
        self.changed = threading.Condition()
        self.started = threading.Event()
        self._on_stop = on_stop
        self._on_change = on_change
        self._clock = clock
        # Not a Condition: a signal handler may post while its own thread holds that lock. This queue is reentrant.
        self._inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._backend: Backend | None = None

    def post(self, event: Event) -> None:
        """Hands in an event. Any thread, never blocks, also in a signal handler."""
        self._inbox.put(event)

    def run(self, backend: Backend) -> None:
        """Starts the nodes and drives them to their end."""
        self._backend = backend
        with self.changed:
            commands = self.supervisor.begin()
        while True:
            for command in commands:
                self._execute(command)
            self.started.set()
            self._tell()
            with self.changed:
                self.changed.notify_all()
                if self.supervisor.done:
                    return
            commands = self._next_commands()

    def _tell(self) -> None:
        try:
            self._on_change()
        except Exception:  # what is told about a run must not end it
            _logger.exception("a change of the run could not be recorded")

    def _next_commands(self) -> list[Command]:
        deadline = self.supervisor.next_deadline
        timeout_s = None if deadline is None else max(0.0, deadline - self._clock.monotonic())
        events = []
        with contextlib.suppress(queue.Empty):
            events.append(self._inbox.get(timeout=timeout_s))
            while True:  # what came at the same time is one change
                events.append(self._inbox.get_nowait())
        commands: list[Command] = []
        with self.changed:
            now = self._clock.monotonic()
            for event in events:
                commands += self.supervisor.handle(event, now)
            commands += self.supervisor.advance(now)
        return commands

    def _execute(self, command: Command) -> None:
        assert self._backend is not None
        try:
            self._dispatch(self._backend, command)
        except Exception as error:
            _logger.exception("%s failed", command)
            if isinstance(command, Start):
                message = f"it could not be started: {type(error).__name__}: {error}"
                self.post(Ended(command.node, Outcome(failed=True, message=message, exit_code=None)))

    def _dispatch(self, backend: Backend, command: Command) -> None:
        match command:
            case Start(node, restarts):
                backend.start(node, restarts)
            case AnnounceStop(reason):
                # First: a node that ends closes connections, and a script's call there is to fail of the stop.
                self._on_stop(reason)
                backend.announce_stop(reason)
            case Nudge(node):
                backend.nudge(node)
            case Check(node):
                backend.check(node)
            case Interrupt(node):
                backend.interrupt(node)
            case Kill(node):
                backend.kill(node)
