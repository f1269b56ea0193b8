"""Storing one experience after the other without waiting for each of them."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Self, TypeAlias, final

import numpy.typing as npt

from topology.clock import Deadline
from topology.nodes.store.codec import Plain
from topology.nodes.store.parcel import Parcel, make_parcel

__all__ = ["MemoryWriter", "PlainWriter"]

Store: TypeAlias = Callable[[Parcel, Deadline], object]


class MemoryWriter(abc.ABC):
    """What `MemoryBackend.writer` returns. A context manager, which flushes at its end; for one thread.

    Experience gets into the backend in the order in which it was stored here. What is under way is lost with the
    process, each of it as a whole; `flush` says that nothing is.
    """

    def store(
        self,
        columns: Mapping[str, npt.ArrayLike],
        meta: Mapping[str, Plain] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Stores steps; see `MemoryBackend.store`. Blocks while as much as allowed is under way.

        The arrays must not be changed before `flush`.

        Raises:
            TypeError, ValueError: this is no experience, or one that is larger than the whole bound.
            StoreFull: there was no room in that time for what was stored before. That stays under way; this was not
                taken.
            StoreUnavailable: the server behind it is not there, or does not let us in.
        """
        self._store(make_parcel(columns, meta, whole_episode=False), Deadline(timeout_s))

    def store_episode(
        self,
        columns: Mapping[str, npt.ArrayLike],
        meta: Mapping[str, Plain] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Like `store`, and counts as an episode."""
        self._store(make_parcel(columns, meta, whole_episode=True), Deadline(timeout_s))

    @abc.abstractmethod
    def flush(self, timeout_s: float | None = None) -> None:
        """Blocks until the backend has everything.

        Raises:
            StoreFull: there was no room in that time. What is under way stays so.
            StoreUnavailable: the server behind it is not there, or does not let us in.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Ends it, and waits for nothing: `flush` first. Idempotent."""

    @abc.abstractmethod
    def _store(self, parcel: Parcel, deadline: Deadline) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()


@final
class PlainWriter(MemoryWriter):
    """One that waits for each: for backends with nothing to gain.

    Args:
        store: of the backend.
    """

    def __init__(self, store: Store) -> None:
        self._store_one = store

    def flush(self, timeout_s: float | None = None) -> None:
        del timeout_s  # nothing is ever under way

    def close(self) -> None:
        """Nothing is held."""

    def _store(self, parcel: Parcel, deadline: Deadline) -> None:
        self._store_one(parcel, deadline)
