"""Restarts and stopping as a state machine without I/O: events and the time go in, commands come out.

One supervisor per run. A node that fails is started again while its policy allows; the first failure that is not
forgiven stops the program. A stop is announced to all nodes at once; those still there when the notice is over are
interrupted, then killed. The second Ctrl-C kills at once.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from launch.outcome import CLEAN, Outcome

__all__ = [
    "AnnounceStop",
    "Check",
    "Command",
    "Ended",
    "Event",
    "Interrupt",
    "Interrupted",
    "Kill",
    "NodeRecord",
    "NodeState",
    "Nudge",
    "RestartPolicy",
    "Start",
    "Started",
    "StopRequested",
    "Supervisor",
]

FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 30.0
NUDGE_S = 0.1  # from the stop to the interrupt of nodes that never look at it; a woken call may end them before
CHECK_S = 1.0  # from there to looking whether they got it
KILL_GRACE_S = 2.0  # from the interrupt at the end of the notice to the kill
ABANDON_S = 5.0  # from the kill to giving up on a process that the system cannot end


class NodeState(enum.StrEnum):
    """Where a node is."""

    PENDING = "pending"
    RUNNING = "running"
    RESTARTING = "restarting"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"


_ALIVE = frozenset({NodeState.PENDING, NodeState.RUNNING, NodeState.RESTARTING})


@final
@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """How often a failed node is started again; the pause before it doubles each time, up to half a minute."""

    max_restarts: int = 0


@final
@dataclass(frozen=True)
class Started:
    """Event: node number `node` runs, as the process `pid`."""

    node: int
    pid: int


@final
@dataclass(frozen=True)
class Ended:
    """Event: a run of node number `node` is over."""

    node: int
    outcome: Outcome = CLEAN


@final
@dataclass(frozen=True)
class StopRequested:
    """Event: somebody asked for the stop. `purpose` is how such a run has ended: "finished" or "stopped"."""

    reason: str
    purpose: str = "stopped"


@final
@dataclass(frozen=True)
class Interrupted:
    """Event: Ctrl-C."""

    reason: str = "Ctrl-C"


@final
@dataclass(frozen=True)
class Start:
    """Command: start node number `node`, the first time or again: it was started again so often, with this one."""

    node: int
    restarts: int = 0


@final
@dataclass(frozen=True)
class AnnounceStop:
    """Command: tell every running node of the stop."""

    reason: str


@final
@dataclass(frozen=True)
class Nudge:
    """Command: make the node's code raise `SystemExit`, unless it has looked at the stop and so can end by itself."""

    node: int


@final
@dataclass(frozen=True)
class Check:
    """Command: give up on the node if it was nudged and has not moved since."""

    node: int


@final
@dataclass(frozen=True)
class Interrupt:
    """Command: the notice is over; make the node's code raise `SystemExit`."""

    node: int


@final
@dataclass(frozen=True)
class Kill:
    """Command: end the node without asking."""

    node: int


Event = Started | Ended | StopRequested | Interrupted
Command = Start | AnnounceStop | Nudge | Check | Interrupt | Kill


@final
@dataclass
class NodeRecord:
    """What is known of one node. `message` says why it is late, `failure` why it failed last, restarted or not."""

    policy: RestartPolicy
    state: NodeState = NodeState.PENDING
    restarts: int = 0
    exit_code: int | None = None
    pid: int | None = None
    late: bool = False
    message: str = ""
    failure: str = ""
    restart_at: float | None = None


class _Phase(enum.IntEnum):
    RUNNING = 0
    STOPPING = 1  # announced
    NUDGED = 2
    CHECKED = 3
    INTERRUPTED = 4  # the notice is over
    KILLED = 5
    DONE = 6


@final
@dataclass
class Supervisor:
    """The machine. Times are seconds of one monotonic clock.

    Attributes:
        nodes: a record for every node, by its number.
        notice_s: how long nodes may take to end after the stop.
        failures: node and outcome of every failure that counts, in the order they came.
        reason: why the program stops; "" while it does not.
        purpose: how the run ends if nothing fails: "finished" or "stopped".
    """

    nodes: list[NodeRecord]
    notice_s: float
    failures: list[tuple[int, Outcome]] = field(default_factory=list)
    reason: str = ""
    purpose: str = "finished"
    _phase: _Phase = _Phase.RUNNING
    _phase_ends: float | None = None
    _interrupts: int = 0

    @staticmethod
    def of(policies: Sequence[RestartPolicy], notice_s: float) -> Supervisor:
        """A supervisor of nodes with these policies."""
        return Supervisor([NodeRecord(policy) for policy in policies], notice_s)

    @property
    def stopping(self) -> bool:
        """Whether the stop has been announced."""
        return self._phase > _Phase.RUNNING

    @property
    def done(self) -> bool:
        """Whether every node has ended for good."""
        return not any(record.state in _ALIVE for record in self.nodes)

    @property
    def next_deadline(self) -> float | None:
        """When `advance` has something to do, if no event comes first."""
        if self.done:
            return None
        times = [record.restart_at for record in self.nodes if record.restart_at is not None]
        if self._phase_ends is not None:
            times.append(self._phase_ends)
        return min(times, default=None)

    def reported_failures(self) -> list[tuple[int, Outcome]]:
        """The failures, causes before those that only lost their peer."""
        return sorted(self.failures, key=lambda failure: failure[1].secondary)

    def begin(self) -> list[Command]:
        """Starts every node."""
        for record in self.nodes:
            record.state = NodeState.RUNNING
        return [Start(node) for node in range(len(self.nodes))]

    def handle(self, event: Event, now: float) -> list[Command]:
        """Takes in one event."""
        if isinstance(event, Started):
            self.nodes[event.node].pid = event.pid
            return []
        if isinstance(event, Ended):
            return self._ended(event.node, event.outcome, now)
        if isinstance(event, StopRequested):
            return self._stop(event.reason, now, event.purpose)
        self._interrupts += 1
        if self._interrupts > 1:
            return self._stop(event.reason, now, "stopped") + self._kill(now)
        return self._stop(event.reason, now, "stopped")

    def advance(self, now: float) -> list[Command]:
        """Does what is due."""
        commands: list[Command] = []
        for node, record in enumerate(self.nodes):
            if record.restart_at is not None and record.restart_at <= now:
                record.restart_at = None
                record.state = NodeState.RUNNING
                record.restarts += 1
                commands.append(Start(node, record.restarts))
        if self._phase_ends is not None and self._phase_ends <= now:
            commands += self._next_phase(now)
        return commands

    def _next_phase(self, now: float) -> list[Command]:
        if self._phase is _Phase.STOPPING:
            self._phase, self._phase_ends = _Phase.NUDGED, now + max(0.0, min(CHECK_S, self.notice_s - NUDGE_S))
            return [Nudge(node) for node in self._alive()]
        if self._phase is _Phase.NUDGED:
            self._phase, self._phase_ends = _Phase.CHECKED, now + max(0.0, self.notice_s - CHECK_S - NUDGE_S)
            return [Check(node) for node in self._alive()]
        if self._phase is _Phase.CHECKED:
            self._phase, self._phase_ends = _Phase.INTERRUPTED, now + KILL_GRACE_S
            return [Interrupt(node) for node in self._alive()]
        if self._phase is _Phase.INTERRUPTED:
            return self._kill(now)
        self._phase, self._phase_ends = _Phase.DONE, None
        for node in self._alive():
            self.nodes[node].state = NodeState.STOPPED
        return []

    def _alive(self) -> list[int]:
        return [node for node, record in enumerate(self.nodes) if record.state in _ALIVE]

    def _stop(self, reason: str, now: float, purpose: str) -> list[Command]:
        if self.stopping or self.done:
            return []
        self.reason, self.purpose = reason, purpose
        self._phase, self._phase_ends = _Phase.STOPPING, now + min(NUDGE_S, self.notice_s)
        for record in self.nodes:
            if record.restart_at is not None:
                record.restart_at, record.state = None, NodeState.STOPPED
        return [AnnounceStop(reason)]

    def _kill(self, now: float) -> list[Command]:
        if self._phase >= _Phase.KILLED or self.done:
            return []
        self._phase, self._phase_ends = _Phase.KILLED, now + ABANDON_S
        why = "was killed at the second Ctrl-C" if self._interrupts > 1 else self._late_text()
        for node in self._alive():
            self.nodes[node].late = True
            self.nodes[node].message = why
        return [Kill(node) for node in self._alive()]

    def _late_text(self) -> str:
        return f"did not end within the notice of {self.notice_s:g} s, and was killed"

    def _ended(self, node: int, outcome: Outcome, now: float) -> list[Command]:
        record = self.nodes[node]
        if record.state is not NodeState.RUNNING:
            return []
        record.exit_code = outcome.exit_code
        record.late = record.late or outcome.late
        record.message = outcome.message if outcome.late else record.message
        # Nodes hear of a stop one after the other, so a call may fail before its node has heard.
        if not outcome.failed or record.late or (self.stopping and outcome.secondary):
            record.state = NodeState.STOPPED if self.stopping else NodeState.FINISHED
            commands: list[Command] = []
        elif not (self.stopping or outcome.final) and record.restarts < record.policy.max_restarts:
            pause = min(FIRST_BACKOFF_S * 2.0**record.restarts, LONGEST_BACKOFF_S)
            record.state, record.restart_at = NodeState.RESTARTING, now + pause
            record.failure = outcome.message
            commands = []
        else:
            record.state = NodeState.FAILED
            record.failure = outcome.message
            self.failures.append((node, outcome))
            commands = self._stop(f"node failed: {outcome.message}", now, "failed")
        return commands
