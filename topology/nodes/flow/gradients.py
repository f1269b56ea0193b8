"""Arithmetic on gradients: trees of arrays in lists, tuples and dicts, where None stands for no gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from topology.nodes.replay.structure import flatten, unflatten

__all__ = ["average_gradients"]


def average_gradients(weighted: Sequence[tuple[Any, float]]) -> Any:
    """The mean of gradients, weighted. With keys that only some have, such as policies, over those that have them.

    Args:
        weighted: gradients and their weights, at least one.

    Raises:
        ValueError: there is none, the weights sum to 0, or they differ in structure.

    Example:
        >>> average_gradients([([1.0, 2.0], 1), ([3.0, 2.0], 3)])
        [2.5, 2.0]
    """
    weighted = [(tree, weight) for tree, weight in weighted if tree is not None]  # None is that of an empty batch
    if not weighted or not sum(weight for _, weight in weighted) > 0:
        raise ValueError(f"nothing to average: {len(weighted)} gradients, of no steps")
    first = weighted[0][0]
    trees = [tree for tree, _ in weighted]
    if isinstance(first, Mapping) and any(tree.keys() != first.keys() for tree in trees):
        names = dict.fromkeys(name for tree in trees for name in tree)
        return {
            name: average_gradients([(tree[name], weight) for tree, weight in weighted if name in tree])
            for name in names
        }
    flat = [flatten(tree) for tree in trees]
    shape = flat[0][1]
    if any(other != shape for _, other in flat):
        raise ValueError("gradients of different structure cannot be averaged")
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    weights = [weight for _, weight in weighted]
    return unflatten(shape, [_mean(column, weights) for column in columns])


def _mean(leaves: Sequence[Any], weights: Sequence[float]) -> Any:
    there = [(leaf, weight) for leaf, weight in zip(leaves, weights, strict=True) if leaf is not None]
    if not there:
        return None
    total = sum(weight for _, weight in there)
    return sum(leaf * (weight / total) for leaf, weight in there)
