"""Ends a program when enough steps have been made."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, final

from topology.agents.core.stopping import follow, until_stopped
from topology.clock import SYSTEM_CLOCK, Clock, Deadline
from topology.context import StopToken
from topology.errors import DeadlineExceeded

__all__ = ["FINAL_EVALUATIONS", "StepsLimiter"]

FINAL_EVALUATIONS = "evaluator_final_evaluations"
"""Count of evaluations made after the last actor step."""

_logger = logging.getLogger(__name__)


@final
class StepsLimiter:
    """Stops the program, once, when a count has reached its limit. The counter wakes it: it does not poll.

    Args:
        counter: courier client of the run's `Counter`.
        max_steps: the limit.
        stop: of the program.
        name: the count that is limited.
        final_evaluations: how many final evaluations to wait for after the limit, before the stop.
        final_timeout_s: how long to wait for them, in seconds.
        clock: for tests.
    """

    def __init__(
        self,
        counter: Any,
        max_steps: int,
        *,
        stop: StopToken,
        name: str = "actor_steps",
        final_evaluations: int = 0,
        final_timeout_s: float = 300.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if max_steps < 1:
            raise ValueError(f"The limit of {name} must be at least 1, got {max_steps}")
        self._counter = counter
        self._max_steps = max_steps
        self._stop = stop
        self._name = name
        self._final_evaluations = final_evaluations
        self._final_timeout_s = final_timeout_s
        self._clock = clock

    def run(self) -> None:
        """Blocks until the limit is reached, then stops the program; returns too when something else stops it."""
        with until_stopped(self._stop):
            self._limit()

    def _limit(self) -> None:
        started = self._clock.monotonic()
        counts = self._ask(lambda: self._counter.when_reached(self._name, self._max_steps))
        seconds = self._clock.monotonic() - started
        if self._final_evaluations:
            self._wait_for_final_evaluations()
            counts = self._ask(self._counter.get_counts)
        overshoot = counts[self._name] - self._max_steps
        text = f"{self._name} reached {self._max_steps} after {seconds:.1f} s ({overshoot} steps over)"
        print(text, flush=True)  # noqa: T201 - one line in the node's log, and in the run's live view
        self._stop.request(text)

    def _ask(self, question: Callable[[], dict[str, int]]) -> dict[str, int]:
        return follow(question, self._stop, what="the counter")

    def _wait_for_final_evaluations(self) -> None:
        deadline = Deadline(self._final_timeout_s, self._clock)

        def evaluated() -> dict[str, int]:
            future = self._counter.futures.when_reached(FINAL_EVALUATIONS, self._final_evaluations)
            counts: dict[str, int] = future.result(deadline.remaining())
            return counts

        try:
            self._ask(evaluated)
        except (TimeoutError, DeadlineExceeded):
            _logger.warning(
                "%d final evaluations did not end within %.0f s of the last actor step: the program stops without. Ask "
                "for fewer or shorter episodes, or for more time with final_evaluation_timeout_s",
                self._final_evaluations,
                self._final_timeout_s,
            )
