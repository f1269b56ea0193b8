"""Tables: items that refer to steps, chosen by selectors, paced by a rate limiter.

A table is a state machine. An insert or a sample that may not pass yet waits in its queue, first come first served,
and is completed by the very call that lets it pass: an insert can complete waiting samples, a sample waiting inserts.
Nothing polls and no thread is held. Work under the table's lock is on indices; bytes are copied by others.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from topology.nodes.replay import rate_limiters, selectors
from topology.nodes.replay.info import RateLimiterCallStats, RateLimiterInfo, TableInfo
from topology.nodes.replay.items import Items
from topology.nodes.replay.messages import ServerStopped
from topology.nodes.replay.options import TableOptions, check_priorities
from topology.nodes.replay.rate_limiters import LimiterState, RateLimiter
from topology.nodes.replay.requests import InsertRequest, Picks, SampleRequest
from topology.nodes.replay.sampling import draw
from topology.nodes.replay.selectors import Selector
from topology.nodes.replay.specs import LeafSpec, Signature

__all__ = ["Table"]

_Slots = npt.NDArray[np.int64]


@final
class Table:
    """A table of a replay server. Thread-safe.

    Args:
        name: its name, unique on a server.
        sampler: chooses items to sample.
        remover: chooses the item to remove when one is inserted into a full table.
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
        self._options = TableOptions(
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
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._limiter = LimiterState(rate_limiter)
        self._sampler = sampler.build()
        self._remover = remover.build()
        self._items = Items(first_generation=int(self._rng.integers(1 << 31)))
        self._episodes: Counter[int] = Counter()
        self._ended_episodes = 0
        self._unique_samples = 0
        self._inserts: deque[InsertRequest] = deque()
        self._samples: deque[SampleRequest] = deque()
        self._leftover: deque[Picks] = deque()  # drawn for requests that were then cancelled; the next ones get them
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
        options = {field.name: getattr(self._options, field.name) for field in dataclasses.fields(self._options)}
        return Table(**{**options, **changes})

    def __repr__(self) -> str:
        return f"<Table {self.describe()}>"

    def describe(self) -> str:
        """Name, size, counts and limits in one line."""
        limiter = self._limiter.limiter
        return (
            f"{self.name!r}: {self._limiter.size} of {self._options.max_size} items, {self._limiter.inserts} inserts, "
            f"{self._limiter.samples} samples; {limiter!r}"
        )

    # -- what may pass ------------------------------------------------------------------------------------------------

    def can_sample(self, num_samples: int) -> bool:
        """Whether `num_samples` samples could pass now, in front of those that wait. Ignores `max_times_sampled`."""
        with self._lock:
            spare = sum(picks.size for picks in self._leftover)
            return num_samples <= spare or self._limiter.can_sample(num_samples - spare)

    def can_insert(self, num_inserts: int) -> bool:
        """Whether `num_inserts` inserts could pass now, in front of those that wait."""
        with self._lock:
            return self._limiter.can_insert(num_inserts)

    @property
    def info(self) -> TableInfo:
        """Settings and state at this moment."""
        options, limiter = self._options, self._options.rate_limiter
        with self._lock:
            return TableInfo(
                name=self.name,
                sampler_options=options.sampler.options,
                remover_options=options.remover.options,
                max_size=options.max_size,
                max_times_sampled=options.max_times_sampled,
                rate_limiter_info=RateLimiterInfo(
                    samples_per_insert=limiter.samples_per_insert,
                    min_diff=limiter.min_diff,
                    max_diff=limiter.max_diff,
                    min_size_to_sample=limiter.min_size_to_sample,
                    insert_stats=_call_stats(self._inserts, self._limiter.inserts),
                    sample_stats=_call_stats(self._samples, self._limiter.samples),
                ),
                signature=None if self._signature is None else self._signature.tree,
                current_size=self._items.count,
                num_episodes=len(self._episodes),
                num_deleted_episodes=self._ended_episodes,
                num_unique_samples=self._unique_samples,
            )

    def check_item(self, leaves: Sequence[LeafSpec]) -> None:
        """Checks the leaves of an item against the signature.

        Raises:
            ValueError: they differ.
        """
        if self._signature is not None:
            self._signature.check(self.name, leaves)

    # -- requests -----------------------------------------------------------------------------------------------------

    def insert(self, request: InsertRequest) -> bool:
        """Queues an insert and lets pass what can; returns whether this one has ended already. Does not block."""
        return self._submit(request, self._inserts)

    def sample(self, request: SampleRequest) -> bool:
        """Queues a sample and lets pass what can; returns whether this one has ended already. Does not block."""
        return self._submit(request, self._samples)

    def _submit(self, request: Any, queue: deque[Any]) -> bool:
        with self._lock:
            if self._closed is not None:
                request.error = ServerStopped(self._closed)
                ended = [request]
            else:
                queue.append(request)
                ended = self._advance()
        for each in ended:
            each.finish()
        return request in ended

    def cancel(self, request: InsertRequest | SampleRequest, error: Exception) -> bool:
        """Fails a waiting request with `error`; what was drawn for it goes to the next. False: it had ended."""
        ended: list[Any]
        with self._lock:
            queue: deque[Any] = self._inserts if isinstance(request, InsertRequest) else self._samples
            if request not in queue:
                return False
            queue.remove(request)
            request.error = error
            if isinstance(request, SampleRequest):
                self._leftover.extend(request.picks)
                request.picks = []
            ended = [request, *self._advance()]
        for each in ended:
            each.finish()
        return True

    def give_back(self, picks: Sequence[Picks]) -> None:
        """Takes samples that nobody waits for any more; the next requests get them."""
        with self._lock:
            self._leftover.extend(picks)
            ended = self._advance()
        for each in ended:
            each.finish()

    def close(self, reason: str) -> None:
        """Fails every waiting and every later request with a `ServerStopped` that says `reason`."""
        with self._lock:
            self._closed = reason
            ended: list[InsertRequest | SampleRequest] = [*self._inserts, *self._samples]
            self._inserts.clear()
            self._samples.clear()
            leftover = list(self._leftover)
            self._leftover.clear()
        for picks in leftover:
            picks.release()
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
            return (self._inserts[0] if self._inserts else None), (self._samples[0] if self._samples else None)

    # -- changes to items ---------------------------------------------------------------------------------------------

    def update_priorities(self, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[np.float64]) -> int:
        """Sets the priorities of items; keys that are not here are ignored. Returns how many were here.

        Raises:
            ValueError: a priority is negative or not finite; nothing is changed then.
        """
        check_priorities(self.name, priorities)
        with self._lock:
            slots, known = self._items.find(keys)
            if slots.size:
                chosen = priorities[known]
                self._items.priority[slots] = chosen
                self._sampler.update(slots, chosen)
                self._remover.update(slots, chosen)
        return int(slots.size)

    def delete(self, keys: npt.NDArray[np.uint64]) -> int:
        """Removes items; keys that are not here are ignored. Returns how many were here."""
        with self._lock:
            slots, _ = self._items.find(keys)
            slots = np.unique(slots)
            if slots.size:
                self._sampler.remove(slots)
                self._remover.remove(slots)
                self._forget(slots)
            ended = self._advance()
        for request in ended:
            request.finish()
        return int(slots.size)

    def reset(self) -> None:
        """Removes every item and sets the limiter's counts to zero. Waiting requests stay, and may pass."""
        with self._lock:
            slots = self._items.all_slots()
            self._sampler.clear()
            self._remover.clear()
            self._forget(slots)
            self._limiter.reset()
            self._episodes.clear()
            self._ended_episodes = self._unique_samples = 0
            leftover = list(self._leftover)
            self._leftover.clear()
            ended = self._advance()
        for picks in leftover:
            picks.release()
        for request in ended:
            request.finish()

    # -- the state machine; the lock is held from here on -------------------------------------------------------------

    def _advance(self) -> list[Any]:
        """Lets requests pass until neither queue moves; returns those that ended."""
        ended: list[Any] = []
        while self._advance_inserts(ended) or self._advance_samples(ended):
            pass
        return ended

    def _advance_inserts(self, ended: list[Any]) -> bool:
        moved = False
        while self._inserts:
            request = self._inserts[0]
            count = self._limiter.insertable(request.waiting)
            if not count:
                break
            moved = True
            self._insert_some(request, count)
            if request.waiting:
                break
            ended.append(self._inserts.popleft())
        return moved

    def _insert_some(self, request: InsertRequest, count: int) -> None:
        # In pieces within which removing first and adding then is the same as one by one.
        piece = self._options.max_size if self._remover.removes_in_batches else 1
        last = request.passed + count
        while request.passed < last:
            free = self._options.max_size - self._items.count
            step = min(last - request.passed, max(free, piece))
            if step > free:
                slots, _ = self._remover.pop(step - free, self._rng)
                self._sampler.remove(slots)
                self._forget(slots)
            chosen = slice(request.passed, request.passed + step)
            priorities = request.priorities[chosen]
            slots = self._items.add(request.layout, request.rows[chosen], priorities, request.episode)
            self._sampler.add(slots, priorities)
            self._remover.add(slots, priorities)
            self._episodes[request.episode] += step
            self._limiter.inserts += step
            request.passed += step

    def _advance_samples(self, ended: list[Any]) -> bool:
        moved = False
        while self._samples:
            request = self._samples[0]
            picks = self._draw_some(request.waiting)
            if picks is None:
                break
            moved = True
            request.picks.append(picks)
            if not request.waiting:
                ended.append(self._samples.popleft())
        return moved

    def _draw_some(self, wanted: int) -> Picks | None:
        if self._leftover:
            picks = self._leftover.popleft()
            if picks.size > wanted:
                picks, rest = picks.split(wanted)
                self._leftover.appendleft(rest)
            return picks
        count = self._limiter.samplable(wanted)
        if not count:
            return None
        table_size = self._items.count
        if self._options.max_times_sampled == 1:  # each takes its item out: the table must not fall below the minimum
            count = min(count, table_size - self._limiter.limiter.min_size_to_sample + 1)
        drawn = draw(self._sampler, self._items, count, self._options.max_times_sampled, self._rng)
        self._unique_samples += drawn.first_times
        self._limiter.samples += drawn.slots.size
        parts = list(self._items.rows_of(drawn.slots))
        for layout, _, rows in parts:
            layout.group.retain(rows)
        picks = Picks(
            self._items.keys(drawn.slots),
            drawn.probabilities,
            self._items.priority[drawn.slots],
            drawn.times_sampled,
            table_size,
            parts,
        )
        if drawn.used_up.size:
            self._remover.remove(drawn.used_up)
            self._forget(drawn.used_up)
        return picks

    def _forget(self, slots: _Slots) -> None:
        """Drops items that both selectors have let go of already."""
        for episode, count in Counter(self._items.episodes(slots).tolist()).items():
            self._episodes[episode] -= count
            if not self._episodes[episode]:
                del self._episodes[episode]
                self._ended_episodes += 1
        for layout, rows in self._items.remove(slots):
            layout.group.release(rows)
        self._limiter.deletes += slots.size


def _call_stats(queue: deque[Any], completed: int) -> RateLimiterCallStats:
    return RateLimiterCallStats(pending=sum(request.waiting for request in queue), completed=completed)
