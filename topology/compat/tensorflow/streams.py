"""Samples of one iteration, some of them asked for ahead. Nothing here knows TensorFlow."""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, NoReturn, TypeAlias, final

import numpy as np
import numpy.typing as npt

from topology.clock import SYSTEM_CLOCK, Deadline
from topology.errors import ConnectionBroken, CourierError, ReplayDeadlineExceeded, ReplayError
from topology.nodes.courier.begun import BegunCall
from topology.nodes.courier.calls import CallFuture
from topology.nodes.replay import Client
from topology.nodes.replay.datasets import DatasetOptions
from topology.nodes.replay.links import NoAnswer, SampleCallArguments
from topology.nodes.replay.messages import SampleBatch, SampleGroup
from topology.nodes.replay.stopping import reason_of

__all__ = ["Columns", "Stream", "columns_of", "no_answer", "steps_of"]

Columns: TypeAlias = "list[npt.NDArray[Any]]"
"""The fields of SampleInfo, then the leaves of the data: arrays of one length, [n, ...] each."""


@final
class Stream:
    """Samples in the order they were drawn. One reader; `close` from any thread.

    At most `max_in_flight_samples_per_worker` times `num_workers_per_iterator` samples are under way or wait for the
    reader to hand them on; with whole batches one batch in any case.

    When the connection breaks, what was under way is asked for again, and it waits for the server as it does for one
    that is not there yet.

    Args:
        client: of the server.
        table: name of the table.
        options: how much is asked for ahead, and when it ends.
        batch_size: None for as many as can be drawn when the first can; otherwise whole batches.
        drop_remainder: whether a batch that did not become full is left out at the end.
    """

    def __init__(
        self,
        client: Client,
        table: str,
        options: DatasetOptions,
        batch_size: int | None = None,
        *,
        drop_remainder: bool = False,
    ) -> None:
        self._client = client
        self._table = table
        self._timeout_s = options.timeout_s
        self._batch_size = batch_size
        self._drop_remainder = drop_remainder
        if batch_size is None:
            self._size = options.max_in_flight_samples_per_worker
            self._most_requests = max(options.num_workers_per_iterator, 1)
        else:
            self._size = batch_size
            self._most_requests = max(options.in_flight // batch_size, 1)
        self._may_ask_ahead = options.timeout_s is None and options.in_flight >= (batch_size or 1)
        self._unasked: float = math.inf if options.max_samples < 0 else options.max_samples
        self._lock = threading.Lock()
        self._requests: deque[tuple[int, Future[SampleBatch] | BegunCall, Deadline]] = deque()
        self._closed = False
        self._time_is_over = False

    def poll(self, wait_s: float) -> SampleBatch | None:
        """The next samples; None when there are none after `wait_s`.

        Raises:
            StopIteration: there will be no more.
            ReplayError, CourierError: the server refused, is gone, or does not even say that the time is over.
        """
        request = self._first()
        if request is None:
            return self._last()
        size, future, patience = request
        try:
            batch = future.result(wait_s)
        except CancelledError:
            raise StopIteration from None
        except ReplayDeadlineExceeded:
            with self._lock:  # those behind it may have drawn something
                self._time_is_over = True
                if self._requests:
                    self._requests.popleft()
            return None
        except TimeoutError:
            if future.done():
                raise
            if not patience.expired:
                return None
            self.close()
            raise no_answer(self._client) from None
        except ConnectionBroken as error:
            self._ask_again(error)
            return None
        except (ReplayError, CourierError) as error:
            self._fail(error)
        with self._lock:
            if self._requests:
                self._requests.popleft()
            self._unasked += size - batch.keys.size
        return batch

    def ask_ahead(self) -> None:
        """The reader has handed on all that was read: what it will want next is asked for meanwhile.

        Not where the rate limiter has a time limit: that is for readers who wait.
        """
        if not self._may_ask_ahead:
            return
        with self._lock, contextlib.suppress(CourierError, ReplayError):  # the next `poll` meets it again
            if not self._closed:
                self._ask()

    def _first(self) -> tuple[int, Future[SampleBatch] | BegunCall, Deadline] | None:
        """The request whose reply comes next; None when the time was over for all of them."""
        with self._lock:
            if self._closed:
                raise StopIteration
            self._ask()
            if self._requests:
                return self._requests[0]
        if not self._time_is_over:
            raise StopIteration
        return None

    def _ask_again(self, error: ConnectionBroken) -> None:
        if reason_of(error) is not error:
            self._fail(error)
        with self._lock:
            requests, self._requests = list(self._requests), deque()
            self._unasked += sum(size for size, _, _ in requests)
        for _, future, _ in requests:
            if not future.cancel() and isinstance(future, CallFuture):
                future.ignore()  # the connection was theirs, too

    def _fail(self, error: Exception) -> NoReturn:
        self.close()
        reason = reason_of(error)
        raise reason from reason.__cause__

    def _ask(self) -> None:
        while not self._time_is_over and len(self._requests) < self._most_requests:
            size = int(min(self._size, self._unasked))
            if not size or (self._batch_size is not None and self._drop_remainder and size < self._batch_size):
                return
            self._unasked -= size
            request = SampleCallArguments(self._table, size, self._timeout_s, some=self._batch_size is None)
            link = self._client.link
            reply = link.begin_sample(request) if self._most_requests == 1 else link.submit_sample(request)
            self._requests.append((size, reply, Deadline(request.patience_s, SYSTEM_CLOCK)))

    def _last(self) -> SampleBatch:
        """What was drawn for the batch that did not become full before the time was over, then the end."""
        self.close()
        if self._batch_size in {None, 1} or self._drop_remainder:
            raise StopIteration
        request = SampleCallArguments(self._table, self._size - 1, 0.0, some=True)
        try:
            return self._client.link.sample(request)
        except ReplayDeadlineExceeded:
            raise StopIteration from None

    def close(self) -> None:
        """Ends it, also for a reader that is blocked. Idempotent."""
        with self._lock:
            self._closed = True
            requests, self._requests = list(self._requests), deque()
        for _, future, _ in reversed(requests):  # the last first: what was drawn for the first goes to nobody else
            if not future.cancel() and isinstance(future, CallFuture):
                future.ignore()  # it may have failed as the first did


def no_answer(client: Client) -> NoAnswer:
    """The error of a reader who has waited for longer than the time allowed, and heard nothing."""
    return NoAnswer(
        f"the replay server at {client.server_address} did not even say that the time is over; is it running, and is "
        "that its address?"
    )


def columns_of(batch: SampleBatch) -> Iterator[Columns]:
    """The samples of a batch, in order, in pieces of one structure and one set of shapes."""
    info: Columns = [batch.keys, batch.probabilities, batch.table_sizes, batch.priorities, batch.times_sampled]
    if len(batch.groups) == 1:
        yield [*info, *batch.groups[0].leaves]
        return
    positions = [_positions(group, batch.keys.size) for group in batch.groups]
    kinds = np.empty(batch.keys.size, np.int64)
    places = np.empty(batch.keys.size, np.int64)
    for kind, where in enumerate(positions):
        kinds[where], places[where] = kind, np.arange(where.size)
    edges = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), kinds.size]
    for first, stop in itertools.pairwise(edges):
        leaves = batch.groups[kinds[first]].leaves
        yield [
            *(field[first:stop] for field in info),
            *(leaf[places[first:stop]] for leaf in leaves),
        ]


def _positions(group: SampleGroup, size: int) -> npt.NDArray[np.int64]:
    return np.arange(size) if group.positions is None else group.positions


def steps_of(table: str, columns: Columns) -> Columns:
    """The steps of items that are sequences: info [n * T], leaves [n * T, ...].

    Raises:
        ValueError: the leaves have no common time axis.
    """
    info, leaves = columns[:5], columns[5:]
    lengths = {leaf.shape[1:2] for leaf in leaves}
    if len(lengths) != 1 or lengths == {()}:
        raise ValueError(
            f"table {table!r}: an item with columns of shapes {[leaf.shape[1:] for leaf in leaves]} is not a sequence "
            "of steps: use TrajectoryDataset"
        )
    ((length,),) = lengths
    return [
        *(np.repeat(field, length) for field in info),
        *(leaf.reshape(-1, *leaf.shape[2:]) for leaf in leaves),
    ]
