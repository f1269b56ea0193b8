"""Who waits for something to be inserted into a table, and samples nothing."""

from __future__ import annotations

from concurrent.futures import Future
from typing import final

from topology.errors import ReplayError
from topology.nodes.replay.messages import Occupancy

__all__ = ["InsertWatch", "InsertWatches"]


@final
class InsertWatch:
    """A wait for the number of inserts to change, and for so many steps to have been inserted.

    Attributes:
        future: of what is there then. Cancelling it ends the wait.
        occupancy, error: what is reported in the end.

    Args:
        known: the number of inserts that its owner knows of.
        steps: how many steps must have been inserted, of all items.
    """

    def __init__(self, known: int, steps: int) -> None:
        self.future: Future[Occupancy] = Future()
        self.occupancy: Occupancy | None = None
        self.error: ReplayError | None = None
        self._known = known
        self._steps = steps

    def is_over(self, occupancy: Occupancy) -> bool:
        """Whether what was waited for is there."""
        return occupancy.inserts != self._known and occupancy.inserted_steps >= self._steps

    def finish(self) -> None:
        """Reports the end. To be called once, without any lock held."""
        if not self.future.set_running_or_notify_cancel():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        elif self.occupancy is not None:
            self.future.set_result(self.occupancy)


@final
class InsertWatches:
    """Those of one table. Its lock is held around every method."""

    def __init__(self) -> None:
        self._watches: set[InsertWatch] = set()

    def __bool__(self) -> bool:
        return bool(self._watches)

    def add(self, watch: InsertWatch) -> None:
        """Adds a wait that is not over."""
        self._watches.add(watch)
        # A set, from which one can be taken without the lock: it may be cancelled at any moment.
        watch.future.add_done_callback(lambda _: self._watches.discard(watch))

    def take(self, watch: InsertWatch, occupancy: Occupancy) -> list[InsertWatch]:
        """That one, if it is still there."""
        return self._end([watch] if watch in self._watches else [], occupancy)

    def over(self, occupancy: Occupancy) -> list[InsertWatch]:
        """Those that are over."""
        return self._end([watch for watch in list(self._watches) if watch.is_over(occupancy)], occupancy)

    def take_all(self, occupancy: Occupancy, error: ReplayError | None = None) -> list[InsertWatch]:
        """All of them."""
        return self._end(list(self._watches), occupancy, error)

    def _end(
        self, watches: list[InsertWatch], occupancy: Occupancy, error: ReplayError | None = None
    ) -> list[InsertWatch]:
        for watch in watches:
            self._watches.discard(watch)
            watch.occupancy, watch.error = occupancy, error
        return watches
