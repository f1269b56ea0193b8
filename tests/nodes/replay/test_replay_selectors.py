import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.nodes.replay import selectors

ALL = [
    selectors.Uniform(),
    selectors.Prioritized(0.7),
    selectors.Fifo(),
    selectors.Lifo(),
    selectors.MinHeap(),
    selectors.MaxHeap(),
]


def chi_square(observed: np.ndarray, probabilities: np.ndarray) -> float:
    expected = probabilities * observed.sum()
    return float(((observed - expected) ** 2 / expected).sum())


def critical(degrees: int) -> float:
    """About the 0.999 quantile of chi-square (Wilson and Hilferty)."""
    return degrees * (1 - 2 / (9 * degrees) + 3.09 * (2 / (9 * degrees)) ** 0.5) ** 3


def add(distribution, slots, priorities=None):
    slots = np.asarray(slots)
    distribution.add(slots, np.ones(slots.size) if priorities is None else np.asarray(priorities, float))


class Naive:
    """The set of slots as a list of (slot, priority), oldest first, and by the time the priority was set."""

    def __init__(self):
        self.entries = {}
        self.clock = 0

    def add(self, slot, priority):
        self.clock += 1
        self.entries[slot] = (priority, self.clock)

    def support(self, selector):
        """Probability by slot."""
        by_age = list(self.entries)
        best = {
            selectors.Fifo: lambda: by_age[0],
            selectors.Lifo: lambda: by_age[-1],
            selectors.MinHeap: lambda: min(by_age, key=lambda s: self.entries[s]),
            selectors.MaxHeap: lambda: min(by_age, key=lambda s: (-self.entries[s][0], self.entries[s][1])),
        }.get(type(selector))
        if best is not None:
            return {best(): 1.0}
        exponent = selector.priority_exponent if isinstance(selector, selectors.Prioritized) else 0.0
        weights = {slot: priority**exponent for slot, (priority, _) in self.entries.items()}
        total = sum(weights.values())
        if total == 0:
            return {slot: 1 / len(weights) for slot in weights}
        return {slot: weight / total for slot, weight in weights.items() if weight}


schedule = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "update", "pop"]), st.integers(1, 8), st.integers(0, 2**31)),
    max_size=40,
)


@pytest.mark.parametrize("selector", ALL, ids=lambda s: type(s).__name__)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(calls=schedule)
def test_random_schedules_against_a_plain_model(selector, calls):
    distribution, naive, rng = selector.build(), Naive(), np.random.default_rng(0)
    for kind, count, seed in calls:
        draw = np.random.default_rng(seed)
        present = list(naive.entries)
        if kind == "add":
            free = [slot for slot in range(60) if slot not in naive.entries]
            slots = draw.choice(free, min(count, len(free)), replace=False)
            priorities = draw.integers(0, 4, slots.size).astype(float)
            if slots.size:
                distribution.add(slots, priorities)
            for slot, priority in zip(slots.tolist(), priorities.tolist(), strict=True):
                naive.add(slot, priority)
        elif kind == "pop" and present:
            before = naive.support(selector)
            slots, probabilities = distribution.pop(1, rng)
            assert before[int(slots[0])] == pytest.approx(float(probabilities[0]))
            del naive.entries[int(slots[0])]
        elif present:
            slots = draw.choice(present, min(count, len(present)), replace=False)
            if kind == "remove":
                distribution.remove(slots)
                for slot in slots.tolist():
                    del naive.entries[slot]
            else:
                priorities = draw.integers(0, 4, slots.size).astype(float)
                distribution.update(slots, priorities)
                for slot, priority in zip(slots.tolist(), priorities.tolist(), strict=True):
                    naive.clock += 1
                    naive.entries[slot] = (priority, naive.clock)
        if naive.entries:
            support = naive.support(selector)
            slots, probabilities = distribution.choose(5, rng)
            for slot, probability in zip(slots.tolist(), probabilities.tolist(), strict=True):
                assert support[slot] == pytest.approx(probability)


def test_uniform_is_uniform():
    distribution, rng = selectors.Uniform().build(), np.random.default_rng(1)
    add(distribution, np.arange(100))
    distribution.remove(np.arange(0, 100, 2))
    slots, probabilities = distribution.choose(50_000, rng)
    counts = np.bincount(slots, minlength=100)
    assert counts[::2].sum() == 0
    assert chi_square(counts[1::2], np.full(50, 1 / 50)) < critical(49)
    np.testing.assert_allclose(probabilities, 1 / 50)


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0, 2.0])
def test_prioritized_follows_the_exponent_also_while_items_come_and_go(exponent):
    distribution, rng = selectors.Prioritized(exponent).build(), np.random.default_rng(2)
    priorities = np.random.default_rng(3).uniform(0.1, 5, 200)
    add(distribution, np.arange(200), priorities)
    distribution.remove(np.arange(50, 100))
    weights = priorities**exponent
    weights[50:100] = 0
    counts = np.zeros(200)
    for i in range(100):
        add(distribution, [200 + i], [1e-9])  # a stranger that is hardly ever drawn
        slots, _ = distribution.choose(500, rng)
        counts += np.bincount(slots[slots < 200], minlength=200)
        distribution.remove(np.array([200 + i]))
    alive = weights > 0
    assert counts[~alive].sum() == 0
    assert chi_square(counts[alive], (weights / weights.sum())[alive]) < critical(int(alive.sum()) - 1) * (
        1.2 if exponent == 0 else 1.0
    )


def test_all_zero_priorities_mean_uniform():
    distribution, rng = selectors.Prioritized(1.0).build(), np.random.default_rng(4)
    add(distribution, np.arange(20), np.zeros(20))
    distribution.remove(np.array([3]))
    slots, probabilities = distribution.choose(19_000, rng)
    counts = np.delete(np.bincount(slots, minlength=20), 3)
    assert chi_square(counts, np.full(19, 1 / 19)) < critical(18)
    np.testing.assert_allclose(probabilities, 1 / 19)


def test_zero_priority_is_never_drawn_among_others():
    distribution, rng = selectors.Prioritized(0.5).build(), np.random.default_rng(5)
    add(distribution, np.arange(10), [0, 1] * 5)
    slots, _ = distribution.choose(5000, rng)
    assert set(slots.tolist()) == {1, 3, 5, 7, 9}


def test_huge_priorities_do_not_overflow():
    distribution, rng = selectors.Prioritized(4.0).build(), np.random.default_rng(6)
    add(distribution, np.arange(3), [1e300, 1e300, 1.0])
    slots, probabilities = distribution.choose(100, rng)
    assert set(slots.tolist()) == {0, 1}
    np.testing.assert_allclose(probabilities, 0.5)


@pytest.mark.parametrize("selector", ALL, ids=lambda s: type(s).__name__)
def test_same_seed_same_choices(selector):
    def choices(seed):
        distribution, rng = selector.build(), np.random.default_rng(seed)
        add(distribution, np.arange(50), np.arange(50))
        return distribution.choose(20, rng)[0].tolist()

    assert choices(7) == choices(7)
    if not selector.options.is_deterministic:
        assert choices(7) != choices(8)


def test_heap_ties_go_to_the_earliest_set():
    heap = selectors.MinHeap().build()
    add(heap, [4, 2, 9], [1.0, 1.0, 1.0])
    heap.update(np.array([4]), np.array([1.0]))
    assert [int(heap.pop(1, np.random.default_rng())[0][0]) for _ in range(3)] == [2, 9, 4]


def test_fifo_memory_stays_flat():
    fifo = selectors.Fifo().build()
    rng = np.random.default_rng()
    add(fifo, np.arange(100))
    for _ in range(5000):
        slots, _ = fifo.pop(1, rng)
        add(fifo, slots)
    assert fifo._order.size <= 512


def test_options_name_the_selector():
    assert selectors.Prioritized(0.5).options.prioritized.priority_exponent == 0.5
    assert selectors.MinHeap().options.heap.min_heap
    assert not selectors.MaxHeap().options.heap.min_heap
    for selector, name in ((selectors.Uniform(), "uniform"), (selectors.Fifo(), "fifo"), (selectors.Lifo(), "lifo")):
        assert selector.options.HasField(name)
        assert not selector.options.HasField("heap")


@pytest.mark.parametrize("exponent", [-0.1, float("nan"), float("inf")])
def test_exponent_is_checked(exponent):
    with pytest.raises(ValueError, match="priority_exponent"):
        selectors.Prioritized(exponent)
