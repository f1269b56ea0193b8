"""Counters and timers of a plan, shared by its flows.

Flows that are joined share one context from then on; what they had counted before is added up.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, final

from topology.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from topology.nodes.flow.actors import Actor

__all__ = [
    "AGENT_STEPS_SAMPLED_COUNTER",
    "AGENT_STEPS_TRAINED_COUNTER",
    "LAST_TARGET_UPDATE_TS",
    "LEARNER_INFO",
    "NUM_TARGET_UPDATES",
    "NUM_WEIGHT_BROADCASTS",
    "NUM_WEIGHT_SYNCS",
    "STEPS_SAMPLED_COUNTER",
    "STEPS_TRAINED_COUNTER",
    "STEPS_TRAINED_THIS_ITER_COUNTER",
    "MetricsContext",
    "SharedMetrics",
    "WindowTimer",
    "get_shared_metrics",
]

STEPS_SAMPLED_COUNTER = "num_steps_sampled"
AGENT_STEPS_SAMPLED_COUNTER = "num_agent_steps_sampled"
STEPS_TRAINED_COUNTER = "num_steps_trained"
STEPS_TRAINED_THIS_ITER_COUNTER = "num_steps_trained_this_iter"
AGENT_STEPS_TRAINED_COUNTER = "num_agent_steps_trained"
LAST_TARGET_UPDATE_TS = "last_target_update_ts"
NUM_TARGET_UPDATES = "num_target_updates"
NUM_WEIGHT_BROADCASTS = "num_weight_broadcasts"
NUM_WEIGHT_SYNCS = "num_weight_syncs"
LEARNER_INFO = "learner"

_WINDOW = 10


@final
class WindowTimer:
    """Mean and throughput of the last ten blocks.

    Example:
        >>> timer = WindowTimer()
        >>> timer.push(0.5); timer.push_units_processed(100)
        >>> timer.mean, timer.mean_throughput
        (0.5, 200.0)
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._units: deque[float] = deque(maxlen=_WINDOW)
        self._began = 0.0

    def __enter__(self) -> WindowTimer:
        self._began = self._clock.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.push(self._clock.monotonic() - self._began)

    def push(self, seconds: float) -> None:
        """Notes how long one block took."""
        self._seconds.append(seconds)

    def push_units_processed(self, units: float) -> None:
        """Notes how much one block dealt with."""
        self._units.append(units)

    @property
    def mean(self) -> float:
        """Seconds of a block; 0 before the first."""
        return sum(self._seconds) / len(self._seconds) if self._seconds else 0.0

    @property
    def mean_throughput(self) -> float:
        """Units a second; 0 before the first."""
        seconds = sum(self._seconds)
        return sum(self._units) / seconds if seconds > 0 else 0.0

    @property
    def has_units_processed(self) -> bool:
        """Whether units were ever noted."""
        return bool(self._units)


@final
class MetricsContext:
    """What the flows of a plan count.

    Attributes:
        counters: integers by name, 0 at first.
        timers: by name, made when first used.
        info: anything by name, e.g. `LEARNER_INFO`.
        current_actor: worker of the item that an operator is called with; None for what the driver made.
    """

    def __init__(self) -> None:
        self.counters: defaultdict[str, int] = defaultdict(int)
        self.timers: defaultdict[str, WindowTimer] = defaultdict(WindowTimer)
        self.info: dict[str, Any] = {}
        self.current_actor: Actor | None = None

    def save(self) -> dict[str, Any]:
        """Counters and info, for a checkpoint."""
        return {"counters": dict(self.counters), "info": dict(self.info)}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes `save` back; timers begin anew."""
        self.counters.clear()
        self.counters.update(state["counters"])
        self.info.clear()
        self.info.update(state["info"])
        self.timers.clear()

    def absorb(self, other: MetricsContext) -> None:
        """Adds what another context has counted."""
        for name, count in other.counters.items():
            self.counters[name] += count
        for name, timer in other.timers.items():
            self.timers.setdefault(name, timer)
        for name, value in other.info.items():
            self.info.setdefault(name, value)


_current: ContextVar[MetricsContext | None] = ContextVar("topology_flow_metrics", default=None)


@final
class SharedMetrics:
    """A cell that holds the context of a flow; cells of flows that are joined hold the same one.

    Attributes:
        context: what is held.
        holders: all cells that hold it.
    """

    def __init__(self) -> None:
        self.context = MetricsContext()
        self.holders = [self]

    def get(self) -> MetricsContext:
        """The context."""
        return self.context

    def join(self, other: SharedMetrics) -> None:
        """Makes all cells that hold either context hold one with the sum of both."""
        if other.context is self.context:
            return
        self.context.absorb(other.context)
        self.holders += other.holders
        for cell in other.holders:
            cell.context, cell.holders = self.context, self.holders

    def enter(self, actor: Actor | None) -> Token[MetricsContext | None]:
        """Makes the context that of the code called next; end it with `leave`."""
        context = self.get()
        context.current_actor = actor
        return _current.set(context)

    @staticmethod
    def leave(token: Token[MetricsContext | None]) -> None:
        """Takes `enter` back."""
        _current.reset(token)

    @contextmanager
    def active(self) -> Iterator[MetricsContext]:
        """`enter` and `leave` around a block."""
        token = self.enter(None)
        try:
            yield self.get()
        finally:
            _current.reset(token)


def get_shared_metrics() -> MetricsContext:
    """The counters of the plan whose operator runs now.

    Raises:
        ValueError: no operator runs in this thread.
    """
    context = _current.get()
    if context is None:
        raise ValueError("get_shared_metrics() was called outside an operator: it is there while a plan calls one")
    return context
