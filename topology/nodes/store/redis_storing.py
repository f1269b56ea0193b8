"""The writers' side of a memory in Redis: one experience at a time, or several on their way.

An experience is sent as two commands: its frame, and the script that makes it visible when there is room. A writer has
a number for each, which the server remembers, so that what is sent again is not stored again.
"""

from __future__ import annotations

import enum
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

from topology.clock import Deadline
from topology.errors import StoreClosed, StoreFull
from topology.nodes.store import redis_scripts as scripts
from topology.nodes.store.bounds import check_fits
from topology.nodes.store.codec import Buffer, encode, size_of
from topology.nodes.store.memory_writer import MemoryWriter
from topology.nodes.store.packing import Packer
from topology.nodes.store.parcel import Parcel
from topology.nodes.store.redis_entries import RedisWriter
from topology.nodes.store.redis_link import Call, Command, RedisLink
from topology.nodes.store.redis_wire import Argument, WireBroken

__all__ = ["Offer", "RedisPipeline", "RedisStoring"]

_DATA_S = 60  # how long a frame that nobody made visible stays


class Offer(NamedTuple):
    """An experience on its way."""

    writer: RedisWriter
    frame: list[Buffer]
    steps: int
    whole_episode: bool


@final
class RedisStoring:
    """Thread-safe.

    Args:
        link: to the server.
        prefix: of the memory's keys.
        bounds: of the memory, in steps and bytes.
        packer: says how columns are packed.
        reopen: called when the server knows nothing of the memory any more.
    """

    def __init__(
        self,
        link: RedisLink,
        prefix: bytes,
        *,
        bounds: tuple[int, int],
        packer: Packer,
        reopen: Callable[[], None],
    ) -> None:
        self.link = link
        self._prefix = prefix
        self._bounds = bounds
        self._packer = packer
        self._reopen = reopen
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._writers: list[RedisWriter] = []

    def begin(self, parcel: Parcel) -> Offer:
        """An offer of the parcel, whose arrays it refers to. Give it to `end` when nothing more is done with it.

        Raises:
            ValueError: it is larger than the whole memory.
        """
        packing = self._packer.choose()
        frame = encode(parcel.columns, parcel.meta, packing=packing)
        if packing is not None:
            self._packer.note(sum(column.nbytes for column in parcel.columns.values()), size_of(frame))
        check_fits(parcel.steps, size_of(frame), *self._bounds)
        with self._lock:
            if self._process != os.getpid():  # a fork: the parent goes on counting for those that were there
                self._process, self._writers = os.getpid(), []
            writer = self._writers.pop() if self._writers else RedisWriter(self._prefix)
        writer.number += 1
        return Offer(writer, frame, parcel.steps, parcel.whole_episode)

    def end(self, offer: Offer) -> None:
        """The writer of the offer may write another."""
        with self._lock:
            self._writers.append(offer.writer)

    def commands(self, offer: Offer, after: Offer | None = None) -> list[Command]:
        """That store it: the frame, then the script, which refuses it as long as `after` is not stored."""
        writer = offer.writer
        before, number_before = (writer, 0) if after is None else (after.writer, after.writer.number)
        send: tuple[Argument, ...] = b"SET", writer.data, offer.frame, b"EX", b"%d" % _DATA_S
        numbers = (writer.number, offer.steps, size_of(offer.frame), int(offer.whole_episode), number_before)
        return [
            send,
            Call(scripts.STORE, (*self._keys(writer), before.key), tuple(b"%d" % number for number in numbers)),
        ]

    def store(self, offer: Offer, deadline: Deadline, *, must_send: bool = True) -> str | None:
        """Its id, when the server has it; None when there was no room until the deadline. It may be asked for again.

        `must_send`: whether the server may not have the frame.

        Raises:
            StoreUnavailable, StoreError: see `RedisLink.ask`.
        """
        send, store = self.commands(offer)
        while True:
            reply = self.link.ask([send, store] if must_send else [store], deadline)[-1]
            if reply[0] == 1:
                return str(reply[1], "ascii")
            must_send = reply[0] != 0
            if reply[0] == -1:
                self._reopen()
            elif deadline.expired:
                return None
            elif reply[0] == 0:
                self.link.sleep_until_rung(offer.writer.wake, deadline)

    def withdraw(self, offer: Offer) -> str | None:
        """Takes it back; its id when it was stored meanwhile."""
        state, _, _, queue, _, writer, data, wake = self._keys(offer.writer)
        call = Call(scripts.WITHDRAW, (queue, writer, data, wake, state), (b"%d" % offer.writer.number,))
        taken = self.link.ask([call])[0]
        return str(taken, "ascii") if taken else None

    def _keys(self, writer: RedisWriter) -> Sequence[bytes]:
        names = ("state", "stream", "sizes", "queue", "bell")
        return (*(self._prefix + name.encode() for name in names), writer.key, writer.data, writer.wake)


class _Fate(enum.Enum):
    """What is known of an experience that was sent."""

    AWAITED = enum.auto()  # an answer is to come
    STORED = enum.auto()
    SENT = enum.auto()  # the server has its frame, and no room: it is to be gone after
    LEFT = enum.auto()  # nobody knows, say because the connection broke: alike


@final
class RedisPipeline(MemoryWriter):
    """Sends one after the other over a connection of its own, and reads what the server says of them later.

    The server works in the order of the connection, and stores none before the one that was sent before it: so the
    order is kept also where room comes while some have been told that there is none.
    What is not stored at once (no room, a connection that broke) is gone after on its own, the oldest first.

    Args:
        storing: of the memory.
        max_in_flight: experiences under way.
        explain: says how the memory is, for the error's text.
    """

    def __init__(self, storing: RedisStoring, max_in_flight: int, explain: Callable[[], str]) -> None:
        self._storing = storing
        self._most = max_in_flight
        self._explain = explain
        self._line = storing.link.line()
        self._under_way: deque[tuple[Offer, _Fate]] = deque()
        self._closed = False

    def _store(self, parcel: Parcel, deadline: Deadline) -> None:
        if self._closed:
            raise StoreClosed("this writer is closed; open another")
        offer = self._storing.begin(parcel)
        try:
            # Behind what was left alone nothing is sent: it would pass it.
            while len(self._under_way) >= self._most or self._left_alone():
                self._settle(deadline)
            fate = self._send(offer)
        except BaseException:
            self._storing.end(offer)
            raise
        self._under_way.append((offer, fate))

    def flush(self, timeout_s: float | None = None) -> None:
        deadline = Deadline(timeout_s)
        while self._under_way:
            self._settle(deadline)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._line.close()
            self._under_way.clear()  # their writers are not used again: they may still be on their way

    def _left_alone(self) -> bool:
        return any(fate in (_Fate.SENT, _Fate.LEFT) for _, fate in self._under_way)

    def _send(self, offer: Offer) -> _Fate:
        try:
            after = self._under_way[-1][0] if self._under_way else None
            self._line.send(self._storing.commands(offer, after))
        except WireBroken:
            self._read_answers()
            return _Fate.LEFT
        return _Fate.AWAITED

    def _settle(self, deadline: Deadline) -> None:
        """Waits until the oldest is stored."""
        if self._under_way[0][1] is _Fate.AWAITED and self._read_answer() is not _Fate.STORED:
            self._read_answers()
        offer, fate = self._under_way[0]
        if fate is not _Fate.STORED and self._storing.store(offer, deadline, must_send=fate is _Fate.LEFT) is None:
            raise StoreFull(
                f"no room for {offer.steps} steps that were stored before came in the time allowed; they wait for it "
                f"still, and nothing more was taken: {self._explain()}"
            )
        self._under_way.popleft()
        self._storing.end(offer)

    def _read_answer(self) -> _Fate:
        """That to the oldest."""
        offer, _ = self._under_way[0]
        fate = self._receive()
        self._under_way[0] = offer, fate
        return fate

    def _read_answers(self) -> None:
        """Those to all that still have one to come: where one was not stored, none may be sent before it is."""
        self._under_way = deque(
            (offer, self._receive() if fate is _Fate.AWAITED else fate) for offer, fate in self._under_way
        )

    def _receive(self) -> _Fate:
        try:
            replies: list[Any] = self._line.receive(2)
        except WireBroken:
            return _Fate.LEFT
        if not isinstance(replies[1], list):
            return _Fate.LEFT  # refused: say, because the server has forgotten the script
        return {1: _Fate.STORED, 0: _Fate.SENT}.get(replies[1][0], _Fate.LEFT)
