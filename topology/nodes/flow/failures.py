"""What becomes of workers that fail: they are asked again, left out, or the failure is raised."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

from topology.errors import ConnectionBroken, CourierClosed
from topology.nodes.flow.actors import Actor

__all__ = ["Crew", "Verdict", "WorkerFailures"]

_logger = logging.getLogger(__name__)


@final
@dataclass(frozen=True, kw_only=True)
class WorkerFailures:
    """What to do when a worker raises, or goes away.

    The plan goes on with what it has in every case: nothing is built anew.

    Attributes:
        max_restarts: how often each worker may fail. A worker that raised recovers and is asked again; one that went
            away is waited for, since its launcher may start it again (`restarts` of `lp.launch`).
        patience_s: seconds to wait for a worker that went away, each time.
        leave_out: whether the others go on without a worker that has failed more often; the failure is raised when it
            was the last one. Otherwise it is raised at once.
    """

    max_restarts: int = 0
    patience_s: float = 60.0
    leave_out: bool = False

    def __post_init__(self) -> None:
        if self.max_restarts < 0 or not self.patience_s > 0:
            raise ValueError(
                f"max_restarts must be at least 0 and patience_s above 0, got {self.max_restarts}, {self.patience_s}"
            )


class Verdict(enum.Enum):
    """What becomes of a worker that failed."""

    RAISE = enum.auto()
    RETRY = enum.auto()
    LEAVE_OUT = enum.auto()


def _nothing(actor: Actor) -> None:  # noqa: ARG001 - a default
    return


def _ignore(actor: Actor, notes: Sequence[Any]) -> None:  # noqa: ARG001 - a default
    return


@final
class Crew:
    """Workers that a plan draws on, which of them are left, and what they told.

    Args:
        actors: all of them.
        failures: what to do when one fails.
        prepare: brings a worker that was started again up to date; called before it is asked for items.
        on_notes: told which worker has told what beside its items.
    """

    def __init__(
        self,
        actors: Iterable[Actor],
        *,
        failures: WorkerFailures | None = None,
        prepare: Callable[[Actor], None] = _nothing,
        on_notes: Callable[[Actor, Sequence[Any]], None] = _ignore,
    ) -> None:
        self.actors = list(actors)
        self.failures = failures or WorkerFailures()
        self.prepare = prepare
        self.on_notes = on_notes
        self.failed: dict[Actor, int] = {}
        self._gone: set[Actor] = set()
        self._away: set[Actor] = set()
        self._outages: dict[Actor, int] = {}  # that are over

    @property
    def alive(self) -> list[Actor]:
        """Workers that are not left out."""
        return [actor for actor in self.actors if actor not in self._gone] if self._gone else list(self.actors)

    @property
    def some_are_gone(self) -> bool:
        """Whether any worker was left out."""
        return bool(self._gone)

    def is_gone(self, actor: Actor) -> bool:
        """Whether a worker was left out."""
        return actor in self._gone

    def outages_over(self, actor: Actor) -> int:
        """How often a worker was away and came back, or was given up."""
        return self._outages.get(actor, 0)

    def end_outage(self, actor: Actor) -> None:
        """The worker is back, or not waited for any longer: what fails from now on is another failure."""
        if actor in self._away:
            self._away.discard(actor)
            self._outages[actor] = self._outages.get(actor, 0) + 1

    def judge(self, actor: Actor, error: BaseException, outages: int) -> Verdict:
        """Decides on a failure, and remembers it.

        Args:
            actor: that failed.
            error: what it failed with.
            outages: `outages_over` of it when it was asked. A connection that broke under what was asked before it was
                back is the same failure, however late that is heard.
        """
        if isinstance(error, CourierClosed) or not isinstance(error, Exception):
            return Verdict.RAISE  # this side ends
        if actor in self._gone:
            return Verdict.LEAVE_OUT
        if actor in self._away:
            return Verdict.RETRY  # others have asked it, too, and were first to hear
        if isinstance(error, ConnectionBroken) and outages < self.outages_over(actor):
            return Verdict.RETRY  # and it is back already
        self.failed[actor] = self.failed.get(actor, 0) + 1
        if self.failed[actor] <= self.failures.max_restarts:
            self._away.add(actor)
            _logger.warning("%s failed (%s): asked again", actor.name, _short(error))
            return Verdict.RETRY
        if not self.failures.leave_out:
            return Verdict.RAISE
        if len(self.alive) <= 1:
            error.add_note(f"{actor.name} was the last worker: all {len(self.actors)} have failed")
            return Verdict.RAISE
        self._gone.add(actor)
        _logger.warning("%s failed (%s): left out, %d workers go on", actor.name, _short(error), len(self.alive))
        return Verdict.LEAVE_OUT


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
