"""The driver's side of a parallel iterator: requests to workers under way, bounded, and their replies."""

from __future__ import annotations

import abc
import functools
import itertools
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, final

from topology.errors import ConnectionBroken
from topology.nodes.courier.calls import CallFuture
from topology.nodes.flow.actors import Actor
from topology.nodes.flow.events import Signal, Waker
from topology.nodes.flow.failures import Crew, Verdict
from topology.nodes.flow.items import Item, Origin, merge_origins
from topology.nodes.flow.shards import Reply, StreamSpec, StreamUnknown
from topology.nodes.flow.stages import Outcome, Stage

__all__ = ["BulkRounds", "GatherAsync", "Shard", "new_stream"]

_numbers = itertools.count()


def new_stream() -> str:
    """An identity for a stream, unique among processes."""
    return f"{os.getpid()}-{os.urandom(4).hex()}-{next(_numbers)}"


@final
class Shard:
    """One stream of one worker, as the driver sees it.

    Args:
        actor: the worker.
        spec: the stream.
        crew: the worker's.
        part: which part of how many parts of the stream it asks for; None for all of it.
    """

    def __init__(self, actor: Actor, spec: StreamSpec, crew: Crew, part: tuple[int, int] | None = None) -> None:
        self.actor = actor
        self.crew = crew
        self.in_flight = 0
        self.ended = False
        self.recovers_until: float | None = None  # the time by which the worker must be back
        self.spec = spec
        self._part = part
        self._open = False

    @property
    def usable(self) -> bool:
        """Whether it may be asked for more."""
        return not self.ended and self.recovers_until is None

    def request(self, batch_ms: float = 0) -> CallFuture:
        """Asks for items."""
        self.in_flight += 1
        spec = None if self._open else self.spec
        if self._part is not None:
            return self.actor.submit("next_slice", self.spec.stream, spec, *self._part, batch_ms)
        return self.actor.submit("next_items", self.spec.stream, spec, batch_ms)

    def take(self, reply: Reply) -> list[Item]:
        """The items of a reply."""
        values, versions, ended, notes = reply
        self._open = True
        if notes:
            self.crew.on_notes(notes)
        if ended:
            self.ended = True
        return [Item(value, (Origin(self.actor, version),)) for value, version in zip(values, versions, strict=True)]

    def recover(self, error: BaseException, until: float) -> CallFuture:
        """Begins to bring back a worker that failed; the future is done when it can be asked again."""
        self._open = False
        self.recovers_until = until
        if not isinstance(error, StreamUnknown):
            self.crew.prepare(self.actor)
        return self.actor.submit("recover")


class _Gather(Stage):
    """Common to all ways of gathering: replies as they arrive, and what becomes of failures."""

    def __init__(self, shards: Sequence[Shard], name: str) -> None:
        self.shards = list(shards)
        self._name = name
        self._under_way: list[tuple[Shard, CallFuture, bool]] = []
        self._arrived: deque[tuple[Shard, CallFuture, bool]] = deque()
        self._waker: Waker | None = None

    @property
    def name(self) -> str:
        return self._name

    def poll(self, waker: Waker) -> Outcome:
        self._waker = waker
        while True:
            outcome = self._advance(waker)
            if not isinstance(outcome, Signal) or outcome is Signal.END:
                return outcome
            self._collect()
            if self._arrived:
                while self._arrived:
                    self._settle(*self._arrived.popleft(), waker)
                continue
            if not self._check_overdue(waker):
                self._arm(waker)
                return outcome

    # Replies are looked for rather than told of: futures that nobody waits for are completed with less work.

    def _collect(self) -> None:
        """Takes the replies that are there."""
        done = [entry[1].over for entry in self._under_way]
        if any(done):
            self._arrived += itertools.compress(self._under_way, done)
            self._under_way = [entry for entry, over in zip(self._under_way, done, strict=True) if not over]

    def _arm(self, waker: Waker) -> None:
        """Promises that the waker will be woken by the next reply."""
        waker.arm_futures([future for _, future, _ in self._under_way])

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
        self._under_way.append((shard, future, is_recovery))

    def _settle(self, shard: Shard, future: CallFuture, is_recovery: bool, waker: Waker) -> None:
        error = future.exception()
        if is_recovery:
            if shard.recovers_until is None:
                return  # too late: it was given up
            until, shard.recovers_until = shard.recovers_until, None
            if error is None:
                self._resume(shard)
            elif isinstance(error, ConnectionBroken) and waker.clock.monotonic() < until:
                # It was reached while its old process still went down: the same failure, and there is time left.
                self._await(shard, shard.recover(error, until), True)
            else:
                self._fail(shard, error, waker)
            return
        shard.in_flight -= 1
        if error is None:
            self._deliver(shard, shard.take(future.result()))
        elif shard.recovers_until is None:  # otherwise one of several requests that failed together
            self._fail(shard, error, waker)

    def _fail(self, shard: Shard, error: BaseException, waker: Waker) -> None:
        crew = shard.crew
        if isinstance(error, StreamUnknown):  # it was started again while nothing was asked of it
            crew.prepare(shard.actor)
            verdict = Verdict.RETRY
        else:
            verdict = crew.judge(shard.actor, error)
        if verdict is Verdict.RETRY:
            until = waker.clock.monotonic() + crew.failures.patience_s
            self._await(shard, shard.recover(error, until), True)
        elif verdict is Verdict.LEAVE_OUT:
            shard.ended = True
            self._deliver(shard, [])
        else:
            self._deliver(shard, [])
            raise error

    def _check_overdue(self, waker: Waker) -> bool:
        """Gives up on workers that did not come back in time; returns whether there was one."""
        for shard in self.shards:
            until = shard.recovers_until
            if until is None:
                continue
            if until > waker.clock.monotonic():
                waker.wake_at(until)
                continue
            shard.recovers_until = None
            self._abandon(shard)
            patience_s = shard.crew.failures.patience_s
            self._fail(shard, TimeoutError(f"{shard.actor.name} did not come back within {patience_s:g} s"), waker)
            return True
        return False

    def _abandon(self, shard: Shard) -> None:
        """Nobody waits any more for what was asked of a worker."""
        self._under_way = [entry for entry in self._under_way if entry[0] is not shard]

    def _drop_gone(self) -> None:
        for shard in self.shards:
            if shard.crew.some_are_gone and shard.crew.is_gone(shard.actor):
                shard.ended = True


@final
class GatherAsync(_Gather):
    """Items in the order in which they come. At most `num_async` of each worker are under way or wait here.

    Args:
        shards: whom to ask.
        num_async: requests of each worker under way.
        batch_ms: how long a worker gathers for one reply, in milliseconds.
        prefetch: whether the next request goes out before an item is handed on; otherwise when the next item is asked
            for, so that what the consumer sends the worker acts on it.
        cold: makes, from a shard that had nothing (its reply was None), a future that is done when it has; None where
            None is an item.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        name: str,
        *,
        num_async: int = 1,
        batch_ms: float = 0,
        prefetch: bool = False,
        cold: Callable[[Shard], Future[Any]] | None = None,
    ) -> None:
        if num_async < 1 or batch_ms < 0:
            raise ValueError(f"num_async must be at least 1 and batch_ms at least 0, got {num_async} and {batch_ms}")
        super().__init__(shards, name)
        self._num_async = num_async
        self._batch_ms = batch_ms
        self._prefetch = prefetch
        self._cold = cold
        self._ready: deque[tuple[Shard, Item]] = deque()
        self._owed: deque[Shard] = deque()
        self._waits: set[Shard] = set()
        self._begun = False

    def _advance(self, waker: Waker) -> Outcome:  # noqa: ARG002 - in the interface
        if not self._begun:
            self._begun = True
            for shard in self.shards:
                self._resume(shard)
        while self._owed:
            self._ask_again(self._owed.popleft())
        if self._ready:
            return self._hand_on(*self._ready.popleft())
        self._drop_gone()
        if all(shard.ended for shard in self.shards):
            return Signal.END
        if self._waits and not any(shard.in_flight for shard in self.shards):
            return Signal.STALLED
        return Signal.PENDING

    def _hand_on(self, shard: Shard, item: Item) -> Item:
        # Requests are counted against what still waits here, so that a consumer that stalls stalls the worker.
        if self._prefetch:
            self._ask_again(shard)
        else:
            self._owed.append(shard)
        return item

    def _ask_again(self, shard: Shard) -> None:
        waiting = sum(other is shard for other, _ in self._ready)
        while shard.usable and shard not in self._waits and shard.in_flight + waiting < self._num_async:
            self._ask(shard, self._batch_ms)

    def _deliver(self, shard: Shard, items: list[Item]) -> None:
        if self._cold is not None and any(item.value is None for item in items):
            items = [item for item in items if item.value is not None]
            if shard not in self._waits:
                self._waits.add(shard)
                self._cold(shard).add_done_callback(functools.partial(self._warmed, shard))
        self._ready += ((shard, item) for item in items)
        if not items:
            self._owed.append(shard)

    def _warmed(self, shard: Shard, future: Future[Any]) -> None:
        # Success or failure: the next request tells.
        future.exception()
        self._waits.discard(shard)
        self._owed.append(shard)
        if self._waker is not None:
            self._waker.wake()

    def _resume(self, shard: Shard) -> None:
        self._owed.append(shard)


@final
class BulkRounds(_Gather):
    """Lists with one item of each worker. A round is asked for when its list is, not before.

    Args:
        shards: whom to ask.
        straggler_s: seconds after the first item of a round at which the round ends without those that are late; their
            items are part of the next one. None waits for all.
    """

    def __init__(self, shards: Sequence[Shard], name: str, *, straggler_s: float | None = None) -> None:
        super().__init__(shards, name)
        self._straggler_s = straggler_s
        self._got: dict[int, Item] = {}
        self._late_at: float | None = None
        self._asks = True

    def _arm(self, waker: Waker) -> None:
        # The round needs every reply, unless it may end without those that are late.
        waker.arm_futures([future for _, future, _ in self._under_way], every=self._straggler_s is None)

    def _advance(self, waker: Waker) -> Outcome:
        self._drop_gone()
        if self._asks:
            self._asks = False
            for index, shard in enumerate(self.shards):
                if shard.usable and not shard.in_flight and index not in self._got:
                    self._ask(shard)
        got = self._got
        if len(got) < len(self.shards):
            if any(not shard.ended and index not in got for index, shard in enumerate(self.shards)):
                if not self._is_late(waker):
                    return Signal.PENDING
            elif not got:
                return Signal.END
        items = [got[index] for index in sorted(got)]
        self._got, self._late_at, self._asks = {}, None, True
        return Item([item.value for item in items], merge_origins(item.origins for item in items))

    def _is_late(self, waker: Waker) -> bool:
        if self._straggler_s is None or not self._got:
            return False
        if self._late_at is None:
            self._late_at = waker.clock.monotonic() + self._straggler_s
        if waker.clock.monotonic() >= self._late_at:
            return True
        waker.wake_at(self._late_at)
        return False

    def _deliver(self, shard: Shard, items: list[Item]) -> None:
        if items:
            self._got[self.shards.index(shard)] = items[0]
        elif not shard.ended:
            self._asks = True  # it failed, and the failure is raised: asked again when the plan goes on

    def _resume(self, shard: Shard) -> None:
        if not shard.in_flight:
            self._ask(shard)
