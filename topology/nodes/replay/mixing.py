"""Making one answer of those of several replay servers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from topology.nodes.replay.info import RateLimiterCallStats, TableInfo, TableWorkerTime
from topology.nodes.replay.messages import SampleBatch, SampleGroup

__all__ = ["MOST_SHARDS", "Part", "join", "key_on_its_shard", "mix", "shard_of"]

SHARD_BIT = 56
MOST_SHARDS = 256


class Part(NamedTuple):
    """`size` items of a batch, from one shard."""

    shard: int
    size: int


def shard_of(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """The shard that each key belongs to: it is in the key's highest byte."""
    return (keys >> np.uint64(SHARD_BIT)).astype(np.int64)


def key_on_its_shard(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The keys as their shards know them."""
    return keys & np.uint64((1 << SHARD_BIT) - 1)


def join(method: str, results: Sequence[Any]) -> Any:
    """One result of a method that several shards carried out."""
    return _JOIN[method](results) if method in _JOIN else None


def mix(parts: Sequence[tuple[Part, SampleBatch]]) -> SampleBatch:
    """One batch of several; keys say the shard, probabilities and sizes are those of all shards together."""
    total = sum(batch.keys.size for _, batch in parts)
    size = {part.shard: int(batch.table_sizes[0]) for part, batch in parts}
    count: dict[int, int] = {}
    for part, batch in parts:
        count[part.shard] = count.get(part.shard, 0) + batch.keys.size
    return SampleBatch(
        np.concatenate([batch.keys | np.uint64(part.shard << SHARD_BIT) for part, batch in parts]),
        np.concatenate([batch.probabilities * (count[part.shard] / total) for part, batch in parts]),
        np.full(total, sum(size.values()), np.int64),
        np.concatenate([batch.priorities for _, batch in parts]),
        np.concatenate([batch.times_sampled for _, batch in parts]),
        _mix_groups([batch for _, batch in parts]),
    )


def _mix_groups(batches: Sequence[SampleBatch]) -> list[SampleGroup]:
    found: dict[Any, list[tuple[npt.NDArray[np.int64], SampleGroup]]] = {}
    offset = 0
    for batch in batches:
        for group in batch.groups:
            positions = np.arange(batch.keys.size) if group.positions is None else group.positions
            kind = (group.structure, tuple((leaf.shape[1:], leaf.dtype) for leaf in group.leaves))
            found.setdefault(kind, []).append((positions + offset, group))
        offset += batch.keys.size
    mixed = []
    for (structure, _), members in found.items():
        leaves = [np.concatenate(leaves) for leaves in zip(*(group.leaves for _, group in members), strict=True)]
        everywhere = None if len(found) == 1 else np.concatenate([where for where, _ in members])
        mixed.append(SampleGroup(structure, everywhere, leaves))
    return mixed


def _join_infos(infos: Sequence[dict[str, TableInfo]]) -> dict[str, TableInfo]:
    if not infos:
        return {}
    return {name: _add_infos([info[name] for info in infos if name in info]) for name in infos[0]}


def _add_infos(infos: Sequence[TableInfo]) -> TableInfo:
    """Sums of sizes, counts and times; settings of the first, a maximal size of all together."""
    first = infos[0]
    sums = {
        name: sum(getattr(info, name) for info in infos)
        for name in ("max_size", "current_size", "num_episodes", "num_deleted_episodes", "num_unique_samples")
    }
    limits = [info.rate_limiter_info for info in infos]
    limiter = dataclasses.replace(
        first.rate_limiter_info,
        insert_stats=_add_stats([limit.insert_stats for limit in limits]),
        sample_stats=_add_stats([limit.sample_stats for limit in limits]),
    )
    times = [dataclasses.asdict(info.table_worker_time) for info in infos]
    total = TableWorkerTime(**{name: sum(time[name] for time in times) for name in times[0]})
    return dataclasses.replace(first, **sums, rate_limiter_info=limiter, table_worker_time=total)


def _add_stats(stats: Sequence[RateLimiterCallStats]) -> RateLimiterCallStats:
    return RateLimiterCallStats(pending=sum(s.pending for s in stats), completed=sum(s.completed for s in stats))


_JOIN: dict[str, Callable[[Sequence[Any]], Any]] = {
    "server_info": _join_infos,
    "update_priorities": sum,
    "delete": sum,
    "checkpoint": ", ".join,
}
