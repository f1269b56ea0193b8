"""What all ways of gathering have in common: requests to workers under way, their replies, and failures."""

from __future__ import annotations

import abc
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from topology.errors import ConnectionBroken
from topology.nodes.courier.calls import CallFuture
from topology.nodes.flow.events import Signal, Waker
from topology.nodes.flow.failures import Verdict
from topology.nodes.flow.items import Item
from topology.nodes.flow.remote_shards import Shard
from topology.nodes.flow.shards import HeldCallFailed, StreamUnknown
from topology.nodes.flow.stages import Outcome, Stage

__all__ = ["Gather"]


class _Asked(NamedTuple):
    """A request under way."""

    shard: Shard
    future: CallFuture
    is_recovery: bool
    outages: int  # of the worker that were over when it was made


class Gather(Stage):
    """Replies as they arrive, and what becomes of failures.

    Args:
        shards: whom to ask.
        name: for people.
    """

    def __init__(self, shards: Sequence[Shard], name: str) -> None:
        self.shards = list(shards)
        self._name = name
        self._under_way: list[_Asked] = []
        self._arrived: deque[_Asked] = deque()
        self._away: list[Shard] = []  # those that are to come back
        self._waker: Waker | None = None

    @property
    def name(self) -> str:
        return self._name

    def poll(self, waker: Waker) -> Outcome:
        self._waker = waker
        waker.check()
        if self._away:  # others may always have something
            self._check_overdue(waker)
        while True:
            outcome = self._advance(waker)
            if not isinstance(outcome, Signal) or outcome is Signal.END:
                return outcome
            self._collect()
            if self._arrived:
                while self._arrived:
                    self._settle(self._arrived.popleft(), waker)
                continue
            self._arm(waker)
            return outcome

    # Replies are looked for rather than told of: futures that nobody waits for are completed with less work.

    def _collect(self) -> None:
        """Takes the replies that are there."""
        done = [asked.future.over for asked in self._under_way]
        if any(done):
            self._arrived += itertools.compress(self._under_way, done)
            self._under_way = [asked for asked, over in zip(self._under_way, done, strict=True) if not over]

    def _arm(self, waker: Waker) -> None:
        """Promises that the waker will be woken by the next reply."""
        waker.arm_futures([asked.future for asked in self._under_way])

    @abc.abstractmethod
    def _advance(self, waker: Waker) -> Outcome:
        """An item that is there, after asking for more as far as that is due."""

    @abc.abstractmethod
    def _deliver(self, shard: Shard, items: list[Item]) -> None:
        """Takes the items of a reply; none at the end of a shard, or after a failure that is forgiven."""

    @abc.abstractmethod
    def _resume(self, shard: Shard) -> None:
        """The worker of a shard is back."""

    def _ask(self, shard: Shard, batch_ms: float = 0) -> None:
        self._await(shard, shard.request(batch_ms), False)

    def _await(self, shard: Shard, future: CallFuture, is_recovery: bool) -> None:
        self._under_way.append(_Asked(shard, future, is_recovery, shard.crew.outages_over(shard.actor)))

    def _settle(self, asked: _Asked, waker: Waker) -> None:
        shard, future, is_recovery, outages = asked
        error = future.exception()
        if is_recovery:
            if shard.recovers_until is None:
                return  # too late: it was given up
            until, shard.recovers_until = shard.recovers_until, None
            self._away.remove(shard)
            if error is None:
                shard.crew.end_outage(shard.actor)
                self._resume(shard)
            elif isinstance(error, ConnectionBroken) and waker.clock.monotonic() < until:
                # It was reached while its old process still went down: the same failure, and there is time left.
                self._recover(shard, error, until, waker)
            else:
                shard.crew.end_outage(shard.actor)
                self._fail(shard, error, shard.crew.outages_over(shard.actor), waker)
            return
        shard.in_flight -= 1
        if error is None:
            self._deliver(shard, shard.take(future.result()))
        elif shard.recovers_until is None:  # otherwise one of several requests that failed together
            self._fail(shard, error, outages, waker)

    def _fail(self, shard: Shard, error: BaseException, outages: int, waker: Waker) -> None:
        crew = shard.crew
        if isinstance(error, HeldCallFailed):  # the call of an operator, not what was asked here
            self._deliver(shard, [])
            error.error.add_note(f"raised by {shard.actor.name} in {error.method}, which the plan had called")
            raise error.error
        if isinstance(error, StreamUnknown):  # it was started again while nothing was asked of it
            crew.prepare(shard.actor)
            verdict = Verdict.RETRY
        else:
            error.add_note(f"raised by {shard.actor.name}")
            verdict = crew.judge(shard.actor, error, outages)
        if verdict is Verdict.RETRY:
            until = waker.clock.monotonic() + crew.failures.patience_s
            self._recover(shard, error, until, waker)
        elif verdict is Verdict.LEAVE_OUT:
            shard.ended = True
            self._deliver(shard, [])
        else:
            self._deliver(shard, [])
            raise error

    def _recover(self, shard: Shard, error: BaseException, until: float, waker: Waker) -> None:
        self._away.append(shard)
        waker.wake_at(until)
        self._await(shard, shard.recover(error, until), True)

    def _check_overdue(self, waker: Waker) -> None:
        """Gives up on workers that did not come back in time."""
        for shard in list(self._away):
            until = shard.recovers_until
            assert until is not None  # it is away
            if until > waker.clock.monotonic():
                waker.wake_at(until)
                continue
            shard.recovers_until = None
            self._away.remove(shard)
            shard.crew.end_outage(shard.actor)
            self._abandon(shard)
            late = TimeoutError(f"{shard.actor.name} did not come back within {shard.crew.failures.patience_s:g} s")
            self._fail(shard, late, shard.crew.outages_over(shard.actor), waker)

    def _abandon(self, shard: Shard) -> None:
        """Nobody waits any more for what was asked of a worker."""
        self._under_way = [asked for asked in self._under_way if asked.shard is not shard]

    def _of_shards(self, items: Sequence[Item]) -> Iterator[tuple[Shard, Item]]:
        """Items of a state with the shards that made them; without those whose workers are not here any more."""
        for item in items:
            for shard in self.shards:
                if any(origin.actor == shard.actor for origin in item.origins):
                    yield shard, item
                    break

    def _drop_gone(self) -> None:
        for shard in self.shards:
            if shard.crew.some_are_gone and shard.crew.is_gone(shard.actor):
                shard.ended = True
