"""The server's end of a writer: turns its batches into rows and inserts."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt

from topology.errors import ReplayError, TableNotFound
from topology.nodes.replay.checks import check_priority
from topology.nodes.replay.items import RowMatrix
from topology.nodes.replay.layouts import Layout, Store
from topology.nodes.replay.messages import ItemRun, LentArray, StreamLost, WriteBatch, WriteItem
from topology.nodes.replay.options import check_priorities
from topology.nodes.replay.requests import InsertRequest
from topology.nodes.replay.storage import RowGroup
from topology.nodes.replay.table import Table

__all__ = ["Stream", "find_table"]

_Submit = Callable[[Table, InsertRequest], None]


def find_table(tables: Mapping[str, Table], name: str) -> Table:
    """The table of that name.

    Raises:
        TableNotFound: lists the names there are.
    """
    table = tables.get(name)
    if table is None:
        raise TableNotFound(f"no table {name!r} on this server; its tables are {', '.join(sorted(tables))}")
    return table


class _Checked(NamedTuple):
    table: Table
    layout: Layout
    run: ItemRun


@final
class Stream:
    """A window of one writer's steps, and the batches that arrive for it. Thread-safe.

    Batches that overtake one another on the way are put back in order. When one is refused, nothing of it is kept and
    the stream is lost: what the writer believes the server holds is no longer so.

    Attributes:
        number: how many streams the writer had before.
        used_s, visit: when it was last written to, and over which connection, for its owner.
    """

    def __init__(self, number: int, store: Store, tables: Mapping[str, Table], submit: _Submit) -> None:
        self.number = number
        self.used_s = 0.0
        self.visit = 0
        self._store = store
        self._tables = tables
        self._submit = submit
        self._lock = threading.Lock()
        self._early: dict[int, tuple[WriteBatch | WriteItem, Future[None]]] = {}
        self._next_number = 0
        self._group: RowGroup | None = None
        self._layouts: list[Layout] = []
        self._admitted: set[tuple[str, int]] = set()
        self._first = 0  # step of the first row in the window
        self._rows: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._lost = False
        self._waiting: dict[Future[None], list[tuple[Table, InsertRequest]]] = {}

    def write(self, batch: WriteBatch | WriteItem) -> Future[None]:
        """Applies a batch when its turn comes. The result is there when every item of it is in its table."""
        reply: Future[None] = Future()
        with self._lock:
            if batch.number < self._next_number or batch.number in self._early:
                _fail(reply, ReplayError(f"message {batch.number} of writer {batch.writer:x} has come before"))
                return reply
            self._early[batch.number] = (batch, reply)
            while (turn := self._early.pop(self._next_number, None)) is not None:
                self._next_number += 1
                self._take_turn(*turn)
        return reply

    @property
    def lost(self) -> bool:
        """Whether the stream has ended, for one reason or another."""
        return self._lost

    def close(self) -> None:
        """Lets go of the window. Items keep their steps."""
        with self._lock:
            self._lose()

    def abandon(self) -> None:
        """Ends a stream whose writer has begun another: its items that still wait come again there."""
        with self._lock:
            self._lose()
            waiting = [pair for requests in self._waiting.values() for pair in requests]
            early, self._early = list(self._early.values()), {}
        error = StreamLost("the writer has begun another stream")
        for _, reply in early:
            _fail(reply, error)
        for table, request in waiting:
            table.cancel(request, error)

    def _take_turn(self, batch: WriteBatch | WriteItem, reply: Future[None]) -> None:
        if reply.cancelled():  # the writer is gone
            self._lose()
            return
        if self._lost:
            _fail(reply, StreamLost("an earlier batch of this stream was refused, or the stream was closed"))
            return
        try:
            requests = [self._apply_item(batch, reply)] if isinstance(batch, WriteItem) else self._apply(batch, reply)
        except Exception as error:  # noqa: BLE001  (whatever it is belongs to the writer)
            self._lose()
            _fail(reply, error)
            return
        for table, request in requests:
            self._submit(table, request)
        if requests and not reply.done():
            self._waiting[reply] = requests
            reply.add_done_callback(self._settled)
        if isinstance(batch, WriteBatch) and batch.last:
            self._lose()

    def _settled(self, reply: Future[None]) -> None:
        requests = self._waiting.pop(reply, [])
        if reply.cancelled():
            _withdraw(requests)

    def _lose(self) -> None:
        self._lost = True
        if self._group is not None:
            self._group.release(self._rows)
        self._rows = self._rows[:0]

    def _window(self, batch: WriteBatch | WriteItem) -> RowGroup:
        """Where the steps of a batch go."""
        if batch.columns is not None:
            if self._group is not None:
                self._group.release(self._rows)
            self._group = self._store.group(batch.columns)
            self._rows, self._layouts = self._rows[:0], []
            self._admitted.clear()
        group = self._group
        if group is None:
            raise StreamLost(f"writer {batch.writer:x} has no stream here: begin a new one")
        if batch.layouts:
            self._layouts.extend([self._store.layout(group, spec) for spec in batch.layouts])
        return group

    def _apply_item(self, item: WriteItem, reply: Future[None]) -> tuple[Table, InsertRequest]:
        group = self._window(item)
        table, layout = self._admit(item.table, item.layout)
        priorities = np.array([check_priority(item.table, item.priority)])
        if isinstance(item.values, LentArray):
            raise _unknown_memory()
        if len(item.values) != layout.offsets.size:
            raise ReplayError(f"an item of {layout.offsets.size} steps has come with {len(item.values)}")
        rows = group.take(layout.offsets.size)
        try:
            group.columns[0].write(rows, item.values)
        except BaseException:
            group.release(rows)
            raise
        # The reference to each row is the item's from the start.
        matrix: RowMatrix = rows.astype(np.int32)[None]
        done = functools.partial(_report, reply)
        request = InsertRequest(layout, matrix, priorities, item.episode, done, writer=item.writer, serial=item.serial)
        return table, request

    def _apply(self, batch: WriteBatch, reply: Future[None]) -> list[tuple[Table, InsertRequest]]:
        group = self._window(batch)
        checked = [self._check(run) for run in batch.runs]
        self._append(batch, group)
        # What waits must not keep the message alive, whose buffers the arrays in it refer to: hence the copies.
        done = _countdown(len(checked), reply)
        requests = [
            (
                table,
                InsertRequest(
                    layout,
                    self._item_rows(layout, run),
                    np.array(run.priorities),
                    run.episode,
                    done,
                    writer=batch.writer,
                    serial=run.serial,
                ),
            )
            for table, layout, run in checked
        ]
        for _, request in requests:
            group.retain(request.rows)
        self._drop_before(batch.keep_from)
        return requests

    def _check(self, run: ItemRun) -> _Checked:
        table, layout = self._admit(run.table, run.layout)
        check_priorities(run.table, run.priorities)
        return _Checked(table, layout, run)

    def _admit(self, name: str, number: int) -> tuple[Table, Layout]:
        """A table and a layout, if items of that layout may be in that table."""
        table = find_table(self._tables, name)
        layout = self._layouts[number]
        if (name, number) not in self._admitted:
            table.check_item(layout)
            table.check_steps(layout.item_steps)
            self._admitted.add((name, number))
        return table, layout

    def _append(self, batch: WriteBatch, group: RowGroup) -> None:
        if batch.num_steps:
            if batch.first_step != self._first + self._rows.size:
                self._drop_before(batch.first_step)
                self._first = batch.first_step
            self._rows = np.concatenate([self._rows, group.take(batch.num_steps)])
        for column, first_step, values in batch.cells:
            if isinstance(values, LentArray):
                raise _unknown_memory()
            at = first_step - self._first
            if not 0 <= at <= self._rows.size - len(values):
                raise ReplayError(f"cells of steps from {first_step} on are outside the window of the stream")
            group.columns[column].write(self._rows[at : at + len(values)], values)

    def _item_rows(self, layout: Layout, run: ItemRun) -> RowMatrix:
        steps = run.first_steps[:, None] + (layout.offsets - self._first)
        if steps.size and not (steps.min() >= 0 and steps.max() < self._rows.size):
            raise ReplayError(f"table {run.table!r}: an item refers to steps outside the window of the stream")
        rows: RowMatrix = self._rows[steps].astype(np.int32)
        return rows

    def _drop_before(self, step: int) -> None:
        count = min(max(step - self._first, 0), self._rows.size)
        if count and self._group is not None:
            self._group.release(self._rows[:count])
            self._rows = self._rows[count:]
            self._first += count


def _countdown(count: int, reply: Future[None]) -> Callable[[Exception | None], None]:
    """A callback for `count` ends: the last one sets the result, the first error if there was one."""
    lock = threading.Lock()
    errors: list[Exception] = []
    left = count

    def done(error: Exception | None) -> None:
        nonlocal left
        with lock:
            left -= 1
            if error is not None:
                errors.append(error)
            if left:
                return
        _report(reply, errors[0] if errors else None)

    if not count and reply.set_running_or_notify_cancel():
        reply.set_result(None)
    return done


def _report(reply: Future[None], error: Exception | None) -> None:
    if error is not None:
        _fail(reply, error)
    elif reply.set_running_or_notify_cancel():
        reply.set_result(None)


def _unknown_memory() -> StreamLost:
    return StreamLost("memory of the writer has gone: begin anew, and send the bytes")


def _fail(reply: Future[None], error: Exception) -> None:
    if reply.set_running_or_notify_cancel():
        reply.set_exception(error)


def _withdraw(requests: list[tuple[Table, InsertRequest]]) -> None:
    """When the writer has gone away, its waiting items go too: nobody is left whom the limiter could hold back."""
    for table, request in requests:
        table.cancel(request, ReplayError("the writer went away"))
