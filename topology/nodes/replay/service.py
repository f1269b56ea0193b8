"""The replay service without a network: what a server's methods do. Calls that wait return futures."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import final

import numpy as np
import numpy.typing as npt

from topology.clock import SYSTEM_CLOCK, Clock
from topology.errors import ReplayDeadlineExceeded, ReplayError
from topology.nodes.replay.alarms import Alarms
from topology.nodes.replay.checkpointers import CheckpointerBase, CheckpointError
from topology.nodes.replay.checks import check_count, check_timeout
from topology.nodes.replay.compression import Compression
from topology.nodes.replay.copiers import Copiers
from topology.nodes.replay.info import TableInfo
from topology.nodes.replay.landing import LandingAddress
from topology.nodes.replay.layouts import Store
from topology.nodes.replay.lent_memory import LentMemory
from topology.nodes.replay.messages import Occupancy, SampleBatch, ServerStopped, StreamLost, WriteBatch, WriteItem
from topology.nodes.replay.requests import InsertRequest, SampleRequest
from topology.nodes.replay.sample_call import SampleCall
from topology.nodes.replay.streams import Stream, find_table
from topology.nodes.replay.table import Table
from topology.nodes.replay.watch import Watch

__all__ = ["ReplayService"]

# Writers hold a window of steps each. It is dropped when their connection ends, and when they are silent for long, as
# on a machine that is gone; should one come back, it is told, and sends again what it needs.
_MOST_STREAMS = 16_384
_LARGEST_BATCH = 1 << 20


@final
class ReplayService:
    """Tables, the steps they share, and the calls on them. Thread-safe.

    Args:
        tables: at least one, with distinct names.
        clock: for timeouts and reports.
        report_after_s: a call that waits so long is reported in the log, with what blocks it.
        checkpointer: saves the tables on `checkpoint`, and fills them now from the newest one.
        forget_writers_after_s: the steps kept for a writer are dropped when it is silent for so long.
        compression: codec by column; see `Compression`.

    Raises:
        ValueError: no table, or two of one name.
        CheckpointError: the newest checkpoint is damaged, or does not fit the tables.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        clock: Clock = SYSTEM_CLOCK,
        report_after_s: float = 30.0,
        forget_writers_after_s: float = 60.0,
        compression: Mapping[str, str] | None = None,
        checkpointer: CheckpointerBase | None = None,
    ) -> None:
        if not tables:
            raise ValueError("a replay server needs at least one table, got none")
        wrong = [table for table in tables if not isinstance(table, Table)]
        if wrong:
            raise ValueError(f"a replay server serves tables, made by Table(...), got {wrong[0]!r}")
        self.tables = {table.name: table for table in tables}
        if len(self.tables) < len(tables):
            raise ValueError(f"two tables have the same name: {sorted(table.name for table in tables)}")
        self.store = Store(Compression(compression))
        self._clock = clock
        self._forget_after_s = forget_writers_after_s
        self._sweeping = False
        self.lent_memory = LentMemory()
        self._checkpointer = checkpointer
        if checkpointer is not None:
            checkpointer.load_latest(self.tables, self.store)
        self._alarms = Alarms(clock)
        self._watches = {name: Watch(table, self._alarms, clock, report_after_s) for name, table in self.tables.items()}
        self._copiers = Copiers()
        self._lock = threading.Lock()
        self._streams: OrderedDict[int, Stream] = OrderedDict()
        self._attending: set[Future[None]] = set()
        self._closed = False

    # -- writers ------------------------------------------------------------------------------------------------------

    def insert(self, batch: WriteBatch | WriteItem, visit: int = 0) -> Future[None]:
        """Writes steps and items. The result comes when all items are in their tables.

        Errors: `TableNotFound`, `ValueError` (signature, priorities), `StreamLost`, `ServerStopped`. Cancelling
        the future takes back the items that are not in their tables yet.

        Args:
            batch: the message.
            visit: at whose end the steps kept for the writer are dropped, see `visit`; 0 for none.
        """
        with self._lock:
            stream = self._streams.get(batch.writer)
            before = None
            if stream is None or stream.number < batch.stream:
                if batch.number:
                    raise StreamLost(f"writer {batch.writer:x} has no stream here: begin a new one")
                before = stream
                stream = Stream(batch.stream, self.store, self.tables, self._submit_insert)
                self._streams[batch.writer] = stream
            elif stream.number > batch.stream:
                raise StreamLost(f"writer {batch.writer:x} has begun another stream since")
            stream.used_s = self._clock.monotonic()
            stream.visit = visit
            self._streams.move_to_end(batch.writer)
            idlest = self._streams.popitem(last=False)[1] if len(self._streams) > _MOST_STREAMS else None
            must_sweep, self._sweeping = not self._sweeping, True
        if before is not None:
            before.abandon()
        if idlest is not None:
            idlest.close()
        if must_sweep:
            self._alarms.schedule(self._forget_after_s, self._sweep)
        reply = stream.write(self.lent_memory.resolve(batch))
        if stream.lost:
            with self._lock:
                if self._streams.get(batch.writer) is stream:
                    del self._streams[batch.writer]
        return reply

    def visit(self, number: int) -> Future[None]:
        """A future that never ends by itself. When it is cancelled, as when its connection ends, writers are forgotten.

        Args:
            number: of the visit, random; the writers are those whose latest message named it. Should one come back, it
                is told, and sends again what it needs.
        """
        visiting: Future[None] = Future()
        visiting.add_done_callback(lambda _: self._forget_visitors(number))
        return visiting

    def _forget_visitors(self, number: int) -> None:
        with self._lock:
            gone = [(writer, stream) for writer, stream in self._streams.items() if stream.visit == number]
            for writer, _ in gone:
                del self._streams[writer]
        for _, stream in gone:
            stream.close()

    def _sweep(self) -> None:
        """Drops the streams that were silent for too long; comes again while there are others."""
        silent: list[Stream] = []
        now = self._clock.monotonic()
        delay = None
        with self._lock:
            while self._streams and delay is None:
                writer, stream = next(iter(self._streams.items()))
                age = now - stream.used_s
                if age < self._forget_after_s:
                    delay = self._forget_after_s - age
                else:
                    silent.append(self._streams.pop(writer))
            self._sweeping = delay is not None
        for stream in silent:
            stream.close()
        if delay is not None:
            self._alarms.schedule(delay, self._sweep)

    def _submit_insert(self, table: Table, request: InsertRequest) -> None:
        if not table.insert(request):
            self._watches[table.name].waiting(request)

    # -- samplers -----------------------------------------------------------------------------------------------------

    def sample(
        self,
        table: str,
        batch_size: int,
        timeout_s: float | None = None,
        landing: LandingAddress | None = None,
        *,
        distinct: bool = False,
        some: bool = False,
        priority: float | None = None,
    ) -> Future[SampleBatch]:
        """Draws `batch_size` items. The result comes when the limiter has let all of them pass.

        Cancelling the future ends the wait. What was drawn for a call that is cancelled or times out goes to the next.

        Args:
            table: name of the table.
            batch_size: from 1 to 1,048,576: a table does nothing else while it draws.
            timeout_s: `ReplayDeadlineExceeded` after so many seconds; None waits for ever.
            landing: memory lent by the caller, for large leaves; used when it is known here.
            distinct: whether no item may be in the batch twice.
            some: whether to reply with what can be drawn at once, as soon as that is at least one item.
            priority: what the items get once they were drawn; the batch says what they had. None: they keep it.
        """
        found = find_table(self.tables, table)
        batch_size = check_count(f"table {table!r}: batch_size", batch_size, most=_LARGEST_BATCH)
        timeout_s = check_timeout(f"table {table!r}: timeout_s", timeout_s)
        call = SampleCall(found, self._copiers, self.lent_memory.placer(landing), priority)
        request = SampleRequest(batch_size, call.drawn, distinct=distinct, some=some)
        ended = found.sample(request)
        call.submitted()
        if not ended:
            self._wait_for_sample(found, request, call.reply, timeout_s)
        return call.reply

    def sample_distinct(
        self, table: str, batch_size: int, timeout_s: float | None = None, landing: LandingAddress | None = None
    ) -> Future[SampleBatch]:
        """Like `sample`, without replacement: no item is in the batch twice.

        Errors: `ValueError`, when the table can never hold so many.
        """
        return self.sample(table, batch_size, timeout_s, landing, distinct=True)

    def sample_marked(
        self, table: str, batch_size: int, timeout_s: float | None = None, landing: LandingAddress | None = None
    ) -> Future[SampleBatch]:
        """Like `sample_distinct`; the items then have priority 1, so that those with less are drawn before them."""
        return self.sample(table, batch_size, timeout_s, landing, distinct=True, priority=1.0)

    def sample_some(
        self, table: str, at_most: int, timeout_s: float | None = None, landing: LandingAddress | None = None
    ) -> Future[SampleBatch]:
        """Like `sample`, for 1 to `at_most` items: those that can be drawn when the first can."""
        return self.sample(table, at_most, timeout_s, landing, some=True)

    def _wait_for_sample(
        self, table: Table, request: SampleRequest, reply: Future[SampleBatch], timeout_s: float | None
    ) -> None:
        self._watches[table.name].waiting(request)
        reply.add_done_callback(functools.partial(_withdraw, table, request))
        if timeout_s is not None:
            expire = functools.partial(_expire, table, request, timeout_s)
            cancel_alarm = self._alarms.schedule(timeout_s, expire)
            reply.add_done_callback(lambda _: cancel_alarm())

    # -- items and tables ---------------------------------------------------------------------------------------------

    def update_priorities(self, table: str, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[np.float64]) -> int:
        """Sets priorities of items, keys [n] and priorities [n]; returns how many keys were in the table."""
        return find_table(self.tables, table).update_priorities(keys, priorities)

    def delete(self, table: str, keys: npt.NDArray[np.uint64]) -> int:
        """Removes items, keys [n]; returns how many were in the table."""
        return find_table(self.tables, table).delete(keys)

    def occupancy(self, tables: Sequence[str]) -> list[Occupancy]:
        """What has come into each of these tables, and what of it is there."""
        return [find_table(self.tables, table).occupancy for table in tables]

    def wait_for_inserts(
        self, table: str, known: int, timeout_s: float | None = None, steps: int = 0, also: Sequence[str] = ()
    ) -> Future[list[Occupancy]]:
        """What was inserted, once that is another number of items than `known` and so many steps, or the time is over.

        Cancelling the future ends the wait.

        Args:
            table: that is waited for.
            known: number of items.
            timeout_s: None for ever.
            steps: of all items since the table was made or reset.
            also: tables of which it is told what is there then, too.
        """
        found = find_table(self.tables, table)
        others = [find_table(self.tables, name) for name in also]
        watch = found.watch_inserts(known, steps)
        if timeout_s is not None and not watch.future.done():
            cancel_alarm = self._alarms.schedule(timeout_s, functools.partial(found.end_watch, watch))
            watch.future.add_done_callback(lambda _: cancel_alarm())
        reply: Future[list[Occupancy]] = Future()
        reply.add_done_callback(lambda reply: watch.future.cancel() if reply.cancelled() else None)
        watch.future.add_done_callback(lambda _: _tell_all(watch.future, others, reply))
        return reply

    def take_back(self, table: str, writer: int, count: int) -> int:
        """Lets none of a writer's first `count` items into a table any more. See `Table.take_back`."""
        return find_table(self.tables, table).take_back(writer, count)

    def reset(self, table: str) -> None:
        """Empties a table and its limiter's counts."""
        find_table(self.tables, table).reset()

    def resize(self, table: str, max_size: int) -> None:
        """Changes a table's `max_size`."""
        find_table(self.tables, table).resize(max_size)

    def checkpoint(self) -> str:
        """Saves all tables; returns where. Blocks until that is on the disk.

        Raises:
            CheckpointError: it could not be written; or the server has no checkpointer.
        """
        if self._checkpointer is None:
            raise CheckpointError(
                "this server keeps no checkpoints: start it with checkpointer=DefaultCheckpointer(path)"
            )
        return self._checkpointer.save(self.tables)

    def attend(self) -> Future[None]:
        """A future that ends with an error when the service or the connection to it ends, and never otherwise."""
        attending: Future[None] = Future()
        with self._lock:
            closed = self._closed
            if not closed:
                self._attending.add(attending)
        attending.add_done_callback(self._attending.discard)
        if closed:
            attending.set_exception(ServerStopped("the replay server was stopped"))
        return attending

    def present(self) -> Future[None]:
        """A future that is done while the service takes calls. Once it does not, only the connection's end ends it."""
        answer: Future[None] = Future()
        if not self._closed:
            answer.set_result(None)
        return answer

    def server_info(self) -> dict[str, TableInfo]:
        """`TableInfo` of every table."""
        return {name: table.info for name, table in self.tables.items()}

    def close(self, reason: str = "the replay server was stopped") -> None:
        """Fails every waiting call at once with a `ServerStopped` that says `reason`; ends the service's threads."""
        with self._lock:
            self._closed = True
            streams = list(self._streams.values())
            self._streams.clear()
            attending = list(self._attending)
        for table in self.tables.values():
            table.close(reason)
        for each in attending:
            if each.set_running_or_notify_cancel():
                each.set_exception(ServerStopped(reason))
        for stream in streams:
            stream.close()
        self._alarms.close()
        self._copiers.close()
        self.lent_memory.close()


def _tell_all(first: Future[Occupancy], others: Sequence[Table], reply: Future[list[Occupancy]]) -> None:
    if first.cancelled() or not reply.set_running_or_notify_cancel():
        return
    error = first.exception()
    if error is not None:
        reply.set_exception(error)
    else:
        reply.set_result([first.result(), *[table.occupancy for table in others]])


def _expire(table: Table, request: SampleRequest, timeout_s: float) -> None:
    text = f"no {request.count} samples within {timeout_s} s from table {table.describe()}"
    table.cancel(request, ReplayDeadlineExceeded(text))


def _withdraw(table: Table, request: SampleRequest, reply: Future[SampleBatch]) -> None:
    if reply.cancelled():
        table.cancel(request, ReplayError("the sampler was closed"))
