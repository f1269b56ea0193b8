"""The driver's side of a parallel iterator: items as they come, or in rounds of all workers."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, final

from topology.nodes.flow.checks import check_whole
from topology.nodes.flow.events import Signal, Waker
from topology.nodes.flow.gathering import Gather
from topology.nodes.flow.items import Item, merge_origins
from topology.nodes.flow.remote_shards import Shard
from topology.nodes.flow.stages import Outcome

__all__ = ["BulkRounds", "GatherAsync"]


@final
class GatherAsync(Gather):
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
        check_whole("num_async", num_async, 1)
        if not batch_ms >= 0:
            raise ValueError(f"batch_ms must be at least 0, got {batch_ms}")
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

    def get_state(self) -> Any:
        return [item for _, item in self._ready]

    def set_state(self, state: Any) -> None:
        self._owed += [shard for shard, _ in self._ready]
        self._ready = deque(self._of_shards(state))


@final
class BulkRounds(Gather):
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
        waker.arm_futures([asked.future for asked in self._under_way], every=self._straggler_s is None)

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

    def get_state(self) -> Any:
        return list(self._got.values())

    def set_state(self, state: Any) -> None:
        self._got = {self.shards.index(shard): item for shard, item in self._of_shards(state)}
        self._asks = True
