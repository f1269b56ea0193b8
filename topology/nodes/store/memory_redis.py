"""The memory backend "redis:": an index in a stream, the frames beside it, both in a Redis server.

What is stored is acknowledged by the server and leaves it when the trainer has acknowledged it: writers and the trainer
may come, go and be killed. With `appendonly yes` the server may, too. What others put there is refused, and skipped.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
from typing import Any, final

from topology.clock import Deadline
from topology.errors import StoreClosed, StoreDataError, StoreDeadlineExceeded, StoreFull
from topology.nodes.store import redis_scripts as scripts
from topology.nodes.store.bounds import check_reachable
from topology.nodes.store.experience import Experience
from topology.nodes.store.memory import MAX_BYTES, MAX_STEPS, MemoryBackend, MemoryStats
from topology.nodes.store.packing import AUTO, Packer
from topology.nodes.store.parcel import Parcel
from topology.nodes.store.redis_entries import Entry, amount_of, enough, entry_of, experience_of
from topology.nodes.store.redis_eviction import refuse_eviction
from topology.nodes.store.redis_link import Call, RedisLink
from topology.nodes.store.redis_storing import RedisPipeline, RedisStoring
from topology.nodes.store.shelf import Wish

__all__ = ["RedisMemory"]

_logger = logging.getLogger(__name__)

_MOST_IDS = 1000  # in one call
_KEYS = ("state", "stream", "sizes", "queue", "bell")


@final
class RedisMemory(MemoryBackend):
    """A handle of a memory in Redis.

    Args:
        url: of the server.
        name: of the memory.
        max_steps: most steps it keeps.
        max_bytes: most bytes of frames: the columns as they are sent, packed if they are.
        packing: how writers pack columns: "lz4", "zstd", "zlib", None for not, or "auto": lz4 where its package is
            installed, for as long as it makes them smaller.
        patience_s: how long a server that is not there is waited for, in seconds.

    Raises:
        ValueError: the URL, the name or the packing makes no sense, or the memory exists with other bounds.
        ImportError: redis-py, or the package of the packing, is not installed.
        StoreUnavailable: the server is not there.
        StoreDenied: it does not let us in, or may throw away what it keeps.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str,
        max_steps: int = MAX_STEPS,
        max_bytes: int = MAX_BYTES,
        packing: str | None = AUTO,
        patience_s: float = 30.0,
    ) -> None:
        if set(name) & set("{} \r\n"):
            raise ValueError(f"the name of a memory in Redis has no spaces and braces, got {name!r}")
        self._arguments = url, name, max_steps, max_bytes, packing, patience_s
        self._name = name
        self._bounds = max_steps, max_bytes
        self._prefix = b"topology:{%s}:" % name.encode()
        self._link = RedisLink(url, name, patience_s)
        self._storing = RedisStoring(
            self._link, self._prefix, bounds=self._bounds, packer=Packer(packing), reopen=self._reopen
        )
        self._lock = threading.Lock()
        self._reading = threading.RLock()
        self._reader: bytes | None = None
        self._seen = b"0-0"  # the last entry that has come here
        self._left: list[Experience] = []  # delivered by the server, and not handed out
        try:
            self._open()
        except BaseException:
            self._link.close()
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_again, self._arguments

    def __repr__(self) -> str:
        return f"<RedisMemory {self._name!r}>"  # the URL may have a password in it

    # -- writers ------------------------------------------------------------------------------------------------------

    def _store(self, parcel: Parcel, deadline: Deadline) -> str:
        offer = self._storing.begin(parcel)
        try:
            stored = self._storing.store(offer, deadline) or self._storing.withdraw(offer)
        finally:
            self._storing.end(offer)
        if stored is None:
            raise StoreFull(
                f"no room for {parcel.steps} steps came in the time allowed, and they were not stored: "
                f"{self._explain()}"
            )
        return stored

    def _make_writer(self, max_in_flight: int) -> RedisPipeline:
        return RedisPipeline(self._storing, max_in_flight, self._explain)

    # -- the reader ---------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        reader = secrets.token_hex(8).encode()
        attach = Call(scripts.ATTACH, self._keys(*_KEYS), (reader,))
        with self._reading:
            while self._link.ask([attach])[0] == -1:
                self._reopen()
            self._reader, self._seen, self._left = reader, b"0-0", []

    def _fetch(self, wish: Wish, deadline: Deadline) -> list[Experience]:
        check_reachable(wish, self._bounds[0])
        got = self._take_left()
        try:
            while (missing := wish.number - amount_of(got, wish)) > 0:
                new = self._take(missing, b"episodes" if wish.of_episodes else b"steps", deadline)
                if new is not None:
                    got += new
                else:
                    self._wait_for_more(wish, deadline)
        except BaseException:
            self._put_left(got)
            raise
        count = enough(got, wish)
        self._put_left(got[count:])  # when what was refused had made others come in its place
        return got[:count]

    def _wait_for_more(self, wish: Wish, deadline: Deadline) -> None:
        if deadline.expired:
            raise StoreDeadlineExceeded(f"{wish} did not come in the time allowed: {self._explain()}")
        self._link.sleep_until_rung(self._keys("bell")[0], deadline)

    def _fetch_available(self, max_steps: int | None) -> list[Experience]:
        left = self._take_left()
        if left and max_steps is not None:
            self._put_left(left[1:])
            return left[:1]
        return left + (self._take(max_steps or self._bounds[0], b"available", Deadline(None)) or [])

    def _take(self, number: int, what: bytes, deadline: Deadline) -> list[Experience] | None:
        """Has experience delivered; None when there is not enough."""
        keys = self._keys("state", "stream", "sizes", "bell")
        while True:
            with self._reading:
                if self._reader is None:
                    self.recover()
                arguments = (self._reader or b"", b"%d" % number, what, self._seen)
                reply = self._link.ask([Call(scripts.TAKE, keys, arguments)], deadline)[0]
                if reply[0] == 0:
                    return None
                if reply[0] == 1:
                    new = self._read([entry_of(*pair) for pair in zip(reply[1::2], reply[2::2], strict=True)])
                    self._seen = (
                        reply[-2] if reply[1:] else self._seen
                    )  # not before: what is lost on the way comes again
                    return new
            if reply[0] == -2:
                raise StoreClosed(
                    f"another handle has become the reader of memory {self._name!r}, and gets what was not "
                    "acknowledged; a memory has one reader at a time. recover() takes it back"
                )
            self._reopen()
            self._reader = None

    def _read(self, entries: list[Entry]) -> list[Experience]:
        """Gets the frames of entries. What is no experience is refused, and leaves the stream."""
        known = [entry for entry in entries if entry.data]
        frames = self._link.ask([(b"MGET", *(entry.data for entry in known))])[0] if known else []
        refused = {entry.id: "it was not stored by this project" for entry in entries if not entry.data}
        experiences = []
        for entry, frame in zip(known, frames, strict=True):
            try:
                experiences.append(experience_of(entry, frame))
            except (StoreDataError, TypeError, ValueError) as error:
                refused[entry.id] = str(error)
        if refused:
            for id_, why in refused.items():
                _logger.error("memory %r: entry %s is refused and skipped: %s", self._name, id_.decode(), why)
            self._let_go(list(refused), refused=len(refused))
        return experiences

    def _acknowledge(self, ids: list[str]) -> None:
        if self._reader is None:
            self.recover()
        for first in range(0, len(ids), _MOST_IDS):
            self._let_go([id_.encode() for id_ in ids[first : first + _MOST_IDS]])

    def _let_go(self, ids: list[bytes], refused: int = 0) -> None:
        keys = self._keys("state", "stream", "sizes", "queue")
        self._link.ask([Call(scripts.ACKNOWLEDGE, keys, (b"%d" % refused, *ids))])

    def _take_left(self) -> list[Experience]:
        with self._lock:
            left, self._left = self._left, []
        return left

    def _put_left(self, experiences: list[Experience]) -> None:
        with self._lock:
            self._left = experiences + self._left

    # -- both ---------------------------------------------------------------------------------------------------------

    def stats(self) -> MemoryStats:
        reply = self._link.ask([Call(scripts.STATS, self._keys("state", "queue"))])[0]
        stored, acknowledged, refused, *sums, blocked = [int(number or 0) for number in reply]
        _, steps, nbytes, episodes, held, held_steps, held_bytes, held_episodes = sums
        return MemoryStats(
            stored=stored,
            delivered=acknowledged + held,
            acknowledged=acknowledged,
            refused=refused,
            waiting_steps=steps - held_steps,
            waiting_episodes=episodes - held_episodes,
            waiting_bytes=nbytes - held_bytes,
            writers_blocked=blocked,
        )

    def delete(self) -> None:
        """See `MemoryBackend`. What remains of its writers, a line each, the server forgets within a day."""
        self._link.ask([Call(scripts.DELETE, self._keys(*_KEYS))])

    def expire(self, after_s: float) -> None:
        self._link.ask([Call(scripts.EXPIRE, self._keys(*_KEYS), (b"%d" % max(1, math.ceil(after_s)),))])

    def close(self) -> None:
        self._link.close()

    def _explain(self) -> str:
        stats = self.stats()
        held = (stats.delivered or 0) - (stats.acknowledged or 0)
        return (
            f"{stats.waiting_steps} steps ({stats.waiting_episodes} episodes, {stats.waiting_bytes} bytes) wait for "
            f"the reader and {held} experiences are delivered and not acknowledged, of max_steps={self._bounds[0]} and "
            f"max_bytes={self._bounds[1]}; {stats.writers_blocked} writers wait for room"
        )

    def _open(self) -> None:
        bounds = tuple(b"%d" % bound for bound in self._bounds)
        made, *found = self._link.ask([Call(scripts.OPEN, self._keys("state", "stream"), bounds)])[0]
        if not all(bound is not None and bound.isdigit() for bound in found):
            raise StoreDataError(
                f"memory {self._name!r} was not made by this project, or was damaged: its bounds are {found}. Take "
                "another name, or remove what lies there with delete() of a handle that is open, or by its keys"
            )
        if tuple(found) != bounds:
            raise ValueError(
                f"memory {self._name!r} is there with max_steps={int(found[0])} and max_bytes={int(found[1])}, not "
                f"with {self._bounds[0]} and {self._bounds[1]}"
            )
        info = bytes(self._link.ask([(b"INFO",)])[0])
        told = dict(line.partition(b":")[::2] for line in info.split(b"\r\n"))
        refuse_eviction(told.get(b"maxmemory_policy", b"").decode(), int(told.get(b"maxmemory", b"0")))
        if made and b"\r\naof_enabled:1\r\n" not in info:
            _logger.warning(
                "memory %r: this Redis server forgets all when it is restarted; with `appendonly yes` it does not",
                self._name,
            )

    def _reopen(self) -> None:
        _logger.error("memory %r: the Redis server has lost what it kept; going on with an empty memory", self._name)
        self._open()

    def _keys(self, *names: str) -> tuple[bytes, ...]:
        return tuple(self._prefix + name.encode() for name in names)


def _open_again(url: str, name: str, *rest: Any) -> RedisMemory:
    return RedisMemory(
        url, name=name, **dict(zip(("max_steps", "max_bytes", "packing", "patience_s"), rest, strict=True))
    )
