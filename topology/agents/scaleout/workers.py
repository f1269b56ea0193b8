"""The workers' side of SYNC and of ASYNC."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, final

from topology.agents.core.metrics import Averages, RowWriter
from topology.agents.core.stopping import until_stopped
from topology.agents.scaleout.patience import patience_ends
from topology.agents.scaleout.roles import Acts, Columns, Plays, WasPlayed
from topology.context import StopToken
from topology.errors import (
    ConnectionBroken,
    PoliciesFinished,
    PolicyNotFound,
    ProgramStopped,
    StoreDeadlineExceeded,
)
from topology.nodes.store.memory import MemoryBackend
from topology.nodes.store.policies import DataStore, Policy
from topology.nodes.store.rounds import Claim, Share, Unit

__all__ = ["AsyncWorker", "PolicyFollower", "Rounds", "SyncWorker", "WorkerParts"]

ResultT = TypeVar("ResultT")

_LONGEST_WAIT_S = 1.0
_JOIN_S = 10.0


class Rounds(Protocol):
    """What a worker asks of the trainer: a `RoundService`, or a courier client of a trainer."""

    def join(self, worker: str) -> None:
        """Says that this worker begins, or begins anew."""

    def claim(self, worker: str, policy: int) -> Claim:
        """Asks for a share to play with this policy."""


@final
class WorkerParts:
    """What either kind of worker is made of.

    Args:
        name: of the worker; another life of the same worker has the same.
        session: of this life; never used before.
        player: plays.
        acting: what it plays with.
        make_columns: from what was played to what is stored.
        memory: where that goes.
        store: where policies come from.
        trainer: gives out the work.
        metrics: gets a row about once a second.
        stop: of the program.
    """

    def __init__(
        self,
        *,
        name: str,
        session: str,
        player: Plays,
        acting: Acts,
        make_columns: Callable[[Any, Any], Columns],
        memory: MemoryBackend,
        store: DataStore,
        trainer: Rounds,
        metrics: RowWriter,
        stop: StopToken,
    ) -> None:
        self.name = name
        self.player = player
        self.acting = acting
        self.memory = memory
        self.store = store
        self.stop = stop
        self._session = session
        self._make_columns = make_columns
        self._trainer = trainer
        self._averages = Averages(metrics)
        self._steps = self._reported = self._sequence = 0

    def join(self) -> None:
        """Waits until the trainer is there."""
        self._ask(lambda: self._trainer.join(self.name))

    def claim(self) -> Claim:
        """Asks the trainer for a share. Waits for a trainer that is being started again."""
        return self._ask(lambda: self._trainer.claim(self.name, self.acting.number))

    def _ask(self, question: Callable[[], ResultT]) -> ResultT:
        # A trainer that dies breaks the call that it was answering; the next one waits for its successor, or for the
        # stop. To ask twice does no harm: a claim whose answer was lost is a lease that runs out.
        while True:
            try:
                return question()
            except ConnectionBroken:
                if self.stop.wait(0.1):
                    raise ProgramStopped(f"{self.name}: the program stopped while the trainer was away") from None

    def store_played(self, played: WasPlayed, **meta: Any) -> None:
        """Stores what was played; blocks until the backend has it."""
        self._sequence += 1
        self.memory.store(
            self._make_columns(played, self.acting),
            {
                "worker": self.name,
                "session": self._session,
                "sequence": self._sequence,
                "policy": played.oldest,
                "steps": played.num_steps,
                "episodes": len(played.episodes),
                **meta,
            },
        )
        self._report(played)

    def _report(self, played: WasPlayed) -> None:
        self._steps += played.num_steps
        for episode in played.episodes:
            self._averages.add(episode_return=episode.episode_return, episode_length=episode.episode_length)
        if played.episodes and self._averages.due:
            self._write()

    def _write(self) -> None:
        made, self._reported = self._steps - self._reported, self._steps
        self._averages.write(rates={"steps_per_second": made}, actor_steps=self._steps, policy=self.acting.number)

    def close(self) -> None:
        """Closes environments and connections; reports what was not reported yet."""
        if self._steps > self._reported:
            self._write()
        self.player.close()
        self.memory.close()
        self.store.close()


@final
class SyncWorker:
    """Plays shares of the round under way with exactly its policy, and waits for the next where there is none."""

    def __init__(self, parts: WorkerParts) -> None:
        self._parts = parts

    @patience_ends()
    def run(self) -> None:
        """Plays until no policy will follow, or the program stops."""
        parts = self._parts
        try:
            with until_stopped(parts.stop), contextlib.suppress(PoliciesFinished):
                parts.join()
                while self.step():
                    pass
        finally:
            parts.close()

    def step(self) -> bool:
        """Plays one share, or loads a policy, or waits a moment; False when the program is stopping.

        Raises:
            PoliciesFinished: there is nothing more to do.
        """
        parts = self._parts
        claim = parts.claim()
        if claim.share is not None:
            self._play(claim.share)
        elif claim.wait_s is None:
            self._load(claim.policy)
        else:
            self._wait(min(claim.wait_s, _LONGEST_WAIT_S))
        return not parts.stop.is_set()

    def _play(self, share: Share) -> None:
        player = self._parts.player
        play = player.play_episodes if share.unit == Unit.EPISODES else player.play_steps
        self._parts.store_played(play(share.amount), share=share.id)

    def _load(self, number: int) -> None:
        """The policy of the round; if it is gone again, the round is too, and the next claim says which it is."""
        try:
            self._parts.acting.load(self._parts.store.load(number))
        except PolicyNotFound:
            self._wait(_LONGEST_WAIT_S)

    def _wait(self, timeout_s: float) -> None:
        acting = self._parts.acting
        try:
            acting.load(self._parts.store.wait_newer(acting.number, timeout_s=timeout_s))
        except StoreDeadlineExceeded:
            return


@final
class PolicyFollower:
    """Has the newest policy of a data store at hand, without anybody waiting for it.

    Args:
        store: of the policies.
    """

    def __init__(self, store: DataStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._newest: Policy | None = None
        self._last = -1
        self._closed = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._follow, name="policies", daemon=True)
        self.finished = threading.Event()

    def begin(self) -> Policy:
        """Waits for the first policy, and follows from there.

        Raises:
            PoliciesFinished: there will be none.
        """
        policy = self._store.wait_newer(-1)
        self._last = policy.number
        self._thread.start()
        return policy

    def take(self) -> Policy | None:
        """A policy that is newer than the one taken last, if there is one. Never blocks.

        Raises:
            Exception: what following the policies failed with.
        """
        if self._error is not None:
            raise self._error
        with self._lock:
            policy, self._newest = self._newest, None
        return policy

    def _next(self) -> Policy:
        try:
            return self._store.wait_newer(self._last, timeout_s=_LONGEST_WAIT_S)
        except StoreDeadlineExceeded:
            self._last = min(self._last, self._store.newest())  # a server that lost everything: numbers begin anew
            raise

    def _follow(self) -> None:
        while not self._closed.is_set():
            try:
                policy = self._next()
            except StoreDeadlineExceeded:
                continue
            except PoliciesFinished:
                self.finished.set()
                return
            except ProgramStopped:
                return
            except Exception as error:  # noqa: BLE001 - raised again in the thread that plays
                error.add_note("in the background, while a worker followed the policies")
                self._error = error
                return
            self._last = policy.number
            with self._lock:
                self._newest = policy

    def close(self) -> None:
        """Ends the thread; blocks about a second."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)


@final
class AsyncWorker:
    """Plays without end, with the newest policy at every step of its environments.

    Args:
        parts: its `acting` loads policies of `follower` before it acts.
        follower: of the policies.
        share_steps: that are stored together.
    """

    def __init__(self, parts: WorkerParts, follower: PolicyFollower, share_steps: int) -> None:
        self._parts = parts
        self._follower = follower
        self._share_steps = share_steps

    @patience_ends()
    def run(self) -> None:
        """Plays until no policy will follow, or the program stops."""
        parts = self._parts
        try:
            with until_stopped(parts.stop), contextlib.suppress(PoliciesFinished):
                parts.join()
                parts.acting.load(self._follower.begin())
                while not (self._follower.finished.is_set() or parts.stop.is_set()):
                    parts.store_played(parts.player.play_steps(self._share_steps))
        finally:
            self._follower.close()
            parts.close()
