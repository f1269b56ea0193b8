"""Stands in for a slow source: answers from a store that it keeps fresh, whatever the number of clients.

`Cache` decides and does nothing else: events in, decisions out, time passed in. `Cacher` puts it behind a server and in
front of a client. Values are kept as they came over the wire: a hit costs no unpickling, here or of the reply.

The first call of a key (method and arguments) goes through to the source, calls of the same key meanwhile share it.
From then on the key is refreshed every `refresh_interval_s`. A value older than `stale_after_s` is not served: the
caller gets `StaleError` until the source answers again. Exceptions are never kept. A key that nobody asked for during
`idle_refreshes` intervals is not refreshed any more, and fetched anew when it is asked for: if that fails, its value is
served as long as it is not too old. Above `max_keys`, the key that was not asked for longest goes.
"""

from __future__ import annotations

import enum
import functools
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import final

from topology.clock import SYSTEM_CLOCK, Clock
from topology.errors import CourierClosed, MethodNotFound, StaleError
from topology.nodes.courier import codec
from topology.nodes.courier.calls import RawReply
from topology.nodes.courier.client import Client, raw_caller
from topology.nodes.courier.keys import canonical_key
from topology.nodes.courier.server import Server
from topology.nodes.courier.wire import Buffer, Kind

__all__ = ["Cache", "CacheOptions", "Cacher", "Verdict"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """Rules of a cache.

    Attributes:
        refresh_interval_s: seconds between two fetches of a key.
        stale_after_s: age in seconds above which a value is not served.
        max_keys: keys kept.
        idle_refreshes: intervals without a call after which a key is no longer refreshed.
    """

    refresh_interval_s: float
    stale_after_s: float
    max_keys: int = 16
    idle_refreshes: int = 100

    def __post_init__(self) -> None:
        if not self.refresh_interval_s > 0:
            raise ValueError(f"refresh_interval_s={self.refresh_interval_s}: must be above 0")
        if not self.stale_after_s >= self.refresh_interval_s:
            raise ValueError(
                f"stale_after_s={self.stale_after_s}: must not be below refresh_interval_s={self.refresh_interval_s}, "
                "or values would go stale between two refreshes"
            )
        for name in ("max_keys", "idle_refreshes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")


class Verdict(enum.Enum):
    """What is to be done with a call."""

    SERVE = "serve"  # the value that comes with it
    FETCH = "fetch"  # ask the source, then answer all who wait
    WAIT = "wait"  # a fetch is under way
    STALE = "stale"  # refuse: the value is too old and the source does not answer


@dataclass
class _Entry:
    asked: float
    value: RawReply | None = None
    fetched: float = 0.0  # when the fetch that gave the value began: its content may be as old as that
    due: float = 0.0
    fetching_since: float | None = None
    wanted: bool = False  # callers wait for the fetch under way
    error: str = ""


@final
class Cache:
    """The rules, without time, threads or sockets. Not thread-safe."""

    def __init__(self, options: CacheOptions) -> None:
        self._options = options
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def ask(self, key: bytes, now: float) -> tuple[Verdict, RawReply | None]:
        """A call came. FETCH means that the caller of this method now fetches the key."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(asked=now)
            self._evict(spare=key)
        self._entries.move_to_end(key)
        dormant = self._dormant(entry, now)
        entry.asked = now
        if not dormant and self._is_young(entry, now):
            return Verdict.SERVE, entry.value
        waits = entry.error or entry.fetching_since is not None
        if entry.value is not None and waits and not dormant and not entry.wanted:
            return Verdict.STALE, None
        if entry.fetching_since is not None:
            entry.wanted = True
            return Verdict.WAIT, None
        entry.fetching_since, entry.wanted = now, True
        return Verdict.FETCH, None

    def _is_young(self, entry: _Entry, now: float) -> bool:
        return entry.value is not None and now - entry.fetched <= self._options.stale_after_s

    def _dormant(self, entry: _Entry, now: float) -> bool:
        return now - entry.asked > self._options.idle_refreshes * self._options.refresh_interval_s

    def _evict(self, spare: bytes = b"") -> None:
        for key, entry in list(self._entries.items()):
            if len(self._entries) <= self._options.max_keys:
                return
            if not entry.wanted and key != spare:
                del self._entries[key]

    def fetched(self, key: bytes, value: RawReply, now: float) -> None:
        """The source answered a fetch."""
        entry = self._entries.get(key)
        if entry is None:
            return  # evicted meanwhile
        began = entry.fetching_since if entry.fetching_since is not None else now
        entry.value, entry.fetched, entry.error = value, began, ""
        self._end_fetch(entry, now)

    def failed(self, key: bytes, error: str, now: float) -> RawReply | None:
        """The source answered with an exception, or not at all. A key without a value is forgotten.

        Returns:
            The value for those who wait, where there is one that is not too old.
        """
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry.error = error
        if entry.value is None:
            del self._entries[key]
        self._end_fetch(entry, now)
        return entry.value if self._is_young(entry, now) else None

    def _end_fetch(self, entry: _Entry, now: float) -> None:
        began = entry.fetching_since if entry.fetching_since is not None else now
        entry.fetching_since, entry.wanted = None, False
        entry.due = max(now, began + self._options.refresh_interval_s)
        self._evict()  # what was spared because somebody waited for it

    def due(self, now: float) -> list[bytes]:
        """Keys to be refreshed now; counts them as being fetched."""
        keys = []
        for key, entry in self._entries.items():
            if entry.fetching_since is None and entry.due <= now and not self._dormant(entry, now):
                entry.fetching_since = now
                keys.append(key)
        return keys

    def next_due(self, now: float) -> float | None:
        """When `due` has something to say again; None while nothing is to be refreshed."""
        times = [e.due for e in self._entries.values() if e.fetching_since is None and not self._dormant(e, now)]
        return min(times, default=None)

    def staleness(self, key: bytes, now: float) -> tuple[float, str]:
        """Age of the value in seconds, and why there is no newer one."""
        entry = self._entries[key]
        if entry.fetching_since is not None:
            waited = f"a refresh has had no answer for {now - entry.fetching_since:.1f} s"
            return now - entry.fetched, f"{waited}; before: {entry.error}" if entry.error else waited
        return now - entry.fetched, f"last error: {entry.error}"


Source = Callable[[str, Buffer, Sequence[Buffer]], "Future[RawReply]"]
"""What a cacher asks: a call in its serialised form, as `client.raw_caller` makes one of a `Client`."""


@dataclass
class _Key:
    """What it takes to fetch a key, and who waits for it."""

    name: str
    body: Buffer
    buffers: Sequence[Buffer]
    waiting: list[Future[RawReply]] = field(default_factory=list)


@final
class Cacher:
    """Serves calls of a source from a `Cache`.

    Args:
        source: a client of the source, which the cacher closes in the end; or (for tests) what does a raw call.
        options: rules of the cache.
        methods: names that may be called; None for all. Calls of others raise `MethodNotFound`. A cacher must not stand
            in for methods that change something: a repeated call would be answered without being made.
        clock: for tests.
    """

    def __init__(
        self,
        source: Client | Source,
        options: CacheOptions,
        *,
        methods: Collection[str] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._client = source if isinstance(source, Client) else None
        self._source: Source = raw_caller(source) if isinstance(source, Client) else source
        self._options = options
        self._methods = None if methods is None else frozenset(methods)
        self._clock = clock
        self._condition = threading.Condition()  # guards what follows; notified when the next refresh moves
        self._cache = Cache(options)
        self._keys: dict[bytes, _Key] = {}
        self._canonical: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._counts = {"hits": 0, "fetches": 0, "refreshes": 0, "stale": 0, "errors": 0}

    def bind(self, server: Server) -> None:
        """Makes `server` answer all methods that it does not have itself. It closes the cacher when it stops."""
        server.bind_raw("*", self)

    def stats(self) -> dict[str, int]:
        """Counts of hits, first fetches, refreshes, stale answers and errors of the source; number of keys."""
        with self._condition:
            return {**self._counts, "keys": len(self._cache)}

    def __call__(self, name: str, body: Buffer, buffers: Sequence[Buffer]) -> Future[RawReply]:
        """Answers a serialised call. Never blocks."""
        future: Future[RawReply] = Future()
        if self._methods is not None and name not in self._methods:
            raise MethodNotFound(
                f"method {name} not found: this cacher stands in for {', '.join(sorted(self._methods))}"
            )
        key = self._key(name, body, buffers)
        with self._condition:
            if self._closed:
                raise CourierClosed("the cacher is closed")
            now = self._clock.monotonic()
            verdict, value = self._cache.ask(key, now)
            if verdict is Verdict.STALE:
                self._counts["stale"] += 1
                raise self._stale(name, key, now)
            if verdict is not Verdict.SERVE:
                self._keys.setdefault(key, _Key(name, body, buffers)).waiting.append(future)
        if verdict is Verdict.SERVE:
            self._counts["hits"] += 1
            assert value is not None
            future.set_result(value)
        elif verdict is Verdict.FETCH:
            self._counts["fetches"] += 1
            self._fetch(key)
        return future

    def _stale(self, name: str, key: bytes, now: float) -> StaleError:
        age_s, reason = self._cache.staleness(key, now)
        return StaleError(
            f"the value of {name!r} is {age_s:.1f} s old, over the limit of {self._options.stale_after_s:g} s, and the "
            f"source has given no newer one: {reason}; it will be served again once the source answers",
            age_s=age_s,
        )

    def _key(self, name: str, body: Buffer, buffers: Sequence[Buffer]) -> bytes:
        """The canonical form of a call; remembered, since clients repeat the same bytes."""
        raw = (name, b"".join((body, *buffers)))
        with self._condition:
            key = self._canonical.get(raw)
        if key is None:
            args, kwargs = codec.decode(body, buffers)
            key = canonical_key(name, args, kwargs)
            with self._condition:
                self._canonical[raw] = key
                if len(self._canonical) > 4 * self._options.max_keys:
                    self._canonical.popitem(last=False)
        return key

    # --- fetching ------------------------------------------------------------------------------------------------

    def _fetch(self, key: bytes) -> None:
        with self._condition:
            call = self._keys.get(key)
            if call is None or self._closed:
                return  # evicted or closed meanwhile
            if self._thread is None:
                self._thread = threading.Thread(target=self._refresh, name="cacher", daemon=True)
                self._thread.start()
        try:
            future = self._source(call.name, call.body, call.buffers)
        except Exception as error:  # noqa: BLE001 - as if the source had answered with it
            self._settle(key, RawReply(Kind.ERROR, *codec.encode_error(error)), str(error))
            return
        future.add_done_callback(lambda done: self._fetched(key, done))

    def _fetched(self, key: bytes, done: Future[RawReply]) -> None:
        error = CourierClosed("the fetch was cancelled") if done.cancelled() else done.exception()
        if error is not None:
            self._settle(key, RawReply(Kind.ERROR, *codec.encode_error(error)), f"{type(error).__name__}: {error}")
            return
        reply = done.result()
        if reply.kind == Kind.REPLY:
            self._settle(key, reply, None)
        else:
            remote = codec.decode_error(reply.body)
            self._settle(key, reply, f"{type(remote).__name__}: {remote}")

    def _settle(self, key: bytes, reply: RawReply, error: str | None) -> None:
        """Ends a fetch: keeps the value or the reason, answers who waits."""
        with self._condition:
            now = self._clock.monotonic()
            if error is None:
                self._cache.fetched(key, reply, now)
            else:
                self._counts["errors"] += 1
                reply = self._cache.failed(key, error, now) or reply
            call = self._keys.get(key)
            waiting: list[Future[RawReply]] = []
            if call is not None:
                waiting, call.waiting = call.waiting, []
            for gone in [k for k, c in self._keys.items() if k not in self._cache and not c.waiting]:
                del self._keys[gone]
            self._condition.notify_all()
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_result(reply)

    def _refresh(self) -> None:
        """Life of the thread that fetches what is due."""
        while True:
            with self._condition:
                if self._closed:
                    return
                now = self._clock.monotonic()
                keys = self._cache.due(now)
                if not keys:
                    next_due = self._cache.next_due(now)
                    left = None if next_due is None else max(0.0, next_due - now)
                    self._clock.wait_for(self._condition, functools.partial(self._moved, next_due), left)
                    continue
            for key in keys:
                self._counts["refreshes"] += 1
                self._fetch(key)

    def _moved(self, next_due: float | None) -> bool:
        return self._closed or self._cache.next_due(self._clock.monotonic()) != next_due

    def close(self) -> None:
        """Fails the calls that wait and ends the refreshing. Idempotent."""
        with self._condition:
            self._closed = True
            waiting = [future for call in self._keys.values() for future in call.waiting]
            self._keys.clear()
            self._condition.notify_all()
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(CourierClosed("the cacher was closed while this call waited for the source"))
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5.0)
        if self._client is not None:
            self._client.close()
