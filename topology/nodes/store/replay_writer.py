"""How experience gets into the tables of a replay service: one at a time, or several on their way."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from typing import final

from topology.clock import Deadline
from topology.errors import ReplayDeadlineExceeded, StoreClosed, StoreFull
from topology.nodes import replay
from topology.nodes.store.memory_writer import MemoryWriter
from topology.nodes.store.packing import Packer
from topology.nodes.store.parcel import Parcel
from topology.nodes.store.replay_items import Frame, pack

__all__ = ["ReplayPipeline", "ReplayWriter"]

_LEAST_S = 0.1  # what a confirmation may take, however little time there is for room to come
_MOST_WIDTHS = 8  # of rows, each of which is a column of its own, with memory for every step at the server
_MOST_MESSAGES = 3  # of a writer of replay, which blocks for as long as more are under way


@final
class ReplayWriter:
    """For one thread at a time.

    Args:
        client: of the replay server.
        name: of the memory.
        packer: says how columns are packed.
    """

    def __init__(self, client: replay.Client, name: str, packer: Packer) -> None:
        self._client = client
        self._name = name
        self._packer = packer
        self._ids = secrets.token_hex(6)
        self._number = 0
        self._writer: replay.TrajectoryWriter | None = None
        self._widths: set[int] = set()  # of the writer's columns
        self._width = 0

    def pack(self, parcel: Parcel) -> Frame:
        """An experience to be sent, with an id of its own."""
        self._number += 1
        id_ = f"{self._ids}-{os.getpid()}-{self._number}"  # a fork counts on from here, too
        frame = pack(parcel, id_, self._packer, self._width)
        self._width = frame.rows.shape[1]
        return frame

    def takes(self, frame: Frame) -> bool:
        """Whether it can be sent behind those that are under way; otherwise all of these must be confirmed first."""
        return frame.rows.shape[1] in self._widths or len(self._widths) < _MOST_WIDTHS

    def send(self, frame: Frame) -> None:
        """Sends it. Blocks while as many messages are under way as a writer of replay allows."""
        if not self.takes(frame):
            self.close()
        if self._writer is None:
            self._writer = self._client.trajectory_writer(1)
        steps, width = frame.rows.shape
        self._widths.add(width)
        column = f"{width}"
        self._writer.append_batch({column: frame.rows})
        with self._writer.one_message():
            self._writer.create_item(self._name, 0.0, self._writer.history[column][-steps:])

    def confirm(self, most: int, timeout_s: float) -> bool:
        """Waits until at most so many experiences are not in the memory; whether that came in time."""
        if self._writer is None:
            return True
        try:
            self._writer.flush(most, timeout_ms=int(1000 * max(_LEAST_S, timeout_s)))
        except ReplayDeadlineExceeded:
            return False
        return True

    def take_back(self) -> bool:
        """Takes back what is not in the memory; whether there was something."""
        return self._writer is not None and self._writer.take_back(self._name) > 0

    def close(self) -> None:
        """Lets go of what the server holds for it; does not wait."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None
        self._widths = set()


@final
class ReplayPipeline(MemoryWriter):
    """Sends one after the other, and hears later that they are stored.

    Args:
        writer: of its own.
        told: runs what speaks to the server, and says what went wrong in the words of this room.
        check: raises what `store` is to raise.
        max_in_flight: experiences under way.
        explain: says how the memory is, for the error's text.
        slice_s: of a wait, after which it looks whether the handle is closed.
    """

    def __init__(
        self,
        writer: ReplayWriter,
        told: Callable[[Callable[[], bool | None]], bool | None],
        check: Callable[[int], None],
        *,
        max_in_flight: int,
        explain: Callable[[], str],
        slice_s: float,
    ) -> None:
        self._writer = writer
        self._told = told
        self._check = check
        self._most = min(max_in_flight, _MOST_MESSAGES)
        self._explain = explain
        self._slice_s = slice_s
        self._closed = False

    def _store(self, parcel: Parcel, deadline: Deadline) -> None:
        if self._closed:
            raise StoreClosed("this writer is closed; open another")
        self._check(parcel.steps)
        frame = self._writer.pack(parcel)
        self._settle(self._most - 1 if self._writer.takes(frame) else 0, deadline)
        self._told(lambda: self._writer.send(frame))

    def flush(self, timeout_s: float | None = None) -> None:
        self._settle(0, Deadline(timeout_s))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._writer.close()

    def _settle(self, most: int, deadline: Deadline) -> None:
        while not self._told(lambda: self._writer.confirm(most, slice_of(deadline, self._slice_s))):
            self._check(0)
            if deadline.expired:
                raise StoreFull(
                    "no room for what was stored before came in the time allowed; it waits for it still, and nothing "
                    f"more was taken: {self._explain()}"
                )


def slice_of(deadline: Deadline, slice_s: float) -> float:
    """What is left of the time, or a slice of it, in seconds."""
    left_s = deadline.remaining()
    return slice_s if left_s is None else min(slice_s, left_s)
