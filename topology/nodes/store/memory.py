"""Memory backends: how experience comes from workers to the trainer, and none of it is lost on the way.

A backend keeps what is stored until the trainer says that it has used it. It has a bound: what would go over it waits
at its writer. There may be many writers and, at one time, one reader: the handle that fetches.
"""

from __future__ import annotations

import abc
import importlib.metadata
import inspect
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

import numpy.typing as npt

from topology.clock import Deadline
from topology.nodes.store.codec import Plain
from topology.nodes.store.experience import Experience
from topology.nodes.store.memory_writer import MemoryWriter, PlainWriter
from topology.nodes.store.parcel import Parcel, make_parcel
from topology.nodes.store.redis_urls import check_redis_url
from topology.nodes.store.shelf import Wish

__all__ = ["MAX_BYTES", "MAX_STEPS", "MemoryBackend", "MemoryStats", "check_memory_url", "open_memory_backend"]

MAX_STEPS = 100_000
"""Most steps a backend keeps, unless its opener says otherwise."""

MAX_BYTES = 256 << 20
"""Most bytes it keeps."""

_GROUP = "topology.memory_backends"
_BUILT_IN = {
    "local": "topology.nodes.store.memory_local:open_local",
    "replay": "topology.nodes.store.memory_replay:open_replay",
    "redis": "topology.nodes.store.memory_redis:RedisMemory",
    "rediss": "topology.nodes.store.memory_redis:RedisMemory",
    "unix": "topology.nodes.store.memory_redis:RedisMemory",
}


class MemoryStats(NamedTuple):
    """Counts of a backend at one moment; None where it cannot tell.

    Attributes:
        stored: experiences since it began.
        delivered: of these, how many are in a reader's hands or were acknowledged.
        acknowledged: how many were acknowledged.
        refused: what lay there and was no experience: skipped.
        waiting_steps, waiting_episodes, waiting_bytes: what is there and not in a reader's hands.
        writers_blocked: writers that wait for room.
    """

    stored: int | None
    delivered: int | None
    acknowledged: int | None
    refused: int | None
    waiting_steps: int | None
    waiting_episodes: int | None
    waiting_bytes: int | None
    writers_blocked: int | None


class MemoryBackend(abc.ABC):
    """Carries experience. A context manager; thread-safe; pickled, it becomes a handle that connects anew.

    Every wait ends with `ProgramStopped` when the program stops, and with `StoreClosed` when this handle is closed.
    A handle becomes the reader with its first `fetch`, `fetch_available`, `acknowledge` or `recover`. What an earlier
    reader got and did not acknowledge is then delivered again, and that reader's next fetch raises `StoreClosed`.
    """

    def store(
        self,
        columns: Mapping[str, npt.ArrayLike],
        meta: Mapping[str, Plain] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> str:
        """Stores steps; returns their id when the backend has them. Blocks while its bound is reached.

        The arrays may be changed afterwards.

        Args:
            columns: arrays [T, ...] by name, with one T above 0.
            meta: plain data.
            timeout_s: how long to wait for room, in seconds; None for ever.

        Raises:
            TypeError, ValueError: this is no experience, or one that is larger than the whole bound.
            StoreFull: there was no room in that time; nothing was stored.
            StoreUnavailable: the server behind it is not there, or does not let us in.
        """
        return self._store(make_parcel(columns, meta, whole_episode=False), Deadline(timeout_s))

    def store_episode(
        self,
        columns: Mapping[str, npt.ArrayLike],
        meta: Mapping[str, Plain] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> str:
        """Like `store`, and counts as an episode."""
        return self._store(make_parcel(columns, meta, whole_episode=True), Deadline(timeout_s))

    def writer(self, *, max_in_flight: int = 4) -> MemoryWriter:
        """Stores one experience after the other without waiting for each: up to so many are under way.

        Close it before this handle. Backends that have nothing to gain wait for each all the same.

        Raises:
            ValueError: `max_in_flight` is below 1.
        """
        if max_in_flight < 1:
            raise ValueError(f"max_in_flight must be at least 1, got {max_in_flight}")
        return self._make_writer(max_in_flight)

    def _make_writer(self, max_in_flight: int) -> MemoryWriter:
        del max_in_flight
        return PlainWriter(self._store)

    def fetch(
        self, *, num_steps: int | None = None, num_episodes: int | None = None, timeout_s: float | None = None
    ) -> list[Experience]:
        """The oldest experience that was not delivered yet: as little of it as makes up what is asked for.

        Blocks until that much is there. What is in the reader's hands does not count.

        Args:
            num_steps: at least so many steps, in whole experiences; or
            num_episodes: so many episodes, and the steps that were stored among them.
            timeout_s: how long to wait, in seconds; None for ever.

        Raises:
            ValueError: not exactly one of the two is given, or more than the backend ever holds is asked for.
            StoreDeadlineExceeded: it did not come in that time. What is there stays there.
            StoreClosed: another handle has become the reader.
            StoreUnavailable: the server behind it is not there, or does not let us in.
        """
        if (num_steps is None) == (num_episodes is None):
            raise ValueError(f"fetch() needs either num_steps or num_episodes, got {num_steps} and {num_episodes}")
        wanted = num_steps if num_episodes is None else num_episodes
        if not isinstance(wanted, int) or wanted < 1:
            raise ValueError(f"fetch() needs a number of at least 1, got {wanted!r}")
        return self._fetch(Wish(wanted, of_episodes=num_episodes is not None), Deadline(timeout_s))

    def fetch_available(self, *, max_steps: int | None = None) -> list[Experience]:
        """What is there and was not delivered yet, the oldest first; maybe nothing. Does not wait for more.

        Args:
            max_steps: at most so many steps, but at least one experience if there is one.

        Raises:
            ValueError: `max_steps` is below 1.
            StoreClosed, StoreUnavailable: see `fetch`.
        """
        if max_steps is not None and max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {max_steps}")
        return self._fetch_available(max_steps)

    def acknowledge(self, experiences: Iterable[Experience]) -> None:
        """Says that these were used: only now do they leave the backend and make room. Idempotent.

        Raises:
            StoreUnavailable: the server behind it is not there, or does not let us in.
        """
        ids = [experience.id for experience in experiences]
        if ids:
            self._acknowledge(ids)

    @abc.abstractmethod
    def recover(self) -> None:
        """The reader starts anew: what was delivered and not acknowledged is delivered again, before all else."""

    @abc.abstractmethod
    def stats(self) -> MemoryStats:
        """Counts at this moment."""

    @abc.abstractmethod
    def delete(self) -> None:
        """Deletes all that is stored, whoever has or waits for it. Handles that are open go on with an empty memory.

        For when a run is over: what a server keeps for it is gone then.

        Raises:
            StoreUnavailable: the server behind it is not there, or does not let us in.
        """

    def expire(self, after_s: float) -> None:  # noqa: B027 - nothing to do where nothing outlives the program
        """Says that nobody needs what is stored, nor what comes later: it may go when so many seconds have passed.

        For when a run is over and its last writers may still be at work. A handle that begins to read takes it back. A
        backend that ends with its process or service does nothing.

        Raises:
            StoreUnavailable: the server behind it is not there, or does not let us in.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Closes this handle; what is stored stays. Calls that wait in it raise `StoreClosed`. Idempotent."""

    # --- what a backend does, with arguments that are checked --------------------------------------------------------

    @abc.abstractmethod
    def _store(self, parcel: Parcel, deadline: Deadline) -> str:
        """See `store`. The arrays of the parcel are the caller's."""

    @abc.abstractmethod
    def _fetch(self, wish: Wish, deadline: Deadline) -> list[Experience]:
        """See `fetch`."""

    @abc.abstractmethod
    def _fetch_available(self, max_steps: int | None) -> list[Experience]:
        """See `fetch_available`."""

    @abc.abstractmethod
    def _acknowledge(self, ids: list[str]) -> None:
        """See `acknowledge`. There is at least one id; what is not there is ignored."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_memory_backend(
    url: str | MemoryBackend,
    *,
    name: str,
    max_steps: int = MAX_STEPS,
    max_bytes: int = MAX_BYTES,
    patience_s: float | None = None,
    **options: Any,
) -> MemoryBackend:
    """A handle of the memory `name` at `url`. The first handle makes it; all must give the same bounds.

    Args:
        url: "local:" (this process), "replay:ADDRESS" (a replay service), "redis://[[user]:password@]host:port[/db]",
            "rediss://..." or "unix:///path/of/socket[?db=0]" (Redis); others come from packages, by the entry point
            group `topology.memory_backends`. A backend, such as a handle of a node becomes, is returned as it is.
        name: of the memory; the same for all who share it.
        max_steps: most steps it keeps, delivered or not, until they are acknowledged.
        max_bytes: most bytes of columns it keeps so.
        patience_s: how long a server that is not there, or went away, is waited for, in seconds, before
            `StoreUnavailable`; None for what the kind does by itself: 30 in ours. Kinds without a server ignore it.
        options: of that kind of backend.

    Raises:
        ValueError: the URL, the name or a bound makes no sense.
        ImportError: a package that it needs is not installed; the text names the extra.
        StoreUnavailable: the server is not there, or does not let us in.
    """
    if isinstance(url, MemoryBackend):
        return url
    if not isinstance(name, str) or not name:
        raise ValueError(f"a memory backend needs a name, got {name!r}")
    for what, bound in (("max_steps", max_steps), ("max_bytes", max_bytes)):
        if not isinstance(bound, int) or bound < 1:
            raise ValueError(f"{what} must be an integer of at least 1, got {bound!r}")
    check_memory_url(url)
    opener = _opener(url.partition(":")[0])
    if patience_s is not None and "patience_s" in inspect.signature(opener).parameters:
        options["patience_s"] = patience_s
    backend: MemoryBackend = opener(url, name=name, max_steps=max_steps, max_bytes=max_bytes, **options)
    return backend


def check_memory_url(url: str) -> None:
    """Whether there is a kind of backend for `url`; opens and imports nothing.

    Raises:
        ValueError: there is none, or the URL cannot be meant.
    """
    scheme, colon, _ = url.partition(":")
    # Ours first: to look for others takes milliseconds.
    if not (colon and (scheme in _BUILT_IN or importlib.metadata.entry_points(group=_GROUP, name=scheme))):
        known = sorted({*_BUILT_IN, *(found.name for found in importlib.metadata.entry_points(group=_GROUP))})
        raise ValueError(
            f"{url!r} is no address of a memory backend: it begins with its kind and a colon, as in "
            f"'redis://localhost:6379'; known kinds are {', '.join(known)}"
        )
    check_redis_url(url)


def _opener(scheme: str) -> Any:
    if scheme in _BUILT_IN:
        return importlib.metadata.EntryPoint(scheme, _BUILT_IN[scheme], _GROUP).load()
    return next(iter(importlib.metadata.entry_points(group=_GROUP, name=scheme))).load()
