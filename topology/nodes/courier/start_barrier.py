"""Nodes that begin together: actors that do not act while the learner still compiles."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import final

from topology.nodes.courier.methods import asynchronous

__all__ = ["StartBarrier"]


@final
class StartBarrier:
    """Holds those who wait until all that others wait for are ready. What a `CourierNode` serves.

        barrier = program.add_node(lp.CourierNode(lp.StartBarrier))
        program.add_node(lp.CourierNode(Learner, replay, barrier))  # barrier.ready("learner") once it has compiled
        program.add_node(lp.CourierNode(Actor, replay, barrier))  # barrier.wait() before its first step

    Once open it stays open: a node that is started again does not wait, nor is it waited for. Thread-safe.

    Args:
        parties: how many nodes must be ready.

    Raises:
        ValueError: `parties` is below 1.
    """

    def __init__(self, parties: int = 1) -> None:
        if parties < 1:
            raise ValueError(f"a start barrier waits for at least 1 party, got parties={parties}")
        self._parties = parties
        self._lock = threading.Lock()
        self._ready: set[str] = set()
        self._waiting: list[Future[None]] = []

    def ready(self, name: str) -> None:
        """Says that the node `name` is ready, once or more often; opens the barrier when it is the last.

        Args:
            name: of whoever is ready, of one's choice: `lp.get_context().name` is one that no other node has.
        """
        with self._lock:
            self._ready.add(name)
            if len(self._ready) < self._parties:
                return
            waiting, self._waiting = self._waiting, []
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_result(None)

    @asynchronous
    def wait(self) -> Future[None]:
        """Blocks a client until the barrier is open, or the program stops; here it gives a future.

        Waiting holds no thread of the server. A client's `call_timeout` counts.
        """
        future: Future[None] = Future()
        with self._lock:
            if len(self._ready) < self._parties:
                self._waiting.append(future)
                return future
        future.set_result(None)
        return future

    def missing(self) -> int:
        """How many nodes are not ready yet."""
        with self._lock:
            return max(0, self._parties - len(self._ready))
