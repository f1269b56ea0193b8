"""The trainer's hold on the data store: which policy is the newest, and what is saved with it."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from topology.clock import SYSTEM_CLOCK, Clock
from topology.errors import LeaseHeld, ProgramError, StoreError
from topology.nodes.store.codec import Plain
from topology.nodes.store.policies import DataStore, Lease
from topology.nodes.store.policy_patience import PASSING

__all__ = ["PolicySaver", "Saved"]

_logger = logging.getLogger(__name__)

_NOTES = "notes"
_LEASE_S = 60.0
_WATCH_S = 1.25 * _LEASE_S  # a trainer that lives renews its lease in that time, again and again


class Saved(Protocol):
    """What is saved: see `ExperienceLearner`."""

    steps: int
    episodes: int
    updates: int

    def policy_arrays(self) -> Mapping[str, NDArray[Any]]:
        """What those who act need."""

    def state_arrays(self) -> Mapping[str, NDArray[Any]]:
        """What going on needs beside that."""

    def restore(self, arrays: Mapping[str, NDArray[Any]], state: Mapping[str, NDArray[Any]]) -> None:
        """Takes both back."""


@final
class PolicySaver:
    """Saves policies of one run, as their only writer. For one thread.

    A policy and the trainer's state are saved as one: whoever begins with policy k begins with what had been learned
    when it was saved.

    Args:
        store: of the policies.
        learner: what is saved.
        run: names the run; policies of another one are not gone on with unless `take_over`.
        take_over: whether they are.
        clock: of the lease.

    Attributes:
        number: of the newest policy; -1 before `begin`.
        begins_anew: whether `begin` found no policy.
    """

    def __init__(
        self, store: DataStore, learner: Saved, *, run: str, take_over: bool = False, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._store = store
        self._learner = learner
        self._run = run
        self._take_over = take_over
        self._clock = clock
        self._lease: Lease | None = None
        self._renewed_s = 0.0
        self._is_away = False
        self.number = -1
        self.begins_anew = False

    def begin(self) -> dict[str, Any]:
        """Takes the writer's lease, and up what was saved last; saves policy 0 where nothing was. Gives its notes.

        Blocks for as long as a lease lasts where a trainer of another run has left its own behind.

        Raises:
            LeaseHeld: another trainer writes there.
            ProgramError: what is there is of another run, or of another network, or has no trainer's state.
        """
        # First: taking the lease of another run would take back what it has announced.
        self._refuse_another_run()
        self._lease = self._take_lease()
        self._renewed_s = self._clock.monotonic()
        newest = self._store.newest()
        notes: dict[str, Any] = {}
        self.begins_anew = newest < 0
        if self.begins_anew:
            self.save(notes)
        else:
            notes = self._restore(newest)
        self._store.announce_ready(lease=self._lease)
        return notes

    def _take_lease(self) -> Lease:
        try:
            return self._store.lease(self._run, _LEASE_S)
        except LeaseHeld as error:
            _logger.warning("waiting for %g s to see whether the trainer that had the lease lives: %s", _WATCH_S, error)
        try:
            return self._store.lease(self._run, _LEASE_S, timeout_s=_WATCH_S)
        except LeaseHeld as error:
            error.is_final = True  # it lives
            raise

    def _refuse_another_run(self) -> None:
        newest = self._store.newest()
        run = self._run if newest < 0 else self._store.load(newest).meta.get("run")
        if run != self._run and not self._take_over:
            raise ProgramError(
                f"The data store holds policy {newest} of the run {run!r}, and this is {self._run!r}. Give this run a "
                "place of its own (data_store), resume that run (--run-directory RUN --resume), or set take_over=true "
                "to go on from its policies"
            )

    def _restore(self, newest: int) -> dict[str, Any]:
        policy = self._store.load(newest)
        state = self._store.load_state(newest)
        if state is None or _NOTES not in state:
            raise ProgramError(
                f"Policy {newest} in the data store was saved without a trainer's state: this run cannot go on from "
                "it. Give it a place of its own (data_store)"
            )
        self._learner.restore(policy.arrays, state)
        self.number = newest
        notes: dict[str, Any] = json.loads(state[_NOTES].tobytes())
        return notes

    def save(self, notes: Mapping[str, Any]) -> int:
        """Saves what the learner has learned as the next policy; its number. `notes` come back from `begin`.

        Blocks until readers can see it.
        """
        learner = self._learner
        text = np.frombuffer(json.dumps(dict(notes)).encode(), np.uint8)
        meta: dict[str, Plain] = {
            "run": self._run,
            "steps": learner.steps,
            "episodes": learner.episodes,
            "updates": learner.updates,
            "time_s": self._clock.time(),
        }
        state = {**learner.state_arrays(), _NOTES: text}
        with self._writing():
            self.number = self._store.save(learner.policy_arrays(), meta, state=state, lease=self._lease)
        self._renewed_s = self._clock.monotonic()
        return self.number

    def keep_lease(self) -> None:
        """Renews the lease when a third of its time is over: call it while there is nothing to save."""
        now = self._clock.monotonic()
        if self._lease is not None and now - self._renewed_s > _LEASE_S / 3:
            with self._writing():
                self._lease.renew()
            self._renewed_s = now

    def finish(self, reason: str) -> None:
        """Announces that no policy will follow."""
        with self._writing():
            self._store.announce_finished(reason, lease=self._lease)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except PASSING:
            self._is_away = True
            raise

    def close(self) -> None:
        """Gives the lease back, and closes the data store. Idempotent.

        A data store that was waited for in vain is not waited for once more: the lease ends by itself.
        """
        lease, self._lease = self._lease, None
        try:
            if lease is not None and not self._is_away:
                lease.release()
        except StoreError as error:
            _logger.warning("the lease of the data store was not given back, and ends in %g s: %s", _LEASE_S, error)
        finally:
            self._store.close()
