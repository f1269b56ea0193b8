"""One batch from several servers: a part of each, or from the others what one does not have."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, Protocol, final

from topology.errors import ConnectionBroken, ReplayDeadlineExceeded
from topology.nodes.replay.alarms import Alarms
from topology.nodes.replay.links import SampleCallArguments
from topology.nodes.replay.messages import SampleBatch, ServerStopped
from topology.nodes.replay.mixing import Part, mix

__all__ = ["ShardedBatch", "Shards", "fulfil"]

_PATIENCE_S = 1.0
"""How long a batch waits for a server, in seconds, before it asks the others for that part as well.

Each server has a rate limiter of its own, and a writer writes to one of them: while all writers happen to wait at one
server for samples, a batch that insisted on the other would wait for ever, and so where nobody writes to one of them.
"""


class Shards(Protocol):
    """What a batch asks of the link."""

    def split(self, count: int, table: str) -> list[Part]:
        """How many items come from which server. Raises `ConnectionBroken` when there is none."""

    def has_others(self, numbers: set[int], table: str, otherwise: Callable[[], None]) -> bool:
        """Whether there is a server besides these that may have something. If not: calls `otherwise` when one may."""

    def forget(self, otherwise: Callable[[], None]) -> None:
        """Takes that back."""

    def fetch(self, part: Part, request: SampleCallArguments) -> tuple[Future[SampleBatch], bool]:
        """A part of a batch from its server, and whether an earlier batch asked for it."""

    def keep(self, part: Part, request: SampleCallArguments, future: Future[SampleBatch]) -> None:
        """Takes over a part that its batch does not wait for any more."""

    def failed(self, number: int, error: BaseException) -> None:
        """A server went away."""


@final
class ShardedBatch:
    """Asks for the parts, and mixes them when all are here.

    Attributes:
        reply: the batch. Cancelling it ends the wait; the parts that are here go to later batches.
    """

    def __init__(self, shards: Shards, request: SampleCallArguments, alarms: Alarms) -> None:
        self.reply: Future[SampleBatch] = Future()
        self._shards = shards
        self._request = request
        self._alarms = alarms
        self._cancel_alarm: Callable[[], None] | None = None
        self._lock = threading.Lock()
        self._under_way: dict[Future[SampleBatch], Part] = {}
        self._asked_before: set[Future[SampleBatch]] = set()
        self._here: list[tuple[Part, SampleBatch]] = []
        self._left = 0
        self._asking = 0
        self._ended = False
        self.reply.add_done_callback(self._given_up)
        self._ask(shards.split(request.batch_size, request.table))

    def _ask(self, parts: Sequence[Part], *, instead_of: int = 0) -> None:
        with self._lock:
            self._left += len(parts) - instead_of
            self._asking += 1
        for part in parts:
            future, asked_before = self._shards.fetch(part, self._request)
            with self._lock:
                self._under_way[future] = part
                if asked_before:
                    self._asked_before.add(future)
                ended = self._ended
            future.add_done_callback(self._answered)
            if ended:
                future.cancel()
        with self._lock:
            self._asking -= 1
        self._become_impatient()

    def _answered(self, future: Future[SampleBatch]) -> None:
        with self._lock:
            part = self._under_way.pop(future, None)
            ended = self._ended
        if part is None:  # it is not for this batch any more
            return
        error = CancelledError() if future.cancelled() else future.exception()
        if isinstance(error, ConnectionBroken | ServerStopped):
            self._shards.failed(part.shard, error)
        # The time of an earlier batch is not that of this one.
        is_over = isinstance(error, ReplayDeadlineExceeded) and future in self._asked_before
        if is_over or isinstance(error, ConnectionBroken | ServerStopped | CancelledError):
            if not ended:
                self._replace([part])
        elif error is not None:
            self._end(error)
        else:
            self._arrived(part, future)

    def _replace(self, lost: Sequence[Part]) -> None:
        try:
            parts = self._shards.split(sum(part.size for part in lost), self._request.table)
        except ConnectionBroken as error:
            self._end(error)
            return
        self._ask(parts, instead_of=len(lost))

    def _arrived(self, part: Part, future: Future[SampleBatch]) -> None:
        with self._lock:
            ended = self._ended
            self._left -= 1
            if not ended:
                self._here.append((part, future.result()))
            complete = not ended and not self._left
            self._ended |= complete
        if ended:
            self._shards.keep(part, self._request, future)
        elif not complete:
            self._become_impatient()
        else:
            self._set_no_alarm()
            if self.reply.set_running_or_notify_cancel():
                fulfil(self.reply, functools.partial(mix, sorted(self._here, key=lambda entry: entry[0])))

    # -- patience -----------------------------------------------------------------------------------------------------

    def _become_impatient(self) -> None:
        """The parts that are not here have so much time from now on."""
        with self._lock:
            # Of a server that is asked twice the same item might come twice.
            must_wait = self._request.distinct or self._ended or self._asking or not self._under_way
            if must_wait or self._cancel_alarm is not None:
                return
            self._cancel_alarm = self._alarms.schedule(_PATIENCE_S, self._lose_patience)

    def _lose_patience(self) -> None:
        with self._lock:
            self._cancel_alarm = None
            numbers = {part.shard for part in self._under_way.values()}
            if self._ended or not numbers:
                return
            if not self._shards.has_others(numbers, self._request.table, self._become_impatient):
                return
            late, self._under_way = self._under_way, {}
        for future, part in late.items():
            self._shards.keep(part, self._request, future)
        self._replace(list(late.values()))

    def _set_no_alarm(self) -> None:
        with self._lock:
            cancel, self._cancel_alarm = self._cancel_alarm, None
        if cancel is not None:
            cancel()
        self._shards.forget(self._become_impatient)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _end(self, error: BaseException) -> None:
        with self._lock:
            if self._ended:
                return
        if self.reply.set_running_or_notify_cancel():
            self._stop()
            self.reply.set_exception(error)

    def _given_up(self, reply: Future[SampleBatch]) -> None:
        if reply.cancelled():
            self._stop()

    def _stop(self) -> None:
        """Nobody waits for this batch any more: what is here and what still comes is for others."""
        with self._lock:
            self._ended = True
            here, self._here = self._here, []
            waiting = list(self._under_way)
        self._set_no_alarm()
        for part, batch in here:
            future: Future[SampleBatch] = Future()
            future.set_result(batch)
            self._shards.keep(part, self._request, future)
        for each in reversed(waiting):
            each.cancel()


def fulfil(future: Future[Any], result: Callable[[], Any]) -> None:
    """Sets what `result` returns, or raises."""
    try:
        value = result()
    except BaseException as error:  # noqa: BLE001  (whatever it is belongs to the caller)
        future.set_exception(error)
    else:
        future.set_result(value)
