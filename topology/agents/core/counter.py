"""Counts of a run: actor steps, episodes, learner steps.

One `Counter` holds the totals. Every node counts with a `ChildCounter` that puts its own prefix before a name, once,
and hands the counts on under their full names; so a child of a child never prefixes twice. Handing on happens in the
background, at most `max_delay_s` after the count, and counting itself never waits for the network.

A `Counter` that dies and is started again is waited for. Counts whose confirmation was lost with the connection are
handed on again then: they may count twice.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Protocol, final

from topology.agents.core.stopping import follow
from topology.clock import SYSTEM_CLOCK, Clock
from topology.context import try_get_context
from topology.errors import CourierError, ProgramStopped
from topology.nodes.courier.methods import asynchronous

__all__ = ["ChildCounter", "Counter", "CounterParent"]

_JOIN_TIMEOUT_S = 5.0


class CounterParent(Protocol):
    """What a child counter needs: a `Counter`, another child, or a courier client of either."""

    def add_counts(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Adds counts under their full names; returns all totals."""

    def get_counts(self) -> dict[str, int]:
        """All totals."""


def _check(counts: Mapping[str, int]) -> None:
    for name, count in counts.items():
        if count < 0:
            raise ValueError(f"Counts only grow, but {name} was to grow by {count}")


@final
class Counter:
    """The totals of a run. Thread-safe; made to be served to other nodes.

    Args:
        counts: totals to go on from.
    """

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        self._lock = threading.Lock()
        self._counts = dict(counts or {})
        self._waiters: list[tuple[str, int, Future[dict[str, int]]]] = []

    def increment(self, **counts: int) -> dict[str, int]:
        """Adds to the totals of these names; returns all totals."""
        return self.add_counts(counts)

    def add_counts(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Adds counts under their full names; returns all totals.

        Raises:
            ValueError: a count is negative.
        """
        _check(counts)
        with self._lock:
            for name, count in counts.items():
                self._counts[name] = self._counts.get(name, 0) + int(count)
            totals = dict(self._counts)
            due = [waiter for waiter in self._waiters if totals.get(waiter[0], 0) >= waiter[1]]
            self._waiters = [w for w in self._waiters if w not in due and not w[2].cancelled()]
        for _, _, future in due:
            if future.set_running_or_notify_cancel():
                future.set_result(totals)
        return totals

    def get_counts(self) -> dict[str, int]:
        """All totals."""
        with self._lock:
            return dict(self._counts)

    @asynchronous
    def when_reached(self, name: str, count: int) -> Future[dict[str, int]]:
        """All totals, as soon as that of `name` is at least `count`. A remote caller blocks; no thread is held here."""
        future: Future[dict[str, int]] = Future()
        with self._lock:
            totals = dict(self._counts)
            if totals.get(name, 0) < count:
                self._waiters.append((name, count, future))
                return future
        future.set_result(totals)
        return future


@final
class ChildCounter:
    """Counts for one node, and hands the counts on to its parent. Thread-safe.

    Args:
        parent: where counts go.
        prefix: put before every name that is counted here: "actor" makes `steps` into `actor_steps`.
        max_delay_s: the longest time, in seconds, that a count stays here. With 0 every count goes on at once, in the
            thread that counts.
        clock: for tests.
    """

    def __init__(
        self, parent: CounterParent, prefix: str, *, max_delay_s: float = 0.2, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        if not prefix or max_delay_s < 0:
            raise ValueError(f"A child counter needs a prefix and a delay of at least 0, got {prefix!r}, {max_delay_s}")
        self._parent = parent
        self._prefix = prefix
        self._max_delay_s = max_delay_s
        self._clock = clock
        context = try_get_context()
        self._stop = None if context is None else context.stop
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._pending: dict[str, int] = {}
        self._totals: dict[str, int] = {}
        self._thread: threading.Thread | None = None
        self._due_s = 0.0
        self._closed = False
        self._error: Exception | None = None

    def increment(self, **counts: int) -> None:
        """Counts under this counter's prefix. Does not block, unless `max_delay_s` is 0.

        Raises:
            RuntimeError: the counter is closed.
            CourierError: earlier counts could not be handed on.
        """
        self._add({f"{self._prefix}_{name}": count for name, count in counts.items()})

    def add_counts(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Counts under full names: what children of this counter call. Raises like `increment`."""
        self._add(counts)
        return self.get_counts()

    def get_counts(self) -> dict[str, int]:
        """The totals as far as known here: the parent's when counts were last handed on, and what waits here."""
        with self._changed:
            names = {*self._totals, *self._pending}
            return {name: self._totals.get(name, 0) + self._pending.get(name, 0) for name in names}

    def total(self, name: str) -> int:
        """The total of `name` under this counter's prefix, as far as known here."""
        return self.get_counts().get(f"{self._prefix}_{name}", 0)

    def flush(self) -> None:
        """Hands on what waits here; blocks until the parent has it. Raises what the parent's call raises."""
        with self._sending:
            with self._changed:
                counts, self._pending = self._pending, {}
            try:
                totals = follow(lambda: self._hand_on(counts), self._stop, what="the counter")
            except BaseException:
                with self._changed:
                    for name, count in counts.items():
                        self._pending[name] = self._pending.get(name, 0) + count
                raise
            with self._changed:
                self._totals = totals

    def _hand_on(self, counts: dict[str, int]) -> dict[str, int]:
        return self._parent.add_counts(counts) if counts else self._parent.get_counts()

    def close(self) -> None:
        """Hands on what waits here and ends the background thread.

        After the stop of the program the counter may be gone already: then the last counts are lost.

        Raises:
            CourierError: counts could not be handed on, though the program runs.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_JOIN_TIMEOUT_S)
        try:
            self._raise_error()
            if self._pending:
                self.flush()
        except CourierError:
            if self._stop is None or not self._stop.is_set():
                raise

    def _add(self, counts: Mapping[str, int]) -> None:
        _check(counts)
        self._raise_error()
        with self._changed:
            if self._closed:
                raise RuntimeError(f"The counter {self._prefix!r} is closed, it cannot count {dict(counts)}")
            was_empty = not self._pending
            for name, count in counts.items():
                self._pending[name] = self._pending.get(name, 0) + int(count)
            if was_empty and self._max_delay_s:
                self._due_s = self._clock.monotonic() + self._max_delay_s
                self._wake_sender()
        if not self._max_delay_s:
            self.flush()

    def _wake_sender(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_loop, name=f"counter-{self._prefix}", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _send_loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closed)
                self._clock.wait_for(self._changed, lambda: self._closed, self._due_s - self._clock.monotonic())
                if self._closed:
                    return  # close() hands on the rest, in the thread that can hear of a failure
            try:
                self.flush()
            except ProgramStopped:
                return
            except Exception as error:  # noqa: BLE001 - raised again in the thread that counts
                error.add_note(f"in the background, while the counter {self._prefix!r} handed on its counts")
                self._error = error
                return

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
