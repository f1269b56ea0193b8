"""Weights on their way from a learner to actors and evaluators."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, final

from topology.agents.core.types import Variables, VariableSource
from topology.clock import SYSTEM_CLOCK, Clock, Deadline
from topology.context import try_get_context
from topology.errors import ConnectionBroken, CourierError, ProgramStopped, StaleError

__all__ = ["VariableClient"]

_RETRY_S = 0.5

_logger = logging.getLogger(__name__)


@final
class VariableClient:
    """Pulls weights from a source, in the background, every so many updates.

    A source that has only stale weights (a cacher whose learner is away), or that dies while it answers (it may be
    started again), is forgiven while the weights in use are younger than `max_age_s`: they stay in use and a warning
    tells their age. Every other failure is raised; outside of a program a broken connection, too.

    Args:
        source: a courier client of a learner or cacher; or a learner itself, which is then asked in this thread.
        names: the weights to pull, e.g. ["policy"].
        update_period: number of `update()` calls between two requests; None for none: only `update_and_wait` asks.
        max_age_s: the oldest weights to go on with while the source fails, in seconds.
        clock: for tests.
    """

    def __init__(
        self,
        source: VariableSource,
        names: Sequence[str],
        *,
        update_period: int | None = 1,
        max_age_s: float = 60.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if update_period is not None and update_period < 1:
            raise ValueError(f"update_period must be at least 1, got {update_period}")
        self._source: Any = source
        self._names = list(names)
        self._update_period = update_period
        self._max_age_s = max_age_s
        self._clock = clock
        self._calls = 0
        self._request: Future[Variables] | None = None
        self._variables: Variables | None = None

    @property
    def values(self) -> list[Any]:
        """The weights in use, one tree a name. Raises `RuntimeError` before the first `update_and_wait`."""
        return self._current().values

    @property
    def version(self) -> int:
        """Learner steps that made the weights in use; -1 before the first."""
        return -1 if self._variables is None else self._variables.version

    @property
    def time_s(self) -> float:
        """When the source gave the weights in use, in seconds since the epoch; time in caches counts as after that."""
        return self._current().time_s

    @property
    def age_s(self) -> float:
        """Seconds since `time_s`."""
        return max(0.0, self._clock.time() - self.time_s)

    def update(self) -> bool:
        """Call it every step: it never waits for the network. Returns whether newer weights are in use now.

        Raises:
            StaleError, ConnectionBroken: the source has been stale, or gone, for so long that the weights in use are
                older than `max_age_s`.
            Exception: what the source raised.
        """
        if self._update_period is None:
            return False
        self._calls += 1
        if self._request is None:
            if self._calls < self._update_period:
                return False
            self._request = self._ask()
        if not self._request.done():
            return False
        request, self._request, self._calls = self._request, None, 0
        try:
            return self._take(request.result())
        except (StaleError, ConnectionBroken) as error:
            self._forgive(error)
            return False

    def update_and_wait(self) -> bool:
        """Blocks for weights asked for now; returns whether they are newer than those in use.

        Raises:
            StaleError, ConnectionBroken: the source was stale, or went away again and again, for `max_age_s`.
            ProgramStopped: the program stops.
            Exception: what the source raised.
        """
        self._request, self._calls = None, 0
        deadline = Deadline(self._max_age_s, self._clock)
        while True:
            try:
                return self._take(self._ask().result())
            except (StaleError, ConnectionBroken) as error:
                if deadline.expired or not _may_pass(error):
                    raise
            self._pause()

    def _current(self) -> Variables:
        if self._variables is None:
            raise RuntimeError("There are no weights yet: call update_and_wait() before the first use")
        return self._variables

    def _ask(self) -> Future[Variables]:
        if hasattr(self._source, "futures"):
            request: Future[Variables] = self._source.futures.get_variables(self._names)
            return request
        done: Future[Variables] = Future()
        done.set_result(self._source.get_variables(self._names))
        return done

    def _take(self, variables: Variables) -> bool:
        newer = variables.version > self.version
        if newer or self._variables is None or variables.version == self.version:
            self._variables = variables  # the same version again is fresher: its age counts anew
        return newer

    def _forgive(self, error: CourierError) -> None:
        if self.age_s > self._max_age_s or not _may_pass(error):
            raise error
        _logger.warning(
            "there are no fresh weights; going on with version %d, %.1f s old, until %.0f s: %s",
            self.version,
            self.age_s,
            self._max_age_s,
            error,
        )

    def _pause(self) -> None:
        context = try_get_context()
        if context is None:
            self._clock.sleep(_RETRY_S)
        elif context.stop.wait(_RETRY_S):
            raise ProgramStopped("the program was stopped while waiting for weights that are not stale")


def _may_pass(error: CourierError) -> bool:
    """Whether to ask again: a cacher may have a source again, and a program may start what has died again."""
    return isinstance(error, StaleError) or try_get_context() is not None
