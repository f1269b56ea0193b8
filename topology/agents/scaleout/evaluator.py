"""Evaluation beside training: of the newest policy, now and then, and once more at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, final

import numpy as np

from topology.agents.core.metrics import RowWriter
from topology.agents.core.stopping import until_stopped
from topology.agents.scaleout.patience import patience_ends
from topology.agents.scaleout.roles import Acts, Plays
from topology.clock import SYSTEM_CLOCK, Clock
from topology.context import StopToken
from topology.errors import ConnectionBroken, PoliciesFinished, StoreDeadlineExceeded
from topology.nodes.store.policies import DataStore, Policy

__all__ = ["PolicyEvaluator"]

_WAIT_S = 1.0


class _Trainer(Protocol):
    def join(self, worker: str) -> None:
        """Waits until it is there."""

    def finish(self, reason: str) -> None:
        """Asks it to end the training."""


@final
class PolicyEvaluator:
    """Plays with the newest policy, as well as it can, at its own pace; trains and stores nothing.

    Args:
        player: plays with `acting`, greedily.
        acting: the policy.
        store: where policies come from.
        trainer: hears when the target is reached.
        period_s: seconds between the beginnings of two evaluations, at least.
        episodes: of each.
        final_episodes: of the last one.
        target_return: see `ScaleOutSettings`.
        metrics: gets a row for each.
        report: gets a line of text for each.
        stop: of the program.
        clock: of the period.
    """

    def __init__(
        self,
        *,
        player: Plays,
        acting: Acts,
        store: DataStore,
        trainer: _Trainer,
        period_s: float,
        episodes: int,
        final_episodes: int,
        target_return: float | None,
        metrics: RowWriter,
        report: Callable[[str], None],
        stop: StopToken,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._player = player
        self._acting = acting
        self._store = store
        self._trainer = trainer
        self._period_s = period_s
        self._episodes = episodes
        self._final_episodes = final_episodes
        self._target_return = target_return
        self._metrics = metrics
        self._report = report
        self._stop = stop
        self._clock = clock

    @patience_ends()
    def run(self) -> None:
        """Evaluates until no policy will follow, then the last one, and then stops the program."""
        try:
            with until_stopped(self._stop):
                self._join()
                reached = self._evaluate_all()
                if not self._stop.is_set():
                    text = reached or self._evaluate(self._store.load(), final=True)[1]
                    self._stop.request(text)
        finally:
            self._player.close()
            self._store.close()

    def _join(self) -> None:
        while not self._stop.is_set():
            try:
                self._trainer.join("evaluator")
            except ConnectionBroken:  # it died while it answered, and is started again
                self._stop.wait(0.1)
            else:
                return

    def _evaluate_all(self) -> str | None:
        """Until the end is announced; what to say if that is because the target was reached."""
        number = -1
        while not self._stop.is_set():
            try:
                policy = self._store.wait_newer(number, timeout_s=_WAIT_S)
            except StoreDeadlineExceeded:
                number = min(number, self._store.newest())  # a server that lost everything: numbers begin anew
                continue
            except PoliciesFinished:
                return None
            number = policy.number
            began = self._clock.monotonic()
            mean, _ = self._evaluate(policy, final=False)
            if self._target_return is not None and mean >= self._target_return:
                mean, text = self._evaluate(policy, final=True)
                if mean >= self._target_return:
                    self._finish(text, policy.number)
                    return text
            self._rest(began + self._period_s)
        return None

    def _rest(self, until: float) -> None:
        """Does nothing until then, or until the end is announced."""
        while (left_s := until - self._clock.monotonic()) > 0 and self._store.finished() is None:
            if self._stop.wait(min(left_s, _WAIT_S)):
                return

    def _finish(self, text: str, number: int) -> None:
        """Has the trainer end the training; waits until it has announced the end."""
        while not self._stop.is_set():
            try:
                self._trainer.finish(text)  # again and again: it may have been started again since
                number = self._store.wait_newer(number, timeout_s=_WAIT_S).number
            except ConnectionBroken:
                self._stop.wait(0.1)
            except StoreDeadlineExceeded:
                continue
            except PoliciesFinished:
                return

    def _evaluate(self, policy: Policy, *, final: bool) -> tuple[float, str]:
        """Mean return of some episodes, and a line on it."""
        self._acting.load(policy)
        count = self._final_episodes if final else self._episodes
        played = self._player.play_episodes(count)
        mean = float(np.mean([episode.episode_return for episode in played.episodes]))
        steps, updates = (int(_number(policy.meta.get(name))) for name in ("steps", "updates"))
        self._metrics.write(
            evaluator_return=mean,
            evaluator_episodes=count,
            evaluator_final=int(final),
            policy=policy.number,
            actor_steps=steps,
            learner_steps=updates,
        )
        text = (
            f"{'final evaluation' if final else 'evaluation'} of policy {policy.number} after {steps} actor steps, "
            f"{updates} learner steps: mean return {mean:.2f} over {count} episodes"
        )
        self._report(text)
        return mean, text


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
