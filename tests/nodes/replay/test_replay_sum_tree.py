import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.nodes.replay.sum_tree import SumTree

WEIGHTS = st.floats(0, 1e6) | st.just(0.0) | st.floats(1e-12, 1e-6)


def naive_find(weights: np.ndarray, fraction: float) -> int:
    return int(np.searchsorted(np.cumsum(weights), fraction * weights.sum(), side="right"))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.lists(st.tuples(st.integers(0, 5000), WEIGHTS), min_size=1, max_size=20), max_size=20))
def test_agrees_with_a_plain_array(updates):
    tree, naive = SumTree(), np.zeros(5001)
    for update in updates:
        indices, weights = (np.array(column) for column in zip(*dict(update).items(), strict=True))
        tree.set(indices, weights.astype(float))
        naive[indices] = weights
    assert tree.total == pytest.approx(naive.sum(), rel=1e-12)
    stored = np.arange(min(tree.capacity, 5001))
    np.testing.assert_array_equal(tree.get(stored), naive[stored])
    if naive.sum() > 0:
        found = tree.find(np.linspace(0, 1, 50, endpoint=False))
        assert (naive[found] > 0).all()


@pytest.mark.parametrize("size", [1, 16, 17, 4096, 4097, 70_000, 200_000])
def test_finds_what_a_cumulative_sum_finds(size):
    rng = np.random.default_rng(size)
    weights = rng.integers(0, 4, size).astype(float)  # integers: all sums are exact
    weights[-1] = 1.0
    tree = SumTree()
    tree.set(np.arange(size), weights)
    fractions = rng.integers(0, 1 << 20, 500) / (1 << 20)
    expected = [naive_find(weights, fraction) for fraction in fractions]
    # The product of fraction and total may round differently only at a boundary, where neighbours are equally right.
    np.testing.assert_array_equal(tree.find(fractions), expected)


def test_never_finds_weight_zero_however_unlucky_the_rounding():
    rng = np.random.default_rng(0)
    tree, weights = SumTree(), np.zeros(80_000)
    some = rng.choice(80_000, 300, replace=False)
    weights[some] = 10.0 ** rng.uniform(-12, 12, 300)
    tree.set(np.arange(80_000), weights)
    top = np.nextafter(1.0, 0.0)
    fractions = np.concatenate([[0.0, top], 1 - 10.0 ** -rng.uniform(10, 16, 2000), rng.random(5000)])
    assert (weights[tree.find(np.minimum(fractions, top))] > 0).all()


def test_rounding_errors_do_not_add_up():
    tree = SumTree()
    for value in (1e16, 1.0, 0.1) * 2000:
        tree.set(np.array([3]), np.array([value]))
        tree.set(np.array([4]), np.array([0.3]))
    tree.set(np.array([3]), np.array([0.0]))
    assert tree.total == 0.3


def test_of_an_index_given_twice_the_last_weight_holds():
    tree = SumTree()
    tree.set(np.array([5, 5, 5]), np.array([1.0, 2.0, 7.0]))
    assert tree.total == 7.0


def test_clear():
    tree = SumTree(100_000)
    tree.set(np.array([99_999]), np.array([2.0]))
    tree.clear()
    assert tree.total == 0
