"""What experience ASYNC lets in: each once, none older than the bound. A state machine without I/O.

Experience that is too old is dropped, rather than the workers made to wait: waiting would not bound its age, for it
ages in the memory backend, and workers that wait are what ASYNC is to avoid. It cannot starve the trainer: a policy is
saved only when something was learned or taken since the last, so that numbers stand still while everything is dropped.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, NamedTuple, final

__all__ = ["Admission", "Intake", "Reception"]

_REMEMBERED = 256  # policies whose times of saving are kept


class Admission(enum.StrEnum):
    """What became of experience that arrived."""

    IN = "in"
    DUPLICATE = "duplicates"
    STALE = "stale"

    @property
    def is_in(self) -> bool:
        """Whether it is learned from."""
        return self is Admission.IN


class Reception(NamedTuple):
    """What is known of experience that arrived.

    Attributes:
        verdict: what became of it.
        policies: by how many numbers its policy is behind the newest; 0 for none.
        seconds: for how long its policy has not been the newest; where that was before the trainer was started again,
            since then.
    """

    verdict: Admission
    policies: int
    seconds: float


@final
class Intake:
    """The machine. Times are seconds of one monotonic clock.

    Every session of a worker numbers what it stores, from 1; the memory backend keeps its order. So what is not above
    the last number of its session has been here before.

    Args:
        max_staleness: in numbers of policies; None for no bound.

    Attributes:
        dropped: experience that was not let in, by why.
    """

    def __init__(self, max_staleness: int | None = None) -> None:
        self._max_staleness = max_staleness
        self._last: dict[str, int] = {}
        self._saved_at: dict[int, float] = {}
        self.dropped = {str(Admission.DUPLICATE): 0, str(Admission.STALE): 0}

    def receive(self, meta: Mapping[str, Any], newest: int, now: float) -> Reception:
        """Lets experience in, or not.

        Args:
            meta: of the experience: "session", "sequence", "policy".
            newest: number of the newest policy.
            now: the time.
        """
        session, sequence = str(meta["session"]), int(meta["sequence"])
        policies = max(0, newest - int(meta["policy"]))
        seconds = self._outdated_s(int(meta["policy"]), now) if policies else 0.0
        if sequence <= self._last.get(session, 0):
            verdict = Admission.DUPLICATE
        else:
            self._last[session] = sequence
            too_old = self._max_staleness is not None and policies > self._max_staleness
            verdict = Admission.STALE if too_old else Admission.IN
        if verdict is not Admission.IN:
            self.dropped[str(verdict)] += 1
        return Reception(verdict, policies, seconds)

    def _outdated_s(self, policy: int, now: float) -> float:
        followed = self._saved_at.get(policy + 1, min(self._saved_at.values(), default=now))
        return max(0.0, now - followed)

    def saved(self, number: int, now: float) -> None:
        """A policy was saved."""
        self._saved_at[number] = now
        self._saved_at.pop(number - _REMEMBERED, None)

    def notes(self) -> dict[str, Any]:
        """What a trainer that is started again must know; plain data."""
        return {"sessions": dict(self._last), "dropped": dict(self.dropped)}

    def restore(self, notes: Mapping[str, Any]) -> None:
        """Takes `notes` back."""
        self._last = {str(session): int(last) for session, last in notes.get("sessions", {}).items()}
        self.dropped |= {str(name): int(count) for name, count in notes.get("dropped", {}).items()}
