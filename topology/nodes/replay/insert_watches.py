"""Who waits for something to be inserted into a table, and samples nothing."""

from __future__ import annotations

from concurrent.futures import Future
from typing import final

from topology.errors import ReplayError

__all__ = ["InsertWatch", "InsertWatches"]


@final
class InsertWatch:
    """A wait for the number of inserts to change.

    Attributes:
        future: of the number. Cancelling it ends the wait.
    """

    def __init__(self) -> None:
        self.future: Future[int] = Future()
        self.count = 0
        self.error: ReplayError | None = None

    def finish(self) -> None:
        """Reports the end. To be called once, without any lock held."""
        if not self.future.set_running_or_notify_cancel():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.count)


@final
class InsertWatches:
    """Those of one table. Its lock is held around every method."""

    def __init__(self) -> None:
        self._watches: set[InsertWatch] = set()
        self._count = 0  # that all of them know

    def add(self, known: int, count: int) -> tuple[InsertWatch, bool]:
        """A wait for another number than `known`, and whether it is over, since there were `count` inserts."""
        watch = InsertWatch()
        watch.count = count
        if known != count:
            return watch, True
        self._count = count
        self._watches.add(watch)
        # A set, from which one can be taken without the lock: it may be cancelled at any moment.
        watch.future.add_done_callback(lambda _: self._watches.discard(watch))
        return watch, False

    def take(self, watch: InsertWatch) -> list[InsertWatch]:
        """That one, if it is still there."""
        if watch not in self._watches:
            return []
        self._watches.discard(watch)
        return [watch]

    def over(self, count: int) -> list[InsertWatch]:
        """Those that are over, since there were `count` inserts."""
        return self.take_all(count) if self._watches and count != self._count else []

    def take_all(self, count: int, error: ReplayError | None = None) -> list[InsertWatch]:
        """All of them."""
        watches = list(self._watches)
        self._watches.clear()
        for watch in watches:
            watch.count, watch.error = count, error
        return watches
