"""Tables: items that refer to steps, chosen by selectors, paced by a rate limiter.

`Table` is what users make and servers call; the state machine behind it is `TableCore`. Work under the table's lock is
on indices; bytes are copied by others.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from topology.nodes.replay import rate_limiters, selectors
from topology.nodes.replay.core import TableCore
from topology.nodes.replay.info import RateLimiterCallStats, RateLimiterInfo, TableInfo
from topology.nodes.replay.insert_watches import InsertWatch, InsertWatches
from topology.nodes.replay.layouts import Layout
from topology.nodes.replay.messages import Occupancy, ServerStopped
from topology.nodes.replay.options import TableOptions, check_priorities
from topology.nodes.replay.rate_limiters import RateLimiter
from topology.nodes.replay.requests import InsertRequest, Picks, SampleRequest
from topology.nodes.replay.selectors import Selector
from topology.nodes.replay.specs import Signature
from topology.nodes.replay.stopwatch import Stopwatch

__all__ = ["Table"]


class Table:
    """A table of a replay server. Thread-safe.

    Args:
        name: its name, unique on a server.
        sampler: chooses items to sample.
        remover: chooses the item to remove when one has come into a full table; it may be that one.
        max_size: most items it holds.
        rate_limiter: how far samples and inserts may run apart.
        max_times_sampled: an item is removed after so many samples; 0 for never.
        signature: structure of specs (anything with `shape` and `dtype`) that items must match, time axis included;
            None for any.
        seed: for the sampler. The same seed and the same calls give the same keys; None is different every time.

    Raises:
        ValueError: an argument makes no sense.
    """

    def __init__(
        self,
        name: str,
        sampler: Selector,
        remover: Selector,
        max_size: int,
        rate_limiter: RateLimiter,
        max_times_sampled: int = 0,
        signature: Any = None,
        *,
        seed: int | None = None,
    ) -> None:
        options = TableOptions(
            name=name,
            sampler=sampler,
            remover=remover,
            max_size=max_size,
            rate_limiter=rate_limiter,
            max_times_sampled=max_times_sampled,
            signature=signature,
            seed=seed,
        )
        self.name = name
        self._signature = None if signature is None else Signature(signature)
        self._lock = threading.Lock()
        self._core = TableCore(options)
        self._watch = Stopwatch()
        self._insert_watches = InsertWatches()
        self._closed: str | None = None

    @classmethod
    def queue(cls, name: str, max_size: int, signature: Any = None, *, seed: int | None = None) -> Table:
        """A bounded queue: each item is sampled once, in the order of insertion; both sides wait."""
        fifo, limiter = selectors.Fifo(), rate_limiters.Queue(max_size)
        return cls(name, fifo, fifo, max_size, limiter, 1, signature, seed=seed)

    @classmethod
    def stack(cls, name: str, max_size: int, signature: Any = None, *, seed: int | None = None) -> Table:
        """A bounded stack: each item is sampled once, the newest first; both sides wait."""
        lifo, limiter = selectors.Lifo(), rate_limiters.Stack(max_size)
        return cls(name, lifo, lifo, max_size, limiter, 1, signature, seed=seed)

    def replace(self, **changes: Any) -> Table:
        """A new, empty table with the same settings but for `changes` (names as in the constructor)."""
        settings = self._core.options
        options = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
        return Table(**{**options, **changes})

    def __repr__(self) -> str:
        return f"<Table {self.describe()}>"

    def describe(self) -> str:
        """Name, size, counts and limits in one line."""
        limiter = self._core.limiter
        return (
            f"{self.name!r}: {limiter.size} of {self._core.options.max_size} items, {limiter.inserts} inserts, "
            f"{limiter.samples} samples; {limiter.limiter!r}"
        )

    # -- what may pass ------------------------------------------------------------------------------------------------

    def can_sample(self, num_samples: int) -> bool:
        """Whether `num_samples` samples could pass now, in front of those that wait. Ignores `max_times_sampled`."""
        with self._lock:
            spare = sum(picks.size for picks in self._core.leftover)
            return num_samples <= spare or self._core.limiter.can_sample(num_samples - spare)

    def can_insert(self, num_inserts: int) -> bool:
        """Whether `num_inserts` inserts could pass now, in front of those that wait."""
        with self._lock:
            return self._core.limiter.can_insert(num_inserts)

    @property
    def info(self) -> TableInfo:
        """Settings and state at this moment."""
        core, limiter = self._core, self._core.options.rate_limiter
        with self._lock:
            return TableInfo(
                name=self.name,
                sampler_options=core.options.sampler.options,
                remover_options=core.options.remover.options,
                max_size=core.options.max_size,
                max_times_sampled=core.options.max_times_sampled,
                rate_limiter_info=RateLimiterInfo(
                    samples_per_insert=limiter.samples_per_insert,
                    min_diff=limiter.min_diff,
                    max_diff=limiter.max_diff,
                    min_size_to_sample=limiter.min_size_to_sample,
                    insert_stats=_call_stats(core.inserts, core.limiter.inserts),
                    sample_stats=_call_stats(core.samples, core.limiter.samples),
                ),
                signature=None if self._signature is None else self._signature.tree,
                current_size=core.items.count,
                num_steps=core.items.steps,
                num_episodes=len(core.episodes),
                num_deleted_episodes=core.ended_episodes,
                num_unique_samples=core.unique_samples,
                table_worker_time=self._watch.read(),
            )

    def check_item(self, layout: Layout) -> None:
        """Checks items of a layout against the signature, as far as their writer wants that. See `Signature.check`.

        Raises:
            ValueError: they differ.
        """
        if self._signature is not None and not layout.unchecked:
            self._signature.check(self.name, layout.signature, of_steps=layout.of_steps)

    def check_steps(self, steps: int) -> None:
        """Refuses items of so many steps when there can never be room for one.

        Raises:
            ValueError: there cannot.
        """
        most = self._core.options.rate_limiter.max_steps
        if most is not None and steps > most:
            raise ValueError(f"table {self.name!r}: an item of {steps} steps never gets in, where max_steps is {most}")

    @contextmanager
    def locked(self) -> Iterator[TableCore]:
        """The state machine, held still: for checkpoints. Everybody who calls the table waits meanwhile."""
        with self._lock:
            yield self._core

    # -- requests -----------------------------------------------------------------------------------------------------

    def insert(self, request: InsertRequest) -> bool:
        """Queues an insert and lets pass what can; returns whether this one has ended already. Does not block."""
        return self._submit(request)

    def sample(self, request: SampleRequest) -> bool:
        """Queues a sample and lets pass what can; returns whether this one has ended already. Does not block.

        Raises:
            ValueError: more distinct items are wanted than the table may ever hold.
        """
        options = self._core.options
        if request.distinct and options.max_times_sampled != 1 and request.count > options.max_size:
            raise ValueError(
                f"table {self.name!r}: {request.count} distinct items were asked for, but it holds at most "
                f"{options.max_size}"
            )
        return self._submit(request)

    def _submit(self, request: InsertRequest | SampleRequest) -> bool:
        with self._lock:
            if self._closed is not None:
                request.error = ServerStopped(self._closed)
                ended: list[Any] = [request]
            else:
                self._watch.begin()
                self._core.queue(request)
                ended = self._core.advance()
                self._watch.end(isinstance(request, SampleRequest), self._core.inserts, self._core.samples)
                ended += self._watches_over()
        for each in ended:
            each.finish()
        return request in ended

    @property
    def occupancy(self) -> Occupancy:
        """What has come into it, and what of it is there."""
        with self._lock:
            return self._core.occupancy

    def watch_inserts(self, known: int, steps: int = 0) -> InsertWatch:
        """A wait until other than `known` items, and at least so many steps, were inserted since it was made or reset.

        A reset ends it, too.
        """
        watch = InsertWatch(known, steps)
        with self._lock:
            watch.occupancy = self._core.occupancy
            is_over = watch.is_over(watch.occupancy)
            if self._closed is not None:
                watch.error, is_over = ServerStopped(self._closed), True
            if not is_over:
                self._insert_watches.add(watch)
        if is_over:
            watch.finish()
        return watch

    def end_watch(self, watch: InsertWatch) -> None:
        """Ends a wait with what is there."""
        with self._lock:
            ended = self._insert_watches.take(watch, self._core.occupancy)
        for each in ended:
            each.finish()

    def take_back(self, writer: int, count: int) -> int:
        """Lets none of the first `count` items of a writer in any more; returns how many are not in for that reason.

        Those that wait end now, and those that arrive later are dropped, as if they had been in the table before.
        """
        with self._lock:
            taken, removed = self._core.take_back(writer, count)
            ended: list[Any] = [*removed, *self._advance()]
        for each in ended:
            each.finish()
        return max(0, count - taken)

    def cancel(self, request: InsertRequest | SampleRequest, error: Exception) -> bool:
        """Fails a waiting request with `error`; what was drawn for it goes to the next. False: it had ended."""
        with self._lock:
            if not self._core.withdraw(request):
                return False
            request.error = error
            ended: list[Any] = [request, *self._advance()]
        for each in ended:
            each.finish()
        return True

    def give_back(self, picks: Sequence[Picks]) -> None:
        """Takes samples that nobody waits for any more; the next requests get them."""
        with self._lock:
            self._core.leftover.extend(picks)
            ended = self._advance()
        for each in ended:
            each.finish()

    def close(self, reason: str) -> None:
        """Fails every waiting and every later request with a `ServerStopped` that says `reason`."""
        core = self._core
        with self._lock:
            self._closed = reason
            ended: list[InsertRequest | SampleRequest] = [*core.inserts, *core.samples]
            core.inserts.clear()
            core.samples.clear()
            leftover = list(core.leftover)
            core.leftover.clear()
            watches = self._insert_watches.take_all(core.occupancy, ServerStopped(reason))
        for picks in leftover:
            picks.release()
        for watch in watches:
            watch.finish()
        for request in ended:
            request.error = ServerStopped(reason)
            if isinstance(request, SampleRequest):
                for picks in request.picks:
                    picks.release()
                request.picks = []
            request.finish()

    def oldest_waiting(self) -> tuple[InsertRequest | None, SampleRequest | None]:
        """The requests at the head of both queues."""
        with self._lock:
            inserts, samples = self._core.inserts, self._core.samples
            return (inserts[0] if inserts else None), (samples[0] if samples else None)

    def _advance(self) -> list[Any]:
        """Lets pass what can; the lock is held. Returns the requests that ended."""
        ended = self._core.advance()
        self._watch.note(self._core.inserts, self._core.samples)
        return ended + self._watches_over()

    def _watches_over(self) -> list[InsertWatch]:
        return self._insert_watches.over(self._core.occupancy) if self._insert_watches else []

    # -- changes to items ---------------------------------------------------------------------------------------------

    def update_priorities(self, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[np.float64]) -> int:
        """Sets the priorities of items; keys that are not here are ignored. Returns how many were here.

        Raises:
            ValueError: a priority is negative or not finite; nothing is changed then.
        """
        check_priorities(self.name, priorities)
        with self._lock:
            slots, known = self._core.items.find(keys)
            if slots.size:
                self._core.update(slots, priorities[known])
        return int(slots.size)

    def delete(self, keys: npt.NDArray[np.uint64]) -> int:
        """Removes items; keys that are not here are ignored. Returns how many were here."""
        with self._lock:
            slots = np.unique(self._core.items.find(keys)[0])
            if slots.size:
                self._core.remove(slots)
            ended = self._advance()
        for request in ended:
            request.finish()
        return int(slots.size)

    def reset(self) -> None:
        """Removes every item and sets the limiter's counts to zero. Waiting requests stay, and may pass."""
        with self._lock:
            self._core.clear()
            leftover = list(self._core.leftover)
            self._core.leftover.clear()
            ended: list[Any] = [*self._insert_watches.take_all(self._core.occupancy), *self._advance()]
        for picks in leftover:
            picks.release()
        for request in ended:
            request.finish()

    def resize(self, max_size: int) -> None:
        """Sets `max_size`. When more items are there, the remover chooses those that go, as it does for inserts.

        Raises:
            ValueError: it is below 1, or below what the rate limiter needs before the first sample.
        """
        with self._lock:
            self._core.options = dataclasses.replace(self._core.options, max_size=max_size)
            self._core.shrink()
            ended = self._advance()
        for request in ended:
            request.finish()


def _call_stats(queue: deque[Any], completed: int) -> RateLimiterCallStats:
    return RateLimiterCallStats(pending=sum(request.waiting for request in queue), completed=completed)
