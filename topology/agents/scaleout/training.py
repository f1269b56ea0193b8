"""The trainer's side of SYNC and of ASYNC, a step at a time.

SYNC: takes the shares of a round as they arrive; when all are there, learns from them, saves the next policy, and only
then acknowledges them. Whatever happens in between, the round can be done again: policy and state come from the data
store, the experience from the memory backend; and what had been saved is known by the number of its policy.

ASYNC: takes what is there, learns what is due, and waits only when there is neither. What it took is acknowledged when
a policy has been saved that knows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from topology.agents.scaleout.intake import Intake, Reception
from topology.agents.scaleout.training_base import Outcome, Training
from topology.errors import StoreFull
from topology.nodes.store.experience import Experience
from topology.nodes.store.rounds import RoundService, Verdict

__all__ = ["AsyncTraining", "SyncTraining"]

_NEVER_S = 1e9
_TAKEN_STEPS = 256


@final
class SyncTraining(Training):
    """Round after round; see the module.

    Args:
        rounds: the ledger that workers claim shares from.
        **more: see `Training`.
    """

    def __init__(self, *, rounds: RoundService, **more: Any) -> None:
        super().__init__(**more)
        self._rounds = rounds
        self._held: dict[int, Experience] = {}

    def begin(self) -> None:
        self.saver.begin()
        self._rounds.begin(self.saver.number)
        self.memory.recover()
        self._sort(self.memory.fetch_available())  # before anybody can claim what is there already

    def step(self, timeout_s: float) -> Outcome:
        waited_s = 0.0
        if not self._rounds.complete:
            experiences = self.memory.fetch_available()
            if not experiences:
                before = self.clock.monotonic()
                experiences = self.wait_for_experience(timeout_s)
                waited_s = self.clock.monotonic() - before
            self._sort(experiences)
            if not experiences:
                self._refuse_deadlock()
        if not self._rounds.complete:
            self.saver.keep_lease()
            return Outcome(None, saved=False, waited_s=waited_s)
        return Outcome(self._train(), saved=True, waited_s=waited_s)

    def _sort(self, experiences: list[Experience]) -> None:
        dropped = []
        for experience in experiences:
            share = experience.meta.get("share")
            if self._rounds.receive(share) is Verdict.COUNTED:
                self._held[int(str(share).partition("/")[2])] = experience
            else:
                dropped.append(experience)
        if dropped:
            self.memory.acknowledge(dropped)

    def _train(self) -> dict[str, float] | None:
        # By share and not by arrival: a round that is done again is done alike.
        experiences = [self._held[index] for index in sorted(self._held)]
        self.learner.take(experiences)
        last: dict[str, float] | None = None
        while (told := self.learner.learn()) is not None:
            last = told
        number = self.saver.save({})
        self.memory.acknowledge(experiences)
        self._held = {}
        self._rounds.begin(number)
        return last

    def _refuse_deadlock(self) -> None:
        stats = self.memory.stats()
        if stats.writers_blocked and stats.waiting_steps == 0:
            raise StoreFull(
                f"{stats.writers_blocked} workers wait for room in the memory backend, and what fills it is this "
                "round's, which is not whole without theirs: raise memory_max_steps, or lower num_steps or num_episodes"
            )

    def learn_rest(self) -> None:
        """Nothing: every round was learned from as a whole."""

    def end(self) -> None:
        """Nothing: every round ended with a policy."""

    def discard(self) -> None:
        held, self._held = list(self._held.values()), {}
        if held:
            self.memory.acknowledge(held)
        super().discard()

    def counts(self) -> dict[str, float]:
        stats = self._rounds.stats
        return {
            "dropped_duplicates": stats.duplicates,
            "dropped_other_policy": stats.other_policy,
            "shares_taken_over": stats.taken_over,
        }


@final
class AsyncTraining(Training):
    """Without waiting; see the module.

    Args:
        intake: lets experience in.
        save_s: seconds between two policies.
        max_unsaved_steps: steps taken after which a policy is saved before its time: what is taken and not saved fills
            the memory backend.
        max_taken_steps: steps taken at a time, so that taking and learning alternate also when much is there.
        on_reception: called with what is known of each experience that was let in.
        **more: see `Training`.
    """

    def __init__(
        self,
        *,
        intake: Intake,
        save_s: float,
        max_unsaved_steps: int,
        max_taken_steps: int = _TAKEN_STEPS,
        on_reception: Callable[[Reception], None] = lambda _: None,
        **more: Any,
    ) -> None:
        super().__init__(**more)
        self._intake = intake
        self._save_s = save_s
        self._max_unsaved_steps = max_unsaved_steps
        self._max_taken_steps = max_taken_steps
        self._on_reception = on_reception
        self._unsaved: list[Experience] = []
        self._unsaved_steps = 0
        self._learned = False
        self._saved_s = 0.0

    def begin(self) -> None:
        self._intake.restore(self.saver.begin())
        self._note_saved()
        self.memory.recover()

    def step(self, timeout_s: float) -> Outcome:
        experiences: list[Experience] = []
        if self.learner.wants_more:
            experiences = self.memory.fetch_available(max_steps=self._max_taken_steps)
        self._take(experiences)
        told = self.learner.learn()
        self._learned = self._learned or told is not None
        waited_s = 0.0
        if not experiences and told is None:
            before = self.clock.monotonic()
            self._take(self.wait_for_experience(min(timeout_s, self._due_in_s())))
            waited_s = self.clock.monotonic() - before
        saved = self._must_save()
        if saved:
            self._save()
        else:
            self.saver.keep_lease()
        return Outcome(told, saved=saved, waited_s=waited_s)

    def _take(self, experiences: list[Experience]) -> None:
        dropped: list[Experience] = []
        taken: list[Experience] = []
        for experience in experiences:
            reception = self._intake.receive(experience.meta, self.saver.number, self.clock.monotonic())
            (taken if reception.verdict.is_in else dropped).append(experience)
            self._on_reception(reception)
        if dropped:
            self.memory.acknowledge(dropped)
        self.learner.take(taken)
        self._unsaved += taken
        self._unsaved_steps += sum(experience.steps for experience in taken)

    def _due_in_s(self) -> float:
        if not (self._learned or self._unsaved):
            return _NEVER_S
        return max(0.0, self._saved_s + self._save_s - self.clock.monotonic())

    def _must_save(self) -> bool:
        # Only what is new is worth a policy; so policies cannot outrun the experience that is to be young enough.
        return self._due_in_s() <= 0 or self._unsaved_steps >= self._max_unsaved_steps

    def _save(self) -> None:
        self.saver.save(self._intake.notes())
        self.memory.acknowledge(self._unsaved)
        self._unsaved, self._unsaved_steps, self._learned = [], 0, False
        self._note_saved()

    def _note_saved(self) -> None:
        self._saved_s = self.clock.monotonic()
        self._intake.saved(self.saver.number, self._saved_s)

    def learn_rest(self) -> None:
        while self.learner.learn() is not None:
            self._learned = True

    def end(self) -> None:
        if self._unsaved or self._learned:
            self._save()

    def counts(self) -> dict[str, float]:
        return {f"dropped_{name}": count for name, count in self._intake.dropped.items()}
