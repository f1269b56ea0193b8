"""Drawing a batch of items from a sampler, exact also where items leave after their k-th sample."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topology.nodes.replay.distributions import Distribution
from topology.nodes.replay.items import Items
from topology.nodes.replay.storage import ones

__all__ = ["Draw", "draw", "draw_distinct"]

_Slots = npt.NDArray[np.int64]

_TRIES = 8


class Draw(NamedTuple):
    """What was drawn.

    Attributes:
        slots: items in the order they were drawn, [n].
        probabilities: with which each was drawn, [n].
        times_sampled: how often each had been sampled then, that time included, [n].
        first_times: how many were sampled for the first time.
        used_up: items that reached their last sample; the sampler has let go of them already.
    """

    slots: _Slots
    probabilities: npt.NDArray[np.float64]
    times_sampled: npt.NDArray[np.int32]
    first_times: int
    used_up: _Slots


def draw(sampler: Distribution, items: Items, count: int, max_times_sampled: int, rng: np.random.Generator) -> Draw:
    """Draws up to `count` items, at least one; counts the samples in `items`.

    With `max_times_sampled` it may draw fewer: it stops where an item leaves, since that changes what can be drawn
    next. The caller asks again.
    """
    if max_times_sampled == 1:
        # Every draw takes its item out.
        slots, probabilities = sampler.pop(min(count, items.count), rng)
        items.times_sampled[slots] = 1
        return Draw(slots, probabilities, np.ones(slots.size, np.int32), slots.size, slots)
    slots, probabilities = sampler.choose(count, rng)
    return _count(sampler, items, slots, probabilities, max_times_sampled)


def draw_distinct(
    sampler: Distribution, items: Items, count: int, max_times_sampled: int, rng: np.random.Generator, taken: _Slots
) -> Draw:
    """Like `draw`, but each item at most once, and none of `taken`; at least `count` others must be there.

    Items are drawn one after the other, each in proportion to its weight among those that are left; those of weight
    zero come last. The probability reported of each is that with which a single draw would have given it.
    """
    if sampler.is_random:
        slots = _distinct(sampler, items, count, rng, taken)
        probabilities = sampler.chances(slots)
    else:
        slots = sampler.first(count + taken.size)
        slots = slots[~np.isin(slots, taken)][:count]
        probabilities = np.ones(slots.size)
    return _count(sampler, items, slots, probabilities, max_times_sampled)


def _distinct(sampler: Distribution, items: Items, count: int, rng: np.random.Generator, taken: _Slots) -> _Slots:
    """Draws with replacement and leaves out what was drawn before, which is the same as drawing without.

    Where a few items have nearly all the weight that would take long: those drawn so far are then taken out of the
    sampler, and put back at the end.
    """
    slots, out = taken, taken[:0]
    wanted = taken.size + count
    tries = 0
    while slots.size < wanted:
        if tries == _TRIES:
            tries = 0
            sampler.remove(slots[out.size :])
            out = slots
        tries += 1
        more, _ = sampler.choose(2 * (wanted - slots.size) + 8, rng)
        both = np.concatenate([slots, more])
        slots = both[np.sort(np.unique(both, return_index=True)[1])]
    if out.size:
        sampler.add(out, items.priority[out])
    return slots[taken.size : wanted]


def _count(
    sampler: Distribution,
    items: Items,
    slots: _Slots,
    probabilities: npt.NDArray[np.float64],
    max_times_sampled: int,
) -> Draw:
    """Counts the samples, up to and with the first that takes its item out."""
    earlier, used_up = items.times_sampled.take(slots), slots[:0]
    if max_times_sampled:
        times = earlier + _earlier_in_batch(slots) + 1
        last = times >= max_times_sampled
        if last.any():
            end = int(last.argmax()) + 1
            slots, probabilities, times = slots[:end], probabilities[:end], times[:end]
            used_up = slots[end - 1 :]
            sampler.remove(used_up)
        _add_one(items.times_sampled, slots)
    else:
        _add_one(items.times_sampled, slots)
        times = earlier + np.int32(1)
        repeated = (items.times_sampled.take(slots) != times).nonzero()[0]
        if repeated.size:  # few, in a table much larger than the batch
            times[repeated] += _earlier_in_batch(slots[repeated])
    return Draw(slots, probabilities, times, int(np.count_nonzero(times == 1)), used_up)


def _add_one(counts: npt.NDArray[np.int32], slots: _Slots) -> None:
    np.add.at(counts, slots, ones(slots.size))


def _earlier_in_batch(slots: _Slots) -> npt.NDArray[np.int32]:
    """How often the slot at each position stands before it in `slots`."""
    if slots.size == 1:
        return np.zeros(1, np.int32)
    order = slots.argsort(kind="stable")
    ordered = slots[order]
    starts = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    positions = np.arange(slots.size)
    rank = positions - np.maximum.accumulate(np.where(starts, positions, 0))
    earlier = np.empty(slots.size, np.int32)
    earlier[order] = rank
    return earlier
