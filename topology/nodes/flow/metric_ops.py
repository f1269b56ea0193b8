"""Operators that report."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, final

import numpy as np

from topology.clock import SYSTEM_CLOCK, Clock
from topology.nodes.flow.actors import Actor
from topology.nodes.flow.checks import check_whole
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
    "BodyFound",
    "CollectMetrics",
    "OncePerTimeInterval",
    "OncePerTimestepsElapsed",
    "StandardMetricsReporting",
    "bodies_only",
]


@final
class OncePerTimeInterval:
    """Lets an item pass once in so many seconds; the first one always. Use with `filter`.

    Args:
        delay_s: seconds; None or 0 lets all pass.
        clock: for tests.
        last_timestep: steps from which on every item passes, whatever the time; None for none.
        by_steps_trained: whether those are steps trained, or steps sampled.
    """

    def __init__(
        self,
        delay_s: float | None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        last_timestep: int | None = None,
        by_steps_trained: bool = False,
    ) -> None:
        self._delay_s = delay_s or 0.0
        self._clock = clock
        self._last: float | None = None
        self._last_timestep = last_timestep
        self._counter = STEPS_TRAINED_COUNTER if by_steps_trained else STEPS_SAMPLED_COUNTER

    def __call__(self, item: Any) -> bool:  # noqa: ARG002 - what passes does not matter
        """Whether it is time."""
        now = self._clock.monotonic()
        if self._last is not None and now - self._last < self._delay_s and not self._is_last():
            return False
        self._last = now
        return True

    def _is_last(self) -> bool:
        return self._last_timestep is not None and get_shared_metrics().counters[self._counter] >= self._last_timestep


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

    def get_state(self) -> int:
        """The steps when an item passed last."""
        return self._last

    def set_state(self, state: int) -> None:
        """Takes `get_state` back."""
        self._last = state


@final
class CollectMetrics:
    """Makes a result of what the workers have told so far, and of the plan's counters. Asks nobody, so it never waits.

    Args:
        workers: told of the episodes that ended.
        min_history: episodes that the means are over, earlier ones where there are not so many new ones.
        timeout_seconds: not needed here; accepted for programs that say so.
        selected_workers: those whose episodes count, such as the ones that hardly explore; None, or none, for all.
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
        del timeout_seconds
        self._workers = workers
        self._selected = set(selected_workers or ())
        self._history: deque[Episode] = deque(maxlen=check_whole("min_history", min_history, 1))
        self._counter = STEPS_TRAINED_COUNTER if by_steps_trained else STEPS_SAMPLED_COUNTER
        self._last_total = 0

    def __call__(self, item: Any) -> dict[str, Any]:  # noqa: ARG002 - what passes does not matter
        """The result: episodes, counters, timers, what the learner told."""
        metrics = get_shared_metrics()
        told = _drain(self._workers.episodes)
        new = [episode for worker, episode in told if not self._selected or worker in self._selected]
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

    def get_state(self) -> dict[str, Any]:
        """Episodes that means are over, and the steps at the last result."""
        return {"history": [tuple(episode) for episode in self._history], "last_total": self._last_total}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Takes `get_state` back."""
        self._history.clear()
        self._history.extend(Episode(*episode) for episode in state["history"])
        self._last_total = state["last_total"]


def _drain(episodes: deque[tuple[Actor | None, Episode]]) -> list[tuple[Actor | None, Episode]]:
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


_bodies_only: ContextVar[bool] = ContextVar("topology_flow_bodies_only", default=False)


@final
class BodyFound(BaseException):
    """Carries the flow before its reports out of the function that builds a plan: see `Plan.body`."""

    def __init__(self, body: LocalIterator[Any]) -> None:
        super().__init__("the plan is built for its body only")
        self.body = body


@contextmanager
def bodies_only() -> Iterator[None]:
    """In this block `StandardMetricsReporting` raises `BodyFound`."""
    token = _bodies_only.set(True)
    try:
        yield
    finally:
        _bodies_only.reset(token)


def StandardMetricsReporting(  # noqa: N802 - its name
    train_op: LocalIterator[Any],
    workers: WorkerSet,
    config: Mapping[str, Any],
    selected_workers: Sequence[Actor] | None = None,
    by_steps_trained: bool = False,
) -> LocalIterator[dict[str, Any]]:
    """Results of a plan, at most one for each item of `train_op`. `Plan.body` is a plan without them.

    Settings: `timesteps_per_iteration` and `min_iter_time_s` from one result to the next, both 0 by default;
    `last_timestep`, none by default: the steps at which somebody waits for a result, for which no time must pass;
    `metrics_smoothing_episodes`, 100.
    """
    if _bodies_only.get():
        raise BodyFound(train_op)
    collect = CollectMetrics(
        workers,
        min_history=config.get("metrics_smoothing_episodes", 100),
        selected_workers=selected_workers,
        by_steps_trained=by_steps_trained,
    )
    steps = OncePerTimestepsElapsed(config.get("timesteps_per_iteration"), by_steps_trained)
    time = OncePerTimeInterval(
        config.get("min_iter_time_s"), last_timestep=config.get("last_timestep"), by_steps_trained=by_steps_trained
    )
    return train_op.filter(steps).filter(time).for_each(collect)
