"""Evaluation beside training: at a period, with a budget of episodes, and once more at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np

from topology.agents.core.counter import ChildCounter
from topology.agents.core.loop import EnvironmentLoop
from topology.agents.core.metrics import RowWriter
from topology.agents.core.stopping import follow, until_stopped
from topology.agents.core.variables import VariableClient
from topology.context import StopToken

__all__ = ["Evaluation", "EvaluationSchedule", "Evaluator", "evaluate"]


class Evaluation(NamedTuple):
    """The result of one evaluation.

    Attributes:
        mean_return: mean of the undiscounted returns.
        episodes: how many there were.
        version: learner steps that made the weights.
    """

    mean_return: float
    episodes: int
    version: int


@dataclass(frozen=True, kw_only=True)
class EvaluationSchedule:
    """When to evaluate, and how long.

    Attributes:
        period_steps: actor steps from one evaluation to the next; the first is made before any.
        episodes: of each evaluation.
        limit: actor steps after which the last evaluation is made; None for a run without end.
        final_episodes: episodes of that last one.
    """

    period_steps: int
    episodes: int
    limit: int | None = None
    final_episodes: int

    def __post_init__(self) -> None:
        for name in ("period_steps", "episodes", "final_episodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of an evaluation must be at least 1, got {getattr(self, name)}")


def evaluate(loop: EnvironmentLoop, client: VariableClient, episodes: int) -> Evaluation | None:
    """Plays `episodes` with the weights in use; None when the loop was asked to stop."""
    returns = []
    for _ in range(episodes):
        result = loop.run_episode()
        if result is None:
            return None
        returns.append(result.episode_return)
    return Evaluation(float(np.mean(returns)), episodes, client.version)


@final
class Evaluator:
    """Plays a budget of episodes with newer weights whenever the actors have made enough steps.

    In between it waits for the counter, and takes no processor time.

    Args:
        loop: plays with the weights of `client`, and stops when the program does; closed at the end.
        client: of the learner.
        counter: courier client of the run's `Counter`.
        counts: counts under the prefix "evaluator".
        schedule: when and how long.
        metrics: gets a row for each evaluation.
        stop: of the program.
        report: gets a line of text for each evaluation.
    """

    def __init__(
        self,
        *,
        loop: EnvironmentLoop,
        client: VariableClient,
        counter: Any,
        counts: ChildCounter,
        schedule: EvaluationSchedule,
        metrics: RowWriter,
        stop: StopToken,
        report: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._client = client
        self._counter = counter
        self._counts = counts
        self._schedule = schedule
        self._metrics = metrics
        self._stop = stop
        self._report = report

    def run(self) -> None:
        """Evaluates until the program stops, or until the last evaluation is made; then waits for the stop."""
        with contextlib.closing(self._counts), contextlib.closing(self._loop):
            with until_stopped(self._stop):
                self._evaluate_all()
            self._stop.wait()

    def _evaluate_all(self) -> None:
        mark = 0
        limit = self._schedule.limit
        while not self._stop.is_set():
            steps = self._wait_for_steps(mark)
            final = limit is not None and steps >= limit
            newer = self._client.update_and_wait()
            # The same weights again would say nothing new, but the end of a run always has its evaluation.
            if (newer or final) and not self._evaluate(steps, final=final):
                break
            if final:
                self._counts.increment(final_evaluations=1)
                self._counts.flush()
                break
            mark = self._next_mark(steps)

    def _wait_for_steps(self, mark: int) -> int:
        def reached() -> dict[str, int]:
            counts: dict[str, int] = self._counter.when_reached("actor_steps", mark)
            return counts

        return follow(reached, self._stop, what="the counter").get("actor_steps", 0)

    def _next_mark(self, steps: int) -> int:
        period = self._schedule.period_steps
        mark = (steps // period + 1) * period
        return mark if self._schedule.limit is None else min(mark, self._schedule.limit)

    def _evaluate(self, steps: int, *, final: bool) -> bool:
        """One evaluation; False when the program stopped meanwhile."""
        episodes = self._schedule.final_episodes if final else self._schedule.episodes
        evaluation = evaluate(self._loop, self._client, episodes)
        if evaluation is None:
            return False
        self._counts.increment(episodes=episodes)
        self._metrics.write(
            evaluator_return=evaluation.mean_return,
            evaluator_episodes=evaluation.episodes,
            actor_steps=steps,
            learner_steps=evaluation.version,
            weights_age_s=self._client.age_s,
            evaluator_final=int(final),
        )
        self._report(
            f"{'final evaluation' if final else 'evaluation'} after {steps} actor steps, {evaluation.version} learner "
            f"steps: mean return {evaluation.mean_return:.2f} over {episodes} episodes"
        )
        return True
