"""What a table tells about itself and about a sample. Field names are Reverb's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

__all__ = [
    "HeapOptions",
    "PrioritizedOptions",
    "RateLimiterCallStats",
    "RateLimiterInfo",
    "ReplaySample",
    "SampleInfo",
    "SelectorOptions",
    "TableInfo",
    "TableWorkerTime",
]


class SampleInfo(NamedTuple):
    """About one sampled item (Python numbers), or about a batch of them (arrays of shape [B]).

    Attributes:
        key: identity of the item while it is in the table, for `mutate_priorities`; uint64.
        probability: with which it was drawn, given the table at that moment; float64.
        table_size: items in the table at that moment; int64.
        priority: its priority at that moment; float64.
        times_sampled: how often it has been sampled, this time included; int32. Programs of 2021 leave it out.
    """

    key: Any
    probability: Any
    table_size: Any
    priority: Any
    times_sampled: Any = 0

    @classmethod
    def zeros(cls) -> SampleInfo:
        """Zeros for all fields: of a sample that comes from elsewhere."""
        return cls(0, 0.0, 0, 0.0, 0)


class ReplaySample(NamedTuple):
    """A sample: what is known about it, and the data in the structure the writer gave it."""

    info: SampleInfo
    data: Any


@final
@dataclass(frozen=True)
class PrioritizedOptions:
    """Options of the Prioritized selector."""

    priority_exponent: float


@final
@dataclass(frozen=True)
class HeapOptions:
    """Options of MinHeap and MaxHeap."""

    min_heap: bool


@final
@dataclass(frozen=True, kw_only=True)
class SelectorOptions:
    """Which selector it is: exactly one of the first five is set."""

    fifo: bool = False
    uniform: bool = False
    prioritized: PrioritizedOptions | None = None
    heap: HeapOptions | None = None
    lifo: bool = False
    is_deterministic: bool = False

    def HasField(self, name: str) -> bool:  # noqa: N802  (name of the original's protocol buffer)
        """Whether the option `name` is the one that is set."""
        return bool(getattr(self, name))


@final
@dataclass(frozen=True, kw_only=True)
class RateLimiterCallStats:
    """Calls of one side: `completed` items passed, `pending` items wait for the limiter now."""

    pending: int
    completed: int


@final
@dataclass(frozen=True, kw_only=True)
class RateLimiterInfo:
    """Settings and counts of a rate limiter."""

    samples_per_insert: float
    min_diff: float
    max_diff: float
    min_size_to_sample: int
    insert_stats: RateLimiterCallStats
    sample_stats: RateLimiterCallStats


@final
@dataclass(frozen=True, kw_only=True)
class TableWorkerTime:
    """How a table has spent its life so far, in whole milliseconds. Calls wait in it; no thread of its own does.

    Attributes:
        sampling_ms: letting samples pass, and what they let pass.
        inserting_ms: letting inserts pass, and what they let pass.
        sleeping_ms: nothing waited.
        waiting_for_sampling_ms: inserts waited for samples.
        waiting_for_inserts_ms: samples waited for inserts.
    """

    sampling_ms: int
    inserting_ms: int
    sleeping_ms: int
    waiting_for_sampling_ms: int
    waiting_for_inserts_ms: int


@final
@dataclass(frozen=True, kw_only=True)
class TableInfo:
    """Settings and state of a table at one moment.

    Attributes:
        name: name of the table.
        sampler_options: the selector items are sampled with.
        remover_options: the selector items are removed with when the table is full.
        max_size: most items it holds.
        max_times_sampled: samples after which an item is removed; 0 for never.
        rate_limiter_info: settings and counts of its rate limiter.
        signature: structure of `Spec` that items must have; None for any.
        current_size: items it holds.
        num_steps: steps of these, where the steps of an item are those of its longest leaf.
        num_episodes: episodes with an item in it.
        num_deleted_episodes: episodes that had an item in it and have none any more.
        num_unique_samples: items it holds, or held, that were sampled at least once.
        table_worker_time: where its time went.
    """

    name: str
    sampler_options: SelectorOptions
    remover_options: SelectorOptions
    max_size: int
    max_times_sampled: int
    rate_limiter_info: RateLimiterInfo
    signature: Any
    current_size: int
    num_steps: int
    num_episodes: int
    num_deleted_episodes: int
    num_unique_samples: int
    table_worker_time: TableWorkerTime
