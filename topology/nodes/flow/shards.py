"""The workers' side of a parallel iterator: a stream of items, and what is done to them before they travel.

A host serves any number of streams over the same items: a second one goes on where the first one is, it does not begin
anew. A host is called by one thread at a time, in the order of the calls: serve it with `thread_pool_size=1`.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from topology.clock import Deadline
from topology.errors import CourierError

__all__ = [
    "HOST_OPTIONS",
    "ParallelIteratorWorker",
    "Reply",
    "ShardOperator",
    "StreamSpec",
    "StreamUnknown",
    "get_global_worker",
    "release",
]

HOST_OPTIONS = {"thread_pool_size": 1}
"""Options of a server of a host: one call at a time, in order, so that weights sent before a request act on it."""


class ShardOperator(Protocol):
    """What is done to the items of one shard, in its own place."""

    @property
    def name(self) -> str:
        """For people."""

    def apply(self, items: Iterator[Any]) -> Iterator[Any]:
        """A lazy iterator over what becomes of the items."""


class StreamSpec(NamedTuple):
    """A stream that a host is to serve.

    Attributes:
        stream: identity of the stream, unique among all that anybody opens.
        operators: applied in order.
    """

    stream: str
    operators: tuple[ShardOperator, ...]


Reply = tuple[list[Any], list[int], bool, tuple[Any, ...]]
"""What a host gives. A plain tuple, which travels faster than one with names:

    values      some items; none where the stream has ended
    versions    of the weights that each was made with; -1 without weights
    ended       whether there will be no more
    notes       what the host has to tell beside, such as the episodes that ended
"""


class StreamUnknown(CourierError):
    """The host has no such stream: it was started again. Asked with the `StreamSpec` it opens it."""


_global_worker: ContextVar[ParallelIteratorWorker | None] = ContextVar("topology_flow_worker", default=None)


def get_global_worker() -> Any:
    """The host whose shard runs the code that asks: for functions given to operators of a `ParallelIterator`.

    Raises:
        RuntimeError: the code does not run in a shard.
    """
    worker = _global_worker.get()
    if worker is None:
        raise RuntimeError("get_global_worker() was called outside a shard: it is there in operators that run in one")
    return worker


class ParallelIteratorWorker:
    """Hosts one shard of a parallel iterator. Subclass it, or give it items.

    Args:
        item_generator: an iterable, or a function without arguments that returns one.
        repeat: whether to begin again at the end.

    Raises:
        ValueError: an iterator that can be read once is to be repeated.
    """

    weights_version = -1
    """Updates that made the weights in use; -1 for none. Subclasses with weights set it."""

    def __init__(self, item_generator: Iterable[Any] | Callable[[], Iterable[Any]], repeat: bool = False) -> None:
        if repeat and isinstance(item_generator, Iterator):
            raise ValueError(
                f"{type(item_generator).__name__} can be read only once, so it cannot be repeated: give a function "
                "that makes it"
            )
        self._item_generator = item_generator
        self._repeat = repeat
        self._items: Iterator[Any] | None = None
        self._specs: dict[str, StreamSpec] = {}
        self._streams: dict[str, Iterator[Any]] = {}
        self._slices: dict[tuple[str, int], collections.deque[tuple[Any, int]]] = {}

    # --- what clients call -------------------------------------------------------------------------------------------

    def next_items(self, stream: str, spec: StreamSpec | None = None, batch_ms: float = 0) -> Reply:
        """The next item of a stream, or all that come within `batch_ms` milliseconds, at least one.

        Raises:
            StreamUnknown: it was never opened here, and no spec is given.
        """
        if stream not in self._specs:
            self._open(stream, spec)
        deadline = Deadline(batch_ms / 1000) if batch_ms else None
        values: list[Any] = []
        versions: list[int] = []
        while True:
            version = self.weights_version
            found, value = self._next(stream)
            if not found:
                return values, versions, True, self.drain_notes()
            values.append(value)
            versions.append(version)
            if deadline is None or deadline.expired:
                return values, versions, False, self.drain_notes()

    def next_slice(self, stream: str, spec: StreamSpec | None, part: int, parts: int, batch_ms: float = 0) -> Reply:
        """The next item whose number in the stream is `part` modulo `parts`; those of other parts are kept for them."""
        self._open(stream, spec)
        mine = self._slices.setdefault((stream, part), collections.deque())
        counter = self._slices.setdefault((stream, -1), collections.deque([(0, 0)]))  # how many were taken so far
        deadline = Deadline(batch_ms / 1000)
        values: list[Any] = []
        versions: list[int] = []
        while True:
            while not mine:
                version = self.weights_version
                found, value = self._next(stream)
                if not found:
                    return values, versions, True, self.drain_notes()
                number = counter[0][0]
                counter[0] = (number + 1, 0)
                self._slices.setdefault((stream, number % parts), collections.deque()).append((value, version))
            value, version = mine.popleft()
            values.append(value)
            versions.append(version)
            if deadline.expired:
                return values, versions, False, self.drain_notes()

    def recover(self) -> None:
        """Called after a failure, before the next request: subclasses make anew what may be broken."""

    def ping(self) -> None:
        """Does nothing: its reply says that the host is there."""

    # --- for subclasses ----------------------------------------------------------------------------------------------

    def drain_notes(self) -> tuple[Any, ...]:
        """What to tell with the next reply."""
        return ()

    # --- streams -----------------------------------------------------------------------------------------------------

    def _open(self, stream: str, spec: StreamSpec | None) -> None:
        if stream in self._specs:
            return
        if spec is None:
            raise StreamUnknown(f"stream {stream} is not open here; ask with its StreamSpec")
        self._specs[stream] = spec

    def _next(self, stream: str) -> tuple[bool, Any]:
        """Whether there is an item, and the item."""
        token = _global_worker.set(self)
        try:
            if stream not in self._streams:
                self._streams[stream] = self._build(self._specs[stream])
            for value in self._streams[stream]:
                return True, value
            return False, None
        except BaseException:
            # A generator that has raised is over; what comes next goes through new ones.
            self._streams.pop(stream, None)
            raise
        finally:
            _global_worker.reset(token)

    def _build(self, spec: StreamSpec) -> Iterator[Any]:
        if self._items is None:
            self._items = self._repeated() if self._repeat else self._begin()
        chain = self._items
        for operator in spec.operators:
            chain = operator.apply(chain)
        return chain

    def _begin(self) -> Iterator[Any]:
        source = self._item_generator
        return iter(source() if callable(source) else source)

    def _drop_all(self) -> None:
        self._streams.clear()
        self._slices.clear()
        self._items, self._item_generator = None, ()

    def _repeated(self) -> Iterator[Any]:
        while True:
            yield from self._begin()


def release(worker: ParallelIteratorWorker) -> None:
    """Drops what a host holds on to, now that nobody can call it any more: other workers, perhaps."""
    worker._drop_all()  # noqa: SLF001 - a public method could be called by clients
