"""How experience gets into the tables of a replay service: one at a time, or several on their way."""

from __future__ import annotations

import functools
import secrets
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple, final

from topology.clock import Deadline
from topology.errors import ConnectionBroken, StoreClosed, StoreFull
from topology.nodes import replay
from topology.nodes.courier.calls import CallFuture
from topology.nodes.replay.forks import tell_in_child
from topology.nodes.replay.messages import ServerStopped, StreamLost
from topology.nodes.replay.stopping import reason_of
from topology.nodes.store.memory_writer import MemoryWriter
from topology.nodes.store.packing import Packer
from topology.nodes.store.parcel import Parcel
from topology.nodes.store.replay_items import Frame, pack
from topology.nodes.store.replay_presence import Presence
from topology.nodes.store.replay_stream import ReplayStream

__all__ = ["ReplayPipeline", "ReplayWriter"]

_LEAST_S = 0.1  # what a confirmation may take, however little time there is for room to come


class _UnderWay(NamedTuple):
    frame: Frame
    serial: int
    stored: Future[None] | None  # None: not sent, or lost on the way


@final
class ReplayWriter:
    """For one thread at a time. What was under way when the server went away is sent again when it is back.

    Args:
        client: of the replay server.
        name: of the memory.
        packer: says how columns are packed.
        patience_s: how long a server that went away is waited for, in seconds.
    """

    def __init__(self, client: replay.Client, name: str, packer: Packer, patience_s: float) -> None:
        self._client = client
        self._name = name
        self._packer = packer
        self._patience_s = patience_s
        self._width = 0
        self._begin()
        tell_in_child(self)

    def forked(self) -> None:
        """In a forked child: what is under way is for the parent, and what comes is from somebody else."""
        self._begin()

    def _begin(self) -> None:
        self._ids = secrets.token_hex(6)
        self._made = 0
        self._stream = ReplayStream(self._name)
        self._presence = Presence(self._client, self._name, self._patience_s)
        self._under_way: deque[_UnderWay] = deque()

    def pack(self, parcel: Parcel) -> Frame:
        """An experience to be sent, with an id of its own."""
        frame = pack(parcel, f"{self._ids}-{self._made}", self._packer, self._width, self._client.regions)
        self._width = frame.rows.shape[1]
        return frame

    def send(self, frame: Frame) -> None:
        """Sends it, and does not wait for the server to have it.

        Raises:
            CourierError: it cannot be sent. What was under way is lost.
        """
        self._under_way.append(_UnderWay(frame, self._made, None))
        self._made += 1
        self._send_what_is_left(lend=True)

    def _send_what_is_left(self, *, lend: bool) -> None:
        """Sends what was not sent or lost, in order: the table takes nothing that comes after what was made later."""
        for at, (frame, serial, sent) in enumerate(self._under_way):
            if sent is not None:
                continue
            rows = frame.lent if lend and frame.lent is not None else frame.rows
            try:
                stored = self._client.submit_insert(self._stream.message(serial, rows))
            except BaseException as error:
                self._lose()  # an interrupt: nobody knows whether it was sent
                if isinstance(error, Exception):
                    self._under_way.clear()  # it cannot be sent, which is told
                raise
            if isinstance(stored, CallFuture):
                # Until there is an answer the server may read what it is lent, whatever becomes of this writer.
                stored.afterwards(functools.partial(_keep, frame))
            self._under_way[at] = _UnderWay(frame, serial, stored)

    def _lose(self) -> None:
        """Nobody knows what the server has got of that which is under way."""
        lost = list(self._under_way)
        self._under_way = deque(under_way._replace(stored=None) for under_way in lost)
        self._stream.begin_anew()
        for under_way in lost:
            _ignore(under_way.stored)

    def confirm(self, most: int, timeout_s: float) -> bool:
        """Waits until at most so many experiences are not in the memory; whether that came in time.

        Raises:
            ConnectionBroken: the server went away, and did not come back in time. What is under way stays so.
            ReplayError: it refuses something. What was under way is lost.
        """
        deadline = Deadline(max(_LEAST_S, timeout_s))
        while len(self._under_way) > most:
            stored = self._under_way[0].stored
            if stored is None:
                if self._presence.answers(deadline.remaining()):
                    self._send_what_is_left(lend=False)  # a server that has begun anew knows of no memory of ours
                elif deadline.expired:
                    return False
            elif not self._is_stored(stored, deadline):
                return False
        return True

    def _is_stored(self, stored: Future[None], deadline: Deadline) -> bool:
        """Whether the oldest is in the memory, or was lost on its way to it, before the deadline."""
        try:
            stored.result(deadline.remaining())
        except (ConnectionBroken, ServerStopped, StreamLost) as error:
            reason = reason_of(error)
            if reason is not error:
                raise reason from reason.__cause__
            self._lose()
            return True
        except TimeoutError:
            if not stored.done():
                self._presence.answers(0.0)
                return False
            self._give_up()
            raise
        except Exception:
            self._give_up()
            raise
        self._under_way.popleft()
        self._presence.heard()
        return True

    def take_back(self) -> bool:
        """Takes back what is not in the memory; whether there was something. What is under way is confirmed then.

        Raises:
            ConnectionBroken: the server is not there. It is still under way.
        """
        if not self._under_way:
            return False
        while not self._presence.answers(None):
            pass  # until the patience ends
        return self._client.take_back(self._name, self._stream.writer, self._made) > 0

    def _give_up(self) -> None:
        self._lose()
        self._under_way.clear()

    def close(self) -> None:
        """Lets go of what the server holds for it; does not wait."""
        if self._stream.is_open:
            _ignore(self._client.submit_insert(self._stream.farewell()))
        self._give_up()


def _keep(frame: Frame, result: object, error: BaseException | None) -> None:
    """The end of a frame's life."""


def _ignore(future: Future[None] | None) -> None:
    """Nobody will ask for its result."""
    if isinstance(future, CallFuture):
        future.ignore()


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
        self._most = max_in_flight
        self._explain = explain
        self._slice_s = slice_s
        self._closed = False

    def _store(self, parcel: Parcel, deadline: Deadline) -> None:
        if self._closed:
            raise StoreClosed("this writer is closed; open another")
        self._check(parcel.steps)
        frame = self._writer.pack(parcel)
        self._settle(self._most - 1, deadline)
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
