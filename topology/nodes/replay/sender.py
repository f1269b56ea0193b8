"""How a writer's items travel: gathered into messages, a few of them under way, waited for, sent again when lost."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Protocol, final

from topology.clock import Clock, Deadline
from topology.errors import ConnectionBroken, CourierClosed, ReplayDeadlineExceeded, ReplayError
from topology.nodes.replay import at_exit
from topology.nodes.replay.messages import ServerStopped, StreamLost, WriteBatch
from topology.nodes.replay.outbox import Outbox, Pending, PendingRun
from topology.nodes.replay.region_pool import RegionPool
from topology.nodes.replay.reminders import remind
from topology.nodes.replay.specs import Signature
from topology.nodes.replay.step_buffer import StepBuffer
from topology.nodes.replay.stopping import reason_of

__all__ = ["Backend", "Sender"]

_logger = logging.getLogger(__name__)

# A message costs both sides a dozen wake-ups, however large it is.
_SEND_ITEMS = 100
_SEND_BYTES = 1 << 20
_QUIET_S = 0.02
_AT_WORK_S = 0.1
_MOST_IN_FLIGHT = 3
_CLOSE_S = 1.0


class Backend(Protocol):
    """What a writer needs of its client."""

    def insert(self, batch: WriteBatch) -> Future[None]:
        """Sends a batch; the future is done when its items are in their tables."""

    def signature(self, table: str) -> Signature | None:
        """The table's signature. Raises `TableNotFound`."""

    def take_back(self, table: str, writer: int, count: int) -> int:
        """Has a table let none of a writer's first `count` items in any more; returns how many that kept out."""

    @property
    def regions(self) -> RegionPool | None:
        """Memory shared with the server; None for none."""

    def ready(self) -> Future[object]:
        """A future that is done when the server answers; it waits for a server that is being restarted."""


@final
class Sender:
    """The items of one writer between `create_item` and the table. For one thread; replies come on others.

    A writer that does nothing for a moment is reminded, on a thread of its own: items that wait are sent then.

    Attributes:
        mutex: held by whoever uses this or the steps: the writer, or who reminds it.

    Args:
        backend: the client.
        buffer: the writer's steps.
        clock: for timeouts.
        patience_s: how long to wait for a server that went away before that is an error; None for ever.
    """

    def __init__(self, backend: Backend, buffer: StepBuffer, clock: Clock, patience_s: float | None = None) -> None:
        self.outbox = Outbox(buffer)
        self.mutex = threading.RLock()
        self._context = contextvars.copy_context()  # of the node that writes
        self._is_reminded = False
        self._backend = backend
        self._buffer = buffer
        self._clock = clock
        self.patience_s = patience_s
        self._serials: dict[str, int] = {}
        self._runs: list[PendingRun] = []
        self._open_run: dict[str, PendingRun] = {}
        self._buffered = self._taken = 0
        self._enough = _SEND_ITEMS  # so many buffered items are sent
        self._together = False  # whether what is added has to go out as one
        self._first, self._stop = math.inf, 0
        self._last_sent_s = -math.inf
        self._changed = threading.Condition()  # guards what follows, shared with the thread that gets replies
        self._in_flight: dict[int, Pending] = {}
        self._sent = 0
        self._lost: list[Pending] = []
        self._error: BaseException | None = None
        self._cut_off: BaseException | None = None  # the connection broke, and nothing came over it since
        self._is_closed = False
        self._probe_in_quiet: Future[object] | None = None  # asked for on behalf of a writer that does nothing
        self._patience: Deadline | None = None  # with the server that was asked so
        at_exit.send_at_exit(self)

    @property
    def unfinished(self) -> int:
        """Items that are not in their tables yet, as far as is known."""
        lost = sum([pending.size for pending in self._lost]) if self._lost else 0
        return self._buffered + self._unconfirmed + lost

    @property
    def _unconfirmed(self) -> int:
        # Counted anew each time: kept beside the messages it would be wrong after an interrupt.
        return sum([pending.size for pending in list(self._in_flight.values())]) if self._in_flight else 0

    def oldest_needed(self) -> float:
        """The oldest step that items not confirmed yet use; infinity when there are none."""
        with self._changed:
            waiting = [pending.first for pending in self._in_flight.values()]
            waiting += [pending.first for pending in self._lost]
        return min([self._first, *waiting])

    def add(
        self, table: str, layout: int, episode: int, first_steps: range, priorities: list[float], stop: int
    ) -> None:
        """Takes items; sends them when it is time. Blocks while too much is under way.

        Args:
            table: name of the table.
            layout: number of their layout in the outbox.
            episode: the writer's episode.
            first_steps: first step of each, ascending.
            priorities: of each.
            stop: the step after the last one that any of them uses.
        """
        run = self._open_run.get(table)
        if run is None or run.layout != layout or run.episode != episode:
            run = PendingRun(table, layout, episode, self._serials.get(table, 0))
            self._runs.append(run)
            self._open_run[table] = run
        # In this order, here and above: an interrupt may leave too much reserved, but never an item without its steps
        # or its number.
        self._first, self._stop = min(self._first, first_steps[0]), max(self._stop, stop)
        self._buffered += len(priorities)
        run.size += len(priorities)
        self._serials[table] = run.serial + run.size
        run.items.append((first_steps, priorities))
        if self._is_due():
            self._send()
        elif not (self._in_flight or self._is_reminded):
            self._remind()

    def is_flushed(self, most_unfinished: int) -> bool:
        """Whether `flush` has nothing to do. Items to come are sent in time for the same question."""
        # One half is under way while the other is gathered: who waits for a message sent no earlier than needed waits
        # for all of it.
        self._enough = min(max(most_unfinished // 2, 1), _SEND_ITEMS)
        return self.unfinished <= most_unfinished

    def flush(self, most_unfinished: int, deadline: Deadline) -> None:
        """Blocks until at most so many items are not in their tables.

        Raises:
            ReplayDeadlineExceeded: the deadline passed.
        """
        if self.is_flushed(most_unfinished):
            return
        if self._buffered > most_unfinished:
            self._send(deadline)
        self._wait(lambda: not self._lost and self.unfinished <= most_unfinished, deadline)

    def flush_at_exit(self, deadline: Deadline) -> None:
        """As `flush` of everything, for another thread than the writer's. Does nothing while the writer is at it."""
        remaining = deadline.remaining()
        if self.mutex.acquire(timeout=-1 if remaining is None else remaining):
            try:
                self.flush(0, deadline)
            finally:
                self.mutex.release()

    def forked(self) -> None:
        """In a forked child: whoever held the mutex is not here."""
        self.mutex = threading.RLock()

    def forget_layouts(self) -> None:
        """The writer will name no layout of before any more; those of items on their way are kept until then."""
        with self._changed:
            pending = [*self._in_flight.values(), *self._lost]
        runs = [*self._runs, *[run for each in pending for run in each.runs]]
        self.outbox.keep_layouts({run.layout for run in runs})

    @property
    def has_failed(self) -> bool:
        """Whether `raise_failures` has something to do."""
        return self._error is not None or bool(self._lost)

    def raise_failures(self, deadline: Deadline | None = None) -> None:
        """Raises what went wrong since the last call, or begins anew after a lost stream. Blocks until it could."""
        self._wait(lambda: not self._lost, deadline)

    def close(self) -> None:
        """Sends what is buffered and ends the stream. Waits for nothing but a reminder that is just sending.

        What gets lost on its way is sent again all the same, as long as the client is there.
        """
        is_ours = self.mutex.acquire(timeout=_CLOSE_S)  # another thread may close what waits in its own
        try:
            self._is_closed = True
            if self.has_failed:
                self._remind(0.0)
            else:
                self._end_stream()
        finally:
            if is_ours:
                self.mutex.release()

    def _end_stream(self) -> None:
        if self._buffered:
            self._post(self._pending(), is_new=True, last=True)
        elif self.outbox.is_open and not at_exit.is_over():  # then the server hears of the end by the connection's
            self._backend.insert(self.outbox.farewell()).add_done_callback(_ignore)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What is added within goes out at its end, as one message. Blocks then while too much is under way."""
        self._together = True
        try:
            yield
        finally:
            self._together = False
        with self.mutex:
            if self._buffered:
                self._send()

    def take_back(self, table: str) -> int:
        """Keeps out of a table what it has not taken yet; returns how many items that are. Blocks for the answer."""
        return self._backend.take_back(table, self.outbox.writer, self._serials.get(table, 0))

    def _is_due(self) -> bool:
        if self._together:
            return False
        if self._buffered >= self._enough:
            return True
        if (self._stop - self._first) * self._buffer.row_bytes >= _SEND_BYTES:
            return True
        return not self._in_flight and self._clock.monotonic() - self._last_sent_s > _QUIET_S

    def _remind(self, delay_s: float = _QUIET_S) -> None:
        self._is_reminded = True
        if not remind(delay_s, functools.partial(self._context.run, self._attend)):
            self._is_reminded = False

    def _attend(self) -> None:
        """Sends what waits, unless the writer is at work, or will be reminded by the reply to what is under way.

        Whoever takes from a table waits for these items, and the writer may wait for whoever does, or be closed.
        """
        if not self.mutex.acquire(blocking=False):
            self._remind(_AT_WORK_S)
            return
        try:
            self._is_reminded = False  # before what is under way is looked at, see `_settle`
            if self._in_flight or self._together or at_exit.is_over():
                return
            if self._is_closed and self._error is not None:
                self._tell_loss(self._error)
            with contextlib.suppress(Exception):  # it is kept, and told by the writer's next call
                self._send_what_waits()
        finally:
            self.mutex.release()

    def _send_what_waits(self) -> None:
        if self._error is not None or (self._cut_off is not None and self._lost and not self._is_back()):
            return
        if self._lost:
            self.outbox.reset()
            self._send_again()
            if self._is_closed:
                self._end_stream()
        elif self._buffered and self._is_closed:
            self._end_stream()
        elif self._buffered and self._clock.monotonic() - self._last_sent_s < _QUIET_S:
            self._remind()
        elif self._buffered:
            self._post(self._pending(), is_new=True)

    def _is_back(self) -> bool:
        """Whether the server that went away answers again. If not, there is a reminder when that may have changed."""
        probe = self._probe_in_quiet
        if probe is None:
            self._patience = self._patience or Deadline(self.patience_s, self._clock)
            self._probe_in_quiet = self._backend.ready()
            self._probe_in_quiet.add_done_callback(lambda _: self._remind(0.0))
        if probe is None or not probe.done():
            return False
        self._probe_in_quiet = None
        error = CourierClosed("cancelled") if probe.cancelled() else probe.exception()
        if error is None:
            self._cut_off = self._patience = None
            return True
        assert self._patience is not None
        if isinstance(error, ConnectionBroken) and not self._patience.expired:
            self._remind(_AT_WORK_S)
            return False
        self._patience = None
        if self._is_closed:
            self._empty()
            self._tell_loss(error)
        return False

    def _tell_loss(self, error: BaseException) -> None:
        """Of a closed writer, to whom no call can tell it."""
        with self._changed:
            self._error = None
            self._lost.clear()
        self.outbox.reset()
        if not isinstance(error, ServerStopped | CourierClosed):  # somebody wanted that
            _logger.warning("items of a writer that was closed did not get into their tables: %s", error)

    def _pending(self) -> Pending:
        """What is buffered. It stays so until it is in flight; what is added meanwhile does not become part of this."""
        self._open_run = {}
        self._taken += 1
        first = 0 if self._first == math.inf else int(self._first)
        return Pending([*self._runs], self._buffered, first, self._stop, self._taken)

    def _empty(self) -> None:
        self._runs, self._buffered, self._first, self._stop = [], 0, math.inf, 0
        self._enough = _SEND_ITEMS

    def _send(self, deadline: Deadline | None = None) -> None:
        """Sends what is buffered; blocks while too many messages are under way."""
        self._wait(lambda: len(self._in_flight) < _MOST_IN_FLIGHT, deadline)
        self._post(self._pending(), is_new=True)

    def _post(self, pending: Pending, *, is_new: bool = False, last: bool = False) -> None:
        """Sends items. After an interrupt they are sent again, twice rather than never: the table takes each once."""
        number = self._sent = self._sent + 1
        try:
            with self._changed:
                self._in_flight[number] = pending
            if is_new:
                self._empty()
            message = self.outbox.message(pending, self._buffer.first_alive, last=last)
            self._last_sent_s = self._clock.monotonic()
            self._backend.insert(message).add_done_callback(functools.partial(self._on_reply, number))
        except BaseException as error:
            # An interrupt of this thread is not for whoever uses the writer next: the message counts as lost.
            self._settle(number, error if isinstance(error, Exception) else StreamLost(f"interrupted by {error!r}"))
            raise

    def _on_reply(self, number: int, future: Future[None]) -> None:
        error = ReplayError("the message was cancelled") if future.cancelled() else future.exception()
        self._settle(number, error)

    def _settle(self, number: int, error: BaseException | None) -> None:
        with self._changed:
            pending = self._in_flight.pop(number, None)
            if pending is None:  # it counts as lost already
                return
            if isinstance(error, StreamLost | ConnectionBroken):
                self._lost.append(pending)
                self._cut_off = error if isinstance(error, ConnectionBroken) else self._cut_off
            elif error is not None and self._error is None:
                self._error = error
            self._changed.notify_all()
        waits = self._buffered or self._lost or (self._is_closed and self._error is not None)
        if waits and not (self._in_flight or self._is_reminded):
            self._remind()

    def _wait(self, ready: Callable[[], bool], deadline: Deadline | None = None) -> None:
        """Waits for replies until `ready()`; sends again what a lost stream lost.

        Raises:
            ReplayDeadlineExceeded: the deadline passed.
            ConnectionBroken: the server is gone, and did not come back.
            ReplayError, CourierError: what the server or the connection reported.
        """
        while True:
            deadline = Deadline(0.0, self._clock) if at_exit.is_over() else deadline
            if self._cut_off is not None and self._stranded():
                self._reconnect(deadline)
            remaining = None if deadline is None else deadline.remaining()
            with self._changed:
                self._clock.wait_for(self._changed, lambda: bool(self._error or self._stranded() or ready()), remaining)
                if self._error is None and not self._stranded():
                    if ready():
                        return
                    raise ReplayDeadlineExceeded(
                        f"{self._unconfirmed} items were sent and are not confirmed yet; they will still be inserted "
                        "when the server answers and the rate limiters of their tables let them pass"
                    )
                if self._error is None and self._cut_off is not None:
                    continue
                error, self._error = self._error, None
                if error is not None:
                    self._lost.clear()
            self.outbox.reset()
            if error is not None:
                reason = reason_of(error)
                raise reason from reason.__cause__
            self._send_again()

    def _send_again(self) -> None:
        """Sends what was lost, oldest first: of items that come after younger ones the table takes none.

        An interrupt leaves those that are not sent yet. What is lost once more meanwhile stands behind them.
        """
        self._lost.sort(key=lambda pending: pending.order)
        for _ in range(len(self._lost)):
            self._post(self._lost[0])
            del self._lost[0]

    def _stranded(self) -> bool:
        """Whether items wait to be sent again, and nothing that was sent before them is under way."""
        return bool(self._lost) and not self._in_flight

    def _reconnect(self, deadline: Deadline | None) -> None:
        """Blocks until the server answers again."""
        broken = self._cut_off
        assert broken is not None
        patience = Deadline(self.patience_s, self._clock)
        while isinstance(broken, ConnectionBroken):
            reason = reason_of(broken)
            if reason is not broken:  # the program stops
                self._cut_off = None
                raise reason from reason.__cause__
            # Also the one that answers may go away, or be what is left of the last one.
            broken = self._probe(broken, patience, deadline)
        self._cut_off = self._patience = None
        if broken is not None:
            raise broken

    def _probe(self, broken: ConnectionBroken, patience: Deadline, deadline: Deadline | None) -> BaseException | None:
        """Asks the server for an answer, and waits for it; returns the error if it was one."""
        probe = self._backend.ready()
        probe.add_done_callback(self._wake)
        limits = [each.remaining() for each in (patience, deadline) if each is not None]
        with self._changed:
            self._clock.wait_for(self._changed, probe.done, min((s for s in limits if s is not None), default=None))
        is_over = deadline is not None and deadline.expired
        if probe.done() and not (isinstance(probe.exception(), ConnectionBroken) and (is_over or patience.expired)):
            return probe.exception()
        probe.cancel()
        if is_over:
            raise ReplayDeadlineExceeded(
                f"the replay server went away; {self.unfinished} items wait to be sent again when it is back"
            )
        raise ConnectionBroken(
            f"the replay server went away and was not back within {self.patience_s} s; {self.unfinished} items "
            "are not confirmed. The next call of the writer waits for it again"
        ) from broken

    def _wake(self, _: object) -> None:
        with self._changed:
            self._changed.notify_all()


def _ignore(future: Future[None]) -> None:
    """The end of a stream that nothing depends on: at worst the server drops it by itself, later."""
    if not future.cancelled():
        future.exception()
