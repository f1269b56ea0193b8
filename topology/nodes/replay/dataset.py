"""Iterators of batches for learners."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import final

from topology.clock import SYSTEM_CLOCK, Clock
from topology.errors import CourierError, ReplayDeadlineExceeded, ReplayError
from topology.nodes.courier.calls import CallFuture
from topology.nodes.replay.forks import inherited_error, tell_in_child
from topology.nodes.replay.info import ReplaySample
from topology.nodes.replay.links import NoAnswer
from topology.nodes.replay.messages import SampleBatch
from topology.nodes.replay.stopping import reason_of

__all__ = ["BatchIterator"]


@final
class BatchIterator:
    """Batches in the order they were drawn, some of them requested ahead.

    While the reader works on a batch, `prefetch` further ones are on their way or here. They were drawn before the
    priority updates that the reader makes from that batch: samples are up to `prefetch` batches stale, and the rate
    limiter has counted them. 0 draws a batch only when it is asked for, as on-policy and single-threaded programs need.

    Iteration ends when `close` is called, also for a reader that is blocked, and when `timeout_s` passes without a
    batch: no further ones are requested then, and those that the others under way have drawn come before the end. A
    server that does not answer at all is an error. One reader; `close` from any thread.

    Attributes:
        timed_out: whether the iteration ended because the time was over.
        age_s: how long before it was handed out, in seconds, the latest batch was asked for: it was not drawn earlier.

    Args:
        request: asks for one batch; None when there are to be no more.
        assemble: turns the reply into a sample.
        prefetch: batches requested ahead, at least 0.
        result: waits for the reply; the default waits for ever.
        clock: for `age_s`.
    """

    def __init__(
        self,
        request: Callable[[], Future[SampleBatch] | None],
        assemble: Callable[[SampleBatch], ReplaySample],
        *,
        prefetch: int,
        result: Callable[[Future[SampleBatch]], SampleBatch] = Future.result,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if prefetch < 0:
            raise ValueError(f"prefetch must be at least 0, got {prefetch}")
        self._request = request
        self._assemble = assemble
        self._prefetch = prefetch
        self._result = result
        self._lock = threading.Lock()
        self._clock = clock
        self._futures: deque[Future[SampleBatch]] = deque()
        self._asked_s: deque[float] = deque()  # when, for each of them
        self._closed = False
        self._complete = False  # all that are wanted were asked for
        self._inherited = False
        self.timed_out = False
        self.age_s = 0.0
        tell_in_child(self)

    def forked(self) -> None:
        """In a forked child: the batches that were requested go to the parent."""
        self._inherited = True
        self._lock = threading.Lock()
        self._futures = deque()

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> ReplaySample:
        while (batch := self._next_reply()) is None:
            pass
        return self._assemble(batch)

    def _next_reply(self) -> SampleBatch | None:
        """The next batch as it came; None where the time was over for it, which those behind it may not know yet."""
        future = self._first()
        try:
            batch = self._result(future)
        except NoAnswer:
            self.close()
            raise
        except ReplayDeadlineExceeded:
            self.timed_out = self._complete = True
            self._done_with(future)
            return None
        except CancelledError:
            self.close()
            raise StopIteration from None
        except (ReplayError, CourierError) as error:
            self.close()
            reason = reason_of(error)
            raise reason from reason.__cause__
        except BaseException:
            self.close()
            raise
        asked_s = self._done_with(future)
        if asked_s is not None:
            self.age_s = self._clock.monotonic() - asked_s
        return batch

    def _first(self) -> Future[SampleBatch]:
        """The request whose reply comes next. It stays where it is while it is waited for, so `close` can cancel it."""
        if self._inherited:
            raise inherited_error("the iterator")
        with self._lock:
            if self._closed:
                raise StopIteration
            while len(self._futures) <= self._prefetch and not self._complete:
                requested = self._request()
                if requested is None:
                    self._complete = True
                else:
                    self._futures.append(requested)
                    self._asked_s.append(self._clock.monotonic())
            if self._futures:
                return self._futures[0]
        if self.timed_out:
            self.close()
        raise StopIteration

    def _done_with(self, future: Future[SampleBatch]) -> float | None:
        """Takes the first request away; when it was asked for. None: the iterator has been closed meanwhile."""
        with self._lock:
            if not self._futures or self._futures[0] is not future:
                return None
            self._futures.popleft()
            return self._asked_s.popleft()

    def close(self) -> None:
        """Ends the iteration and cancels what was requested ahead. Idempotent.

        Of an item table with `max_times_sampled`, batches that had arrived already are lost.
        """
        with self._lock:
            self._closed = True
            futures, self._futures = list(self._futures), deque()
            self._asked_s.clear()
        for future in reversed(futures):  # the last first, so that what was drawn for the first goes to nobody else
            if not future.cancel() and isinstance(future, CallFuture):
                future.ignore()  # it may have failed as the one did that ended the iteration

    def __enter__(self) -> BatchIterator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
