"""Selectors: how a table chooses the next item to sample, or to remove when it is full.

A selector is a setting: hashable, picklable, free to be used by several tables. `build` makes the state for one.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import final

from topology.nodes.replay.distributions import Distribution, Heap, Ordered, Proportional, UniformSet
from topology.nodes.replay.info import HeapOptions, PrioritizedOptions, SelectorOptions

__all__ = ["Fifo", "Lifo", "MaxHeap", "MinHeap", "Prioritized", "Selector", "Uniform"]


class Selector(abc.ABC):
    """What a table needs of a selector."""

    @abc.abstractmethod
    def build(self) -> Distribution:
        """A new, empty state."""

    @property
    @abc.abstractmethod
    def options(self) -> SelectorOptions:
        """How `Table.info` reports it."""


@final
@dataclass(frozen=True)
class Uniform(Selector):
    """Every item alike, with replacement."""

    def build(self) -> Distribution:
        return UniformSet()

    @property
    def options(self) -> SelectorOptions:
        return SelectorOptions(uniform=True)


@final
@dataclass(frozen=True)
class Prioritized(Selector):
    """In proportion to priority ** `priority_exponent` (Schaul et al., 2015, arXiv:1511.05952), with replacement.

    While all those weights are zero, every item alike.

    Raises:
        ValueError: the exponent is negative or not a number.
    """

    priority_exponent: float

    def __post_init__(self) -> None:
        if not (self.priority_exponent >= 0 and math.isfinite(self.priority_exponent)):
            raise ValueError(f"priority_exponent must be finite and at least 0, got {self.priority_exponent}")

    def build(self) -> Distribution:
        return Proportional(self.priority_exponent)

    @property
    def options(self) -> SelectorOptions:
        return SelectorOptions(prioritized=PrioritizedOptions(self.priority_exponent))


@final
@dataclass(frozen=True)
class Fifo(Selector):
    """The item that came first."""

    def build(self) -> Distribution:
        return Ordered(newest_first=False)

    @property
    def options(self) -> SelectorOptions:
        return SelectorOptions(fifo=True, is_deterministic=True)


@final
@dataclass(frozen=True)
class Lifo(Selector):
    """The item that came last."""

    def build(self) -> Distribution:
        return Ordered(newest_first=True)

    @property
    def options(self) -> SelectorOptions:
        return SelectorOptions(lifo=True, is_deterministic=True)


@final
@dataclass(frozen=True)
class MinHeap(Selector):
    """The item of least priority; among equals the one inserted or updated earliest."""

    def build(self) -> Distribution:
        return Heap(sign=1.0)

    @property
    def options(self) -> SelectorOptions:
        return SelectorOptions(heap=HeapOptions(min_heap=True), is_deterministic=True)


@final
@dataclass(frozen=True)
class MaxHeap(Selector):
    """The item of greatest priority; among equals the one inserted or updated earliest."""

    def build(self) -> Distribution:
        return Heap(sign=-1.0)

    @property
    def options(self) -> SelectorOptions:
        return SelectorOptions(heap=HeapOptions(min_heap=False), is_deterministic=True)
