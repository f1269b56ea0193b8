"""The state machine of one table: its items, its two queues, its counts.

An insert or a sample that may not pass yet waits in its queue, first come first served, and is completed by the very
call that lets it pass: an insert can complete waiting samples, a sample waiting inserts. Nothing polls and no thread is
held. Everything here is on indices, with the table's lock held; bytes are copied by others.
"""

from __future__ import annotations

import copy
import secrets
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from topology.nodes.replay.items import Items
from topology.nodes.replay.messages import Occupancy
from topology.nodes.replay.options import TableOptions
from topology.nodes.replay.rate_limiters import LimiterState
from topology.nodes.replay.requests import InsertRequest, Picks, SampleRequest
from topology.nodes.replay.sampling import Draw, draw, draw_distinct

__all__ = ["Counts", "TableCore", "count_each"]

_Slots = npt.NDArray[np.int64]

_MANY = 4096  # values for which making them objects of Python costs more than sorting
_MOST_WRITERS = 65_536  # of which the table knows how many of their items it has taken; the idlest are forgotten


def count_each(values: npt.NDArray[np.uint64]) -> Iterable[tuple[int, int]]:
    """Each distinct value, and how often it is there."""
    if values.size < _MANY:
        return Counter(values.tolist()).items()
    distinct, counts = np.unique(values, return_counts=True)
    return zip(distinct.tolist(), counts.tolist(), strict=True)


class Counts(NamedTuple):
    """What a table has counted since it was made or reset."""

    inserts: int
    samples: int
    deletes: int
    ended_episodes: int
    unique_samples: int


@final
class TableCore:
    """Not thread-safe.

    Attributes:
        options: the table's settings.
        items: what is in the table.
        limiter: counts of inserts, samples and deletes, and what may pass.
        inserted_steps: steps of all items inserted since it was made or cleared.
        inserts, samples: requests that wait, in order.
        leftover: samples drawn for requests that were then cancelled; the next ones get them.
        taken: by writer, how many of its items for this table have passed: what is sent again is not taken twice.
        rng: of both selectors.
    """

    def __init__(self, options: TableOptions) -> None:
        self.options = options
        self.rng = np.random.Generator(np.random.PCG64(options.seed))
        self.limiter = LimiterState(options.rate_limiter)
        self.sampler = options.sampler.build()
        self.remover = options.remover.build()
        self.items = Items(first_generation=int(self.rng.integers(1 << 31)))
        self.episodes: Counter[int] = Counter()
        self.ended_episodes = 0
        self.unique_samples = 0
        self.inserted_steps = 0
        self._life = secrets.randbits(63)
        self.inserts: deque[InsertRequest] = deque()
        self.samples: deque[SampleRequest] = deque()
        self.leftover: deque[Picks] = deque()
        self.taken: OrderedDict[int, int] = OrderedDict()

    @property
    def counts(self) -> Counts:
        """All counts at this moment."""
        limiter = self.limiter
        return Counts(limiter.inserts, limiter.samples, limiter.deletes, self.ended_episodes, self.unique_samples)

    @counts.setter
    def counts(self, counts: Counts) -> None:
        self.limiter.inserts, self.limiter.samples, self.limiter.deletes = counts[:3]
        self.ended_episodes, self.unique_samples = counts[3:]

    @property
    def occupancy(self) -> Occupancy:
        """What has come into the table, and what of it is there."""
        return Occupancy(self.limiter.inserts, self.inserted_steps, self.items.count, self._life)

    # -- requests -----------------------------------------------------------------------------------------------------

    def queue(self, request: InsertRequest | SampleRequest) -> None:
        """Puts a request at the end of its queue; of an insert, only what has not passed before."""
        if isinstance(request, SampleRequest):
            self.samples.append(request)
            return
        known = self.taken.get(request.writer, 0)
        if known > request.serial:
            request.skip(known - request.serial)
        self.inserts.append(request)

    def withdraw(self, request: InsertRequest | SampleRequest) -> bool:
        """Takes a request out of its queue; what was drawn for it goes to the next. False: it is not there."""
        waiting: deque[Any] = self.samples if isinstance(request, SampleRequest) else self.inserts
        if request not in waiting:
            return False
        waiting.remove(request)
        if isinstance(request, SampleRequest):
            self.leftover.extend(request.picks)
            request.picks = []
        return True

    def take_back(self, writer: int, count: int) -> tuple[int, list[InsertRequest]]:
        """Lets none of the first `count` items of a writer pass any more, also of those that are still on their way.

        Returns how many of them had passed, and the requests that have ended.
        """
        taken = self.taken.get(writer, 0)
        ended = [request for request in self.inserts if request.writer == writer and request.serial < count]
        for request in ended:
            self.inserts.remove(request)
        if taken < count:
            self.note_taken(writer, count)
        return taken, ended

    def advance(self) -> list[Any]:
        """Lets requests pass until neither queue moves; returns those that ended."""
        ended: list[Any] = []
        while self._step(self._advance_inserts, self.inserts, ended) or self._step(
            self._advance_samples, self.samples, ended
        ):
            pass
        return ended

    def _step(self, advance: Callable[[list[Any]], bool], waiting: deque[Any], ended: list[Any]) -> bool:
        try:
            return advance(ended)
        except Exception as error:  # noqa: BLE001 - it belongs to the request at the head, and must not hold up others
            request = waiting.popleft()
            request.error = error
            if isinstance(request, SampleRequest):
                self.leftover.extend(request.picks)
                request.picks = []
            ended.append(request)
            return True

    def _advance_inserts(self, ended: list[Any]) -> bool:
        moved = False
        while self.inserts:
            request = self.inserts[0]
            if request.waiting:
                count = self._insertable(request)
                if not count:
                    break
                moved = True
                self._insert_some(request, count)
                if request.waiting:
                    break
            ended.append(self.inserts.popleft())
        return moved

    def _insertable(self, request: InsertRequest) -> int:
        count, most = self.limiter.insertable(request.waiting), self.options.rate_limiter.max_steps
        return count if most is None else min(count, max(0, most - self.items.steps) // request.layout.item_steps)

    def _insert_some(self, request: InsertRequest, count: int) -> None:
        # One by one, a new item is in before one is removed, and may be that one. Where it never is, in pieces within
        # which removing first and adding then is the same.
        removes_first = self.remover.removes_in_batches
        piece = self.options.max_size if removes_first else 1
        last = request.passed + count
        while request.passed < last:
            free = self.options.max_size - self.items.count
            step = min(last - request.passed, max(free, piece))
            if step > free and removes_first:
                self._evict(step - free)
            chosen = slice(request.passed, request.passed + step)
            priorities = request.priorities[chosen]
            slots = self.items.add(request.layout, request.rows[chosen], priorities, request.episode)
            self.sampler.add(slots, priorities)
            self.remover.add(slots, priorities)
            self.episodes[request.episode] += step
            self.limiter.inserts += step
            self.inserted_steps += step * request.layout.item_steps
            request.passed += step
            if step > free and not removes_first:
                self._evict(step - free)
        if request.writer:
            self.note_taken(request.writer, request.serial + request.passed)

    def note_taken(self, writer: int, count: int) -> None:
        """Remembers that the first `count` items of a writer have passed."""
        self.taken[writer] = count
        self.taken.move_to_end(writer)
        if len(self.taken) > _MOST_WRITERS:
            self.taken.popitem(last=False)

    def _evict(self, count: int) -> None:
        slots, _ = self.remover.pop(count, self.rng)
        self.sampler.remove(slots)
        self.forget(slots)

    def _advance_samples(self, ended: list[Any]) -> bool:
        moved = False
        while self.samples:
            request = self.samples[0]
            picks = self._draw_some(request)
            if picks is not None:
                moved = True
                request.picks.append(picks)
            if not request.waiting or (picks is None and request.some and request.picks):
                ended.append(self.samples.popleft())
            elif picks is None:
                break
        return moved

    def _draw_some(self, request: SampleRequest) -> Picks | None:
        wanted = request.waiting
        if self.leftover and (picks := self._take_leftover(request, wanted)) is not None:
            return picks
        count = self.limiter.samplable(wanted)
        if not count:
            return None
        limit = self.options.max_times_sampled
        if limit == 1:  # each takes its item out: the table must not fall below the minimum
            count = min(count, self.items.count - self.limiter.limiter.min_size_to_sample + 1)
        if not request.distinct or limit == 1:
            return self._pick(draw(self.sampler, self.items, count, limit, self.rng))
        taken = self._already_in(request)
        count = min(count, self.items.count - taken.size)
        if not count:
            return None
        return self._pick(draw_distinct(self.sampler, self.items, count, limit, self.rng, taken))

    def _take_leftover(self, request: SampleRequest, wanted: int) -> Picks | None:
        """Up to `wanted` samples that were drawn for others; None when there are none that suit."""
        for place, picks in enumerate(self.leftover):
            suit = _new_to(request, picks.keys) if request.distinct else np.ones(picks.size, np.bool_)
            suit &= suit.cumsum() <= wanted
            if suit.all():
                del self.leftover[place]
                return picks
            if suit.any():
                taken, self.leftover[place] = picks.split(suit)
                return taken
        return None

    def _already_in(self, request: SampleRequest) -> _Slots:
        """The slots of the request's picks that are still in the table."""
        if not request.picks:
            return np.empty(0, np.int64)
        return self.items.find(np.concatenate([picks.keys for picks in request.picks]))[0]

    def _pick(self, drawn: Draw) -> Picks:
        table_size = self.items.count
        self.unique_samples += drawn.first_times
        self.limiter.samples += drawn.slots.size
        parts = list(self.items.rows_of(drawn.slots))
        for layout, _, rows in parts:
            layout.group.retain(rows)
        picks = Picks(
            self.items.keys(drawn.slots),
            drawn.probabilities,
            self.items.priority.take(drawn.slots),
            drawn.times_sampled,
            table_size,
            parts,
        )
        if drawn.used_up.size:
            self.remover.remove(drawn.used_up)
            self.forget(drawn.used_up)
        return picks

    # -- items --------------------------------------------------------------------------------------------------------

    def update(self, slots: _Slots, priorities: npt.NDArray[np.float64]) -> None:
        """Gives items new priorities."""
        self.items.priority[slots] = priorities
        self.sampler.update(slots, priorities)
        self.remover.update(slots, priorities)

    def remove(self, slots: _Slots) -> None:
        """Removes items, each once."""
        self.sampler.remove(slots)
        self.remover.remove(slots)
        self.forget(slots)

    def forget(self, slots: _Slots) -> None:
        """Drops items that both selectors have let go of already."""
        for episode, count in count_each(self.items.episodes(slots)):
            self.episodes[episode] -= count
            if not self.episodes[episode]:
                del self.episodes[episode]
                self.ended_episodes += 1
        for layout, rows in self.items.remove(slots):
            layout.group.release(rows)
        self.limiter.deletes += slots.size

    def clear(self) -> None:
        """Removes every item and sets every count to zero. What waits goes on waiting."""
        slots = self.items.all_slots()
        self.sampler.clear()
        self.remover.clear()
        self.forget(slots)
        self.limiter.reset()
        self.episodes.clear()
        self.ended_episodes = self.unique_samples = self.inserted_steps = 0

    def shrink(self) -> None:
        """Removes items until the table is no larger than its settings allow, as inserts would."""
        excess = self.items.count - self.options.max_size
        if excess > 0:
            self._evict(excess)

    @property
    def rng_state(self) -> dict[str, Any]:
        """State of the generator, as plain numbers."""
        return copy.deepcopy(dict(self.rng.bit_generator.state))

    @rng_state.setter
    def rng_state(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state


def _new_to(request: SampleRequest, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Which of `keys` [n] are there for the first time and are not among the picks of the request."""
    first = np.zeros(keys.size, np.bool_)
    first[np.unique(keys, return_index=True)[1]] = True
    known = [picks.keys for picks in request.picks]
    return first & ~np.isin(keys, np.concatenate(known)) if known else first
