"""The ledger of a round: who does which share of the experience that policy k is to make.

Round k is what policy k makes, no more and no less. Its work is cut into shares; a worker claims one, plays it, and
stores what it got under the share's id. A claim is a lease: when it has expired, or its worker begins anew, somebody
else may claim the share. However often a share arrives, it counts once; what another policy made counts not at all.

| state of a share | becomes | when |
|---|---|---|
| open | leased | a worker claims it |
| leased | open | its worker begins anew |
| leased | leased by another | its time is over and another worker claims |
| open, leased | counted | its experience arrives |

The ledger does no I/O and reads no clock. It need not survive its process: what was counted and not acknowledged is
delivered again by the memory backend, and what was only claimed is claimed again.
"""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass, field
from typing import NamedTuple, final

from topology.clock import SYSTEM_CLOCK, Clock

__all__ = ["Claim", "RoundLedger", "RoundPlan", "RoundService", "RoundStats", "Share", "Unit", "Verdict"]

AHEAD_S = 0.05
"""Seconds that a worker waits which has the next policy already."""


class Unit(enum.StrEnum):
    """What the work of a round is counted in."""

    STEPS = "steps"
    EPISODES = "episodes"


class Share(NamedTuple):
    """A part of the work of a round.

    Attributes:
        policy: the round, which is the number of its policy.
        part: which share of the round, from 0.
        unit: "steps" or "episodes".
        amount: how many of them.
    """

    policy: int
    part: int
    unit: str
    amount: int

    @property
    def id(self) -> str:
        """Names it among all shares of all rounds: what experience carries as `share` in its meta."""
        return f"{self.policy}/{self.part}"


class Claim(NamedTuple):
    """The answer to a worker that asks for work.

    Attributes:
        policy: of the round that is under way.
        share: what to play; None when there is nothing to do now, or with the policy that the worker has.
        wait_s: None if `share` is given, or the worker's policy is an older one; else the seconds after which asking
            again may help, infinite when every share has arrived.
    """

    policy: int
    share: Share | None = None
    wait_s: float | None = None


class Verdict(enum.StrEnum):
    """What became of experience that arrived."""

    COUNTED = "counted"
    DUPLICATE = "duplicate"
    OTHER_POLICY = "other_policy"


@dataclass(frozen=True, kw_only=True)
class RoundPlan:
    """How the work of a round is cut.

    Attributes:
        unit: what is counted.
        total: steps or episodes of a round.
        share: of one share; the last one of a round has what is left.

    Example:
        >>> RoundPlan(unit=Unit.EPISODES, total=7, share=3).amounts()
        (3, 3, 1)

    Raises:
        ValueError: a share below 1, or above the total.
    """

    unit: Unit
    total: int
    share: int

    def __post_init__(self) -> None:
        if not 1 <= self.share <= self.total:
            raise ValueError(
                f"a round of {self.total} {self.unit} cannot be cut into shares of {self.share}: a share is at least "
                "1, and at most the whole round"
            )

    def amounts(self) -> tuple[int, ...]:
        """Steps or episodes of each share."""
        whole, left = divmod(self.total, self.share)
        return (self.share,) * whole + ((left,) if left else ())


@final
@dataclass(frozen=True, kw_only=True)
class RoundStats:
    """What a ledger has seen.

    Attributes:
        policy: of the round that is under way.
        shares: of a round.
        counted: shares of this round that have arrived.
        leased: shares of this round that somebody works on, or worked on when they were last looked at.
        duplicates: experience dropped since the ledger was made, because its share was there already.
        other_policy: the same, because another policy had made it.
        taken_over: shares granted again because their time was over, or their worker began anew.
    """

    policy: int
    shares: int
    counted: int
    leased: int
    duplicates: int
    other_policy: int
    taken_over: int


class _Lease(NamedTuple):
    worker: str
    ends: float


@final
@dataclass
class RoundLedger:
    """The machine. Times are seconds of one monotonic clock. For one thread; see `RoundService`.

    Args:
        plan: how every round is cut.
        lease_s: seconds that a worker has for a share before somebody else may take it over.
    """

    plan: RoundPlan
    lease_s: float
    policy: int = -1
    _counted: set[int] = field(default_factory=set)
    _leases: dict[int, _Lease] = field(default_factory=dict)
    _given_up: set[int] = field(default_factory=set)
    _duplicates: int = 0
    _other_policy: int = 0
    _taken_over: int = 0

    def __post_init__(self) -> None:
        if not self.lease_s > 0:
            raise ValueError(f"lease_s={self.lease_s}: a lease lasts more than 0 s")
        self._amounts = self.plan.amounts()

    def begin(self, policy: int) -> None:
        """Begins the round of this policy. What was claimed or counted before is of the past.

        Raises:
            ValueError: a number that is not above that of the round before.
        """
        if policy <= self.policy:
            raise ValueError(f"the round of policy {policy} cannot follow that of policy {self.policy}: numbers grow")
        self.policy = policy
        self._counted.clear()
        self._leases.clear()
        self._given_up.clear()

    def join(self, worker: str) -> None:
        """A worker begins, or begins anew: what it had claimed is open again."""
        mine = [index for index, lease in self._leases.items() if lease.worker == worker]
        for index in mine:
            del self._leases[index]
            self._given_up.add(index)

    def claim(self, worker: str, policy: int, now: float) -> Claim:
        """Work for a worker that has this policy: a share nobody had, else one whose time is over.

        A worker asks when what it played is stored. A share that it claimed before stays its own until its time is
        over: it may be on its way.
        """
        if policy > self.policy:  # it has seen what was saved a moment ago: that round is about to begin
            return Claim(self.policy, wait_s=AHEAD_S)
        if policy < self.policy:
            return Claim(self.policy)
        index = self._choose(now)
        if index is None:
            ends = [lease.ends for lease in self._leases.values()]
            return Claim(self.policy, wait_s=max(0.0, min(ends) - now) if ends else float("inf"))
        before = self._leases.get(index)
        if index in self._given_up or (before is not None and before.worker != worker):
            self._taken_over += 1
            self._given_up.discard(index)
        self._leases[index] = _Lease(worker, now + self.lease_s)
        return Claim(self.policy, Share(self.policy, index, str(self.plan.unit), self._amounts[index]))

    def _choose(self, now: float) -> int | None:
        missing = (index for index in range(len(self._amounts)) if index not in self._counted)
        free = [index for index in missing if index not in self._leases or self._leases[index].ends <= now]
        # Those that nobody has come first: a slow worker may still bring its own.
        return min(free, key=lambda index: (index in self._leases, index), default=None)

    def receive(self, share: object) -> Verdict:
        """Counts a share that has arrived, by the id that its experience carries, or says why not."""
        policy, _, index = str(share).partition("/")
        if policy != str(self.policy) or index not in map(str, range(len(self._amounts))):
            self._other_policy += 1
            return Verdict.OTHER_POLICY
        number = int(index)
        if number in self._counted:
            self._duplicates += 1
            return Verdict.DUPLICATE
        self._counted.add(number)
        self._leases.pop(number, None)
        return Verdict.COUNTED

    @property
    def complete(self) -> bool:
        """Whether every share of the round has arrived."""
        return len(self._counted) == len(self._amounts)

    @property
    def stats(self) -> RoundStats:
        """What it has seen."""
        return RoundStats(
            policy=self.policy,
            shares=len(self._amounts),
            counted=len(self._counted),
            leased=len(self._leases),
            duplicates=self._duplicates,
            other_policy=self._other_policy,
            taken_over=self._taken_over,
        )


@final
class RoundService:
    """A ledger for several threads, with a clock: what a trainer serves to its workers.

    Args:
        ledger: rounds, begun or not.
        clock: of the leases.
    """

    def __init__(self, ledger: RoundLedger, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._ledger = ledger
        self._clock = clock
        self._lock = threading.Lock()

    def join(self, worker: str) -> None:
        """See `RoundLedger.join`."""
        with self._lock:
            self._ledger.join(worker)

    def claim(self, worker: str, policy: int) -> Claim:
        """See `RoundLedger.claim`. Never blocks."""
        with self._lock:
            return self._ledger.claim(worker, policy, self._clock.monotonic())

    def begin(self, policy: int) -> None:
        """See `RoundLedger.begin`."""
        with self._lock:
            self._ledger.begin(policy)

    def receive(self, share: object) -> Verdict:
        """See `RoundLedger.receive`."""
        with self._lock:
            return self._ledger.receive(share)

    @property
    def complete(self) -> bool:
        """See `RoundLedger.complete`."""
        with self._lock:
            return self._ledger.complete

    @property
    def stats(self) -> RoundStats:
        """See `RoundLedger.stats`."""
        with self._lock:
            return self._ledger.stats
