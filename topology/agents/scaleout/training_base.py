"""What SYNC and ASYNC have in common: a trainer's side, a step at a time; see `training`."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from topology.agents.scaleout.saving import PolicySaver
from topology.clock import SYSTEM_CLOCK, Clock
from topology.errors import StoreDeadlineExceeded
from topology.nodes.store.experience import Experience
from topology.nodes.store.memory import MemoryBackend

__all__ = ["Outcome", "Taught", "Training"]


_LEFT_S = 86_400.0


class Taught(Protocol):
    """What is trained: see `ExperienceLearner`."""

    def take(self, experiences: Sequence[Experience]) -> None:
        """Takes experience, in this order."""

    @property
    def wants_more(self) -> bool:
        """Whether to take more before the next `learn`."""

    def learn(self) -> dict[str, float] | None:
        """Does a piece of what is due; None when nothing is."""


class Outcome(NamedTuple):
    """What a step of the training did.

    Attributes:
        learned: what the learner told of its last piece of work; None when it had nothing to do.
        saved: whether a policy was saved.
        waited_s: seconds spent without experience.
    """

    learned: dict[str, float] | None
    saved: bool
    waited_s: float


class Training(abc.ABC):
    """One way of keeping trainer and workers in step. For one thread.

    Args:
        memory: where experience comes from; this is its one reader.
        saver: where policies go.
        learner: what is trained.
        clock: of the waiting.
    """

    def __init__(
        self, *, memory: MemoryBackend, saver: PolicySaver, learner: Taught, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.memory = memory
        self.saver = saver
        self.learner = learner
        self.clock = clock

    @abc.abstractmethod
    def begin(self) -> None:
        """Takes up what was saved last, and what was delivered and not acknowledged. Call it once, first."""

    @abc.abstractmethod
    def step(self, timeout_s: float) -> Outcome:
        """Does what there is to do; waits at most `timeout_s` seconds if that is nothing."""

    @abc.abstractmethod
    def learn_rest(self) -> None:
        """Learns what is due of that which was taken, when nothing more will be."""

    @abc.abstractmethod
    def end(self) -> None:
        """Saves what is not saved yet."""

    def discard(self) -> None:
        """Drops what is there, when nothing more is to be learned: so writers that wait for room hear of the end."""
        if experiences := self.memory.fetch_available():
            self.memory.acknowledge(experiences)

    def leave(self) -> None:
        """Nothing more is to be learned: lets a memory backend that outlives the program forget it, in a day."""
        self.memory.expire(_LEFT_S)

    def close(self) -> None:
        """Closes memory backend and data store. Idempotent."""
        self.memory.close()
        self.saver.close()

    @abc.abstractmethod
    def counts(self) -> dict[str, float]:
        """What was dropped, and the like, by name; for the metrics."""

    def wait_for_experience(self, timeout_s: float) -> list[Experience]:
        """What is there, or what comes first; [] when nothing comes in time.

        Raises:
            StoreFull: writers wait for room that only this reader could make, and it needs what they have.
        """
        try:
            return self.memory.fetch(num_steps=1, timeout_s=timeout_s)
        except StoreDeadlineExceeded:
            return []
