"""The node that trains, and gives out the work."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import final

from topology.agents.core.metrics import Averages, RowWriter
from topology.agents.core.stopping import until_stopped
from topology.agents.scaleout.algorithm import ExperienceLearner
from topology.agents.scaleout.intake import Reception
from topology.agents.scaleout.patience import patience_ends
from topology.agents.scaleout.training_base import Outcome, Training
from topology.clock import SYSTEM_CLOCK, Clock
from topology.context import StopToken
from topology.nodes.store.rounds import Claim, RoundService

__all__ = ["Reporter", "Trainer"]

_logger = logging.getLogger(__name__)

_STEP_S = 1.0


@final
class Reporter:
    """Writes how the training goes, about once a second.

    Args:
        metrics: gets the rows.
        max_steps: steps after which the run ends; None for never.
        clock: of the rows.
    """

    def __init__(self, metrics: RowWriter, max_steps: int | None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._staleness = Averages(metrics, clock=clock)
        self._max_steps = max_steps
        self._learned: dict[str, float] = {}
        self._waited_s = 0.0
        self._steps = 0

    def begin(self, steps: int) -> None:
        """The training goes on from there: what was trained on before has no part in the first rate."""
        self._steps = steps

    def received(self, reception: Reception) -> None:
        """Experience arrived, in ASYNC."""
        if reception.verdict.is_in:
            self._staleness.add(
                staleness_policies=reception.policies,
                staleness_policies_max=reception.policies,
                staleness_s=reception.seconds,
                staleness_s_max=reception.seconds,
            )

    def step(self, outcome: Outcome, training: Training, learner: ExperienceLearner) -> None:
        """The trainer made a step."""
        self._waited_s += outcome.waited_s
        if outcome.learned is not None:
            self._learned = outcome.learned
        if self._staleness.due:
            self.write(training, learner)

    def write(self, training: Training, learner: ExperienceLearner) -> None:
        """Writes a row now."""
        made, self._steps = learner.steps - self._steps, learner.steps
        waited_s, self._waited_s = self._waited_s, 0.0
        totals: dict[str, float] = {
            **self._learned,
            **training.counts(),
            "actor_steps": learner.steps,
            "actor_episodes": learner.episodes,
            "learner_steps": learner.updates,
            "policy": training.saver.number,
        }
        if self._max_steps is not None:
            totals["progress"] = min(1.0, learner.steps / self._max_steps)
        self._staleness.write(rates={"steps_per_second": made, "waiting_part": waited_s}, **totals)


@final
class Trainer:
    """Trains until there are enough steps or the target is reached; announces the end.

    It takes up what was saved before it is made, so that workers are answered from what is so.

    Args:
        training: SYNC or ASYNC.
        learner: what is trained.
        rounds: of SYNC; None in ASYNC.
        reporter: writes how it goes.
        max_steps: steps after which the training ends; None for never.
        stops_program: whether to stop the program at the end: there is no evaluator that will.
        report: gets a line of text.
        has_trained: whether this run did already, by what it has measured: if there is no policy, one is missing.
        stop: of the program.
    """

    def __init__(
        self,
        *,
        training: Training,
        learner: ExperienceLearner,
        rounds: RoundService | None,
        reporter: Reporter,
        max_steps: int | None,
        stops_program: bool,
        report: Callable[[str], None],
        stop: StopToken,
        has_trained: bool = False,
    ) -> None:
        self._training = training
        self._learner = learner
        self._rounds = rounds
        self._reporter = reporter
        self._max_steps = max_steps
        self._stops_program = stops_program
        self._report = report
        self._stop = stop
        self._reason = ""
        try:
            training.begin()
        except BaseException:
            training.close()
            learner.close()
            raise
        reporter.begin(learner.steps)
        if has_trained and training.saver.begins_anew:
            _logger.warning(
                "this run has trained before, and its data store holds no policy: it begins anew. If that "
                "is not meant, look whether data_store is the same place as before, and whether its server was emptied"
            )
        number = training.saver.number
        if number:
            report(f"goes on from policy {number}, {learner.steps} actor steps, {learner.updates} learner steps")

    # --- what others may call ----------------------------------------------------------------------------------------

    def join(self, worker: str) -> None:
        """A worker begins, or begins anew."""
        if self._rounds is not None:
            self._rounds.join(worker)

    def claim(self, worker: str, policy: int) -> Claim:
        """A worker asks for a share; see `RoundLedger.claim`. Never blocks.

        Raises:
            ValueError: this is ASYNC, where nothing is shared out.
        """
        if self._rounds is None:
            raise ValueError(f"{worker} asked for a share of a round, and in ASYNC there are no rounds")
        return self._rounds.claim(worker, policy)

    def finish(self, reason: str) -> None:
        """Asks for the end of the training. Returns at once."""
        self._reason = self._reason or reason

    # --- its own work ------------------------------------------------------------------------------------------------

    @patience_ends()
    def run(self) -> None:
        """Trains to the end, then waits for the stop of the program."""
        training, learner = self._training, self._learner
        try:
            with until_stopped(self._stop):
                while not (self._over() or self._stop.is_set()):
                    self._reporter.step(training.step(_STEP_S), training, learner)
            with until_stopped(self._stop):  # also when the program was stopped: it may be gone on with
                if self._has_enough() and not self._stop.is_set():
                    training.learn_rest()
                training.end()
            self._reporter.write(training, learner)
            if reason := self._over():
                self._report(f"the training is over at policy {training.saver.number}: {reason}")
                training.saver.finish(reason)
                training.leave()
                if self._stops_program:
                    self._stop.request(reason)
                training.discard()
                while not self._stop.wait(_STEP_S):
                    training.discard()
        finally:
            training.close()
            learner.close()

    def _over(self) -> str:
        """Why the training is over; "" while it is not."""
        if self._reason:
            return self._reason
        if self._has_enough():
            return f"{self._learner.steps} of {self._max_steps} actor steps are trained on"
        return ""

    def _has_enough(self) -> bool:
        return self._max_steps is not None and self._learner.steps >= self._max_steps
