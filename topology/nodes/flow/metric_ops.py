"""Operators that report."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from topology.clock import SYSTEM_CLOCK, Clock
from topology.nodes.flow.actors import Actor
from topology.nodes.flow.local_iterator import LocalIterator
from topology.nodes.flow.metrics import (
    AGENT_STEPS_SAMPLED_COUNTER,
    STEPS_SAMPLED_COUNTER,
    STEPS_TRAINED_COUNTER,
    get_shared_metrics,
)
from topology.nodes.flow.worker import Episode
from topology.nodes.flow.worker_set import WorkerSet

__all__ = [
    "CollectMetrics",
    "OncePerTimeInterval",
    "OncePerTimestepsElapsed",
    "StandardMetricsReporting",
]


@final
class OncePerTimeInterval:
    """Lets an item pass once in so many seconds; the first one always. Use with `filter`.

    Args:
        delay_s: seconds; None or 0 lets all pass.
        clock: for tests.
    """

    def __init__(self, delay_s: float | None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._delay_s = delay_s or 0.0
        self._clock = clock
        self._last: float | None = None

    def __call__(self, item: Any) -> bool:  # noqa: ARG002 - what passes does not matter
        """Whether it is time."""
        now = self._clock.monotonic()
        if self._last is not None and now - self._last < self._delay_s:
            return False
        self._last = now
        return True


@final
class OncePerTimestepsElapsed:
    """Lets an item pass once in so many steps. Use with `filter`.

    Args:
        delay_steps: steps; None or 0 lets all pass.
        by_steps_trained: whether steps trained count, or steps sampled.
    """

    def __init__(self, delay_steps: int | None, by_steps_trained: bool = False) -> None:
        self._delay = delay_steps or 0
        self._counter = STEPS_TRAINED_COUNTER if by_steps_trained else STEPS_SAMPLED_COUNTER
        self._last = 0

    def __call__(self, item: Any) -> bool:  # noqa: ARG002 - what passes does not matter
        """Whether it is time."""
        now = get_shared_metrics().counters[self._counter]
        self._last = min(self._last, now)  # a plan that was restored counts from less
        if now - self._last < self._delay:
            return False
        self._last = now
        return True


@final
class CollectMetrics:
    """Makes a result of what the workers have told so far, and of the plan's counters. Asks nobody, so it never waits.

    Args:
        workers: told of the episodes that ended.
        min_history: episodes that the means are over, earlier ones where there are not so many new ones.
        timeout_seconds: not needed here; accepted for programs that say so.
        selected_workers: not needed here; accepted alike. What a worker tells comes with its items.
        by_steps_trained: whether `timesteps_total` counts steps trained, or steps sampled.
    """

    def __init__(
        self,
        workers: WorkerSet,
        min_history: int = 100,
        timeout_seconds: float = 180.0,
        selected_workers: Sequence[Actor] | None = None,
        by_steps_trained: bool = False,
    ) -> None:
        del timeout_seconds, selected_workers
        self._workers = workers
        self._history: deque[Episode] = deque(maxlen=min_history)
        self._counter = STEPS_TRAINED_COUNTER if by_steps_trained else STEPS_SAMPLED_COUNTER
        self._last_total = 0

    def __call__(self, item: Any) -> dict[str, Any]:  # noqa: ARG002 - what passes does not matter
        """The result: episodes, counters, timers, what the learner told."""
        metrics = get_shared_metrics()
        new = _drain(self._workers.episodes)
        self._history.extend(new)
        total = metrics.counters[self._counter]
        timers = {}
        for name, timer in metrics.timers.items():
            timers[f"{name}_time_ms"] = round(1000 * timer.mean, 3)
            if timer.has_units_processed:
                timers[f"{name}_throughput"] = round(timer.mean_throughput, 3)
        result = {
            **_summary(list(self._history), len(new)),
            "timesteps_total": total,
            "timesteps_this_iter": total - min(self._last_total, total),
            "agent_timesteps_total": metrics.counters[AGENT_STEPS_SAMPLED_COUNTER],
            "num_healthy_workers": self._workers.num_healthy_workers,
            "timers": timers,
            "info": {**metrics.info, **metrics.counters},
        }
        self._last_total = total
        return result


def _drain(episodes: deque[Episode]) -> list[Episode]:
    found = []
    while episodes:
        found.append(episodes.popleft())
    return found


def _summary(episodes: list[Episode], new: int) -> dict[str, Any]:
    returns = np.array([episode.episode_return for episode in episodes] or [np.nan])
    lengths = np.array([float(episode.length) for episode in episodes] or [np.nan])
    return {
        "episode_reward_mean": float(returns.mean()),
        "episode_reward_min": float(returns.min()),
        "episode_reward_max": float(returns.max()),
        "episode_len_mean": float(lengths.mean()),
        "episodes_this_iter": new,
    }


def StandardMetricsReporting(  # noqa: N802 - its name
    train_op: LocalIterator[Any],
    workers: WorkerSet,
    config: Mapping[str, Any],
    selected_workers: Sequence[Actor] | None = None,
    by_steps_trained: bool = False,
) -> LocalIterator[dict[str, Any]]:
    """Results of a plan, at most one for each item of `train_op`.

    Settings: `timesteps_per_iteration` and `min_iter_time_s` from one result to the next, both 0 by default;
    `metrics_smoothing_episodes`, 100.
    """
    collect = CollectMetrics(
        workers,
        min_history=config.get("metrics_smoothing_episodes", 100),
        selected_workers=selected_workers,
        by_steps_trained=by_steps_trained,
    )
    steps = OncePerTimestepsElapsed(config.get("timesteps_per_iteration"), by_steps_trained)
    return train_op.filter(steps).filter(OncePerTimeInterval(config.get("min_iter_time_s"))).for_each(collect)
