"""Calls of several workers under way at once, for loops that are written by hand rather than as a plan."""

from __future__ import annotations

import concurrent.futures
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

from topology.nodes.courier.calls import CallFuture
from topology.nodes.flow.actors import Actor, as_actors
from topology.nodes.flow.checks import check_seconds, check_whole
from topology.nodes.flow.worker_set import AnyWorker

__all__ = ["AsyncRequestsManager"]


@final
class AsyncRequestsManager:
    """Keeps so many calls of each worker under way, and refuses more rather than to pile them up. For one thread.

    Has the names of RLlib 2.0's class; `get_ready` waits for an event where that one polls, and what a worker raised
    takes no other worker's results with it.

    Example:
        >>> manager = AsyncRequestsManager(workers, max_remote_requests_in_flight_per_worker=2)  # doctest: +SKIP
        >>> while manager.call("sample"):  # doctest: +SKIP
        ...     pass
        >>> for worker, batches in manager.get_ready(timeout_s=60.0).items():  # doctest: +SKIP
        ...     manager.call("sample", actor=worker)

    Args:
        workers: to be called; see `as_actors`.
        max_remote_requests_in_flight_per_worker: at most so many calls of each have not been taken from `get_ready`.
    """

    def __init__(self, workers: Iterable[AnyWorker], max_remote_requests_in_flight_per_worker: int = 2) -> None:
        self._most = check_whole(
            "max_remote_requests_in_flight_per_worker", max_remote_requests_in_flight_per_worker, 1
        )
        self._ring: deque[Actor] = deque()
        self._under_way: dict[CallFuture, Actor] = {}
        self._in_flight: Counter[Actor] = Counter()  # those with none are not in it: it would keep what is served here
        self._called = self._ready = self._failed = 0
        self.add_workers(workers)

    @property
    def workers(self) -> list[Actor]:
        """Those that calls go to; the next in turn is the first."""
        return list(self._ring)

    def call(
        self,
        method: str,
        *,
        actor: Actor | None = None,
        fn_args: Sequence[Any] = (),
        fn_kwargs: Mapping[str, Any] | None = None,
    ) -> bool:
        """Calls a method of a worker; does not block. Returns False, and does nothing, where there is no room.

        Args:
            method: its name.
            actor: whom to call; None for the next in turn that has room.
            fn_args: arguments by position.
            fn_kwargs: arguments by name.

        Raises:
            ValueError: `actor` is not one of the workers.
            CourierClosed: the client of the worker was closed.
        """
        if actor is not None and actor not in self._ring:
            raise ValueError(
                f"{actor!r} is not one of the {len(self._ring)} workers of this manager: add_workers([it])"
            )
        ring = list(self._ring) if actor is None else [actor]
        for place, candidate in enumerate(ring):
            if self._in_flight[candidate] < self._most:
                if actor is None:
                    self._ring.rotate(-place - 1)
                future = getattr(candidate.futures, method)(*fn_args, **(fn_kwargs or {}))
                self._under_way[future] = candidate
                self._in_flight[candidate] += 1
                self._called += 1
                return True
        return False

    def call_on_all_available(
        self, method: str, *, fn_args: Sequence[Any] = (), fn_kwargs: Mapping[str, Any] | None = None
    ) -> int:
        """Calls a method of every worker that has room, once; of how many."""
        return sum(self.call(method, actor=actor, fn_args=fn_args, fn_kwargs=fn_kwargs) for actor in self.workers)

    def get_ready(self, timeout_s: float | None = 0.0, *, return_exceptions: bool = False) -> dict[Actor, list[Any]]:
        """Takes the results that are there, by worker, in the order of its calls; {} where nothing is under way.

        Args:
            timeout_s: blocks so long until there is one; None for without end. What comes later stays for the next
                time.
            return_exceptions: whether what calls have raised is among the results, so that it is known which worker
                to leave out.

        Raises:
            Exception: what a call has raised, with the worker's name as a note; once for each call that has. Results of
                other calls stay for the next `get_ready`.
            ProgramStopped: the program stops, and a call was under way.
            ValueError: the time makes no sense.
        """
        check_seconds("timeout_s", timeout_s)
        if timeout_s != 0 and self._under_way and not any(future.done() for future in self._under_way):
            concurrent.futures.wait(self._under_way, timeout_s, concurrent.futures.FIRST_COMPLETED)
        done = [future for future in self._under_way if future.done()]
        if not return_exceptions:
            self._raise_first(done)
        results: dict[Actor, list[Any]] = {}
        for future in done:
            error = future.exception()
            results.setdefault(self._settle(future), []).append(future.result() if error is None else error)
            self._ready += error is None
            self._failed += error is not None
        return results

    def _raise_first(self, done: Iterable[CallFuture]) -> None:
        for future in done:
            error = future.exception()
            if error is not None:
                self._failed += 1
                note = f"raised by {self._settle(future).name}"
                if note not in getattr(error, "__notes__", ()):  # calls that a broken connection ends share their error
                    error.add_note(note)
                raise error

    def add_workers(self, workers: Iterable[AnyWorker]) -> None:
        """Calls go to these too; those that are here already stay as they are."""
        for actor in as_actors(workers):
            if actor not in self._ring:
                self._ring.append(actor)

    def remove_workers(self, workers: Iterable[Actor], *, remove_in_flight_requests: bool = False) -> None:
        """No more calls go to these; those that are not here are passed over.

        Args:
            workers: whom to leave out.
            remove_in_flight_requests: drop what is under way; otherwise its results arrive as ever.
        """
        gone = set(workers)
        self._ring = deque(actor for actor in self._ring if actor not in gone)
        if remove_in_flight_requests:
            for future in [future for future, actor in self._under_way.items() if actor in gone]:
                future.cancel()
                self._settle(future)

    def get_manager_statistics(self) -> dict[str, int]:
        """Calls so far: made, their results taken, failed, and under way."""
        return {
            "num_requests_called": self._called,
            "num_requests_ready": self._ready,
            "num_requests_failed": self._failed,
            "num_requests_in_flight": len(self._under_way),
        }

    def _settle(self, future: CallFuture) -> Actor:
        actor = self._under_way.pop(future)
        self._in_flight[actor] -= 1
        if not self._in_flight[actor]:
            del self._in_flight[actor]
        return actor
