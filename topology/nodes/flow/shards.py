"""The workers' side of a parallel iterator: a stream of items, and what is done to them before they travel.

A host serves any number of streams over the same items: a second one goes on where the first one is, it does not begin
anew. A host is called by one thread at a time, in the order of the calls: serve it with `thread_pool_size=1`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol, final

from topology.clock import Deadline
from topology.errors import CourierError
from topology.nodes.courier import codec
from topology.nodes.courier.wire import Buffer
from topology.nodes.flow.stages import parts_of

__all__ = [
    "HOST_OPTIONS",
    "Forever",
    "HeldCallFailed",
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


_Taken = tuple[Any, int]  # an item, and the version of the weights it was made with


class StreamUnknown(CourierError):
    """The host has no such stream: it was started again. Asked with the `StreamSpec` it opens it."""


class HeldCallFailed(CourierError):
    """What was asked was not begun: the call that travelled with it has failed.

    Attributes:
        method: that was called.
        error: that it raised.
    """

    def __init__(self, method: str, error: BaseException) -> None:
        super().__init__(method, error)
        self.method = method
        self.error = error


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
        self._slices: dict[str, _Slices] = {}
        self._owed: dict[str, Exception] = {}  # errors that came after items of the same reply

    # --- what clients call -------------------------------------------------------------------------------------------

    def next_items(self, stream: str, spec: StreamSpec | None = None, batch_ms: float = 0) -> Reply:
        """The next item of a stream, or all that come within `batch_ms` milliseconds, at least one.

        Raises:
            StreamUnknown: it was never opened here, and no spec is given.
        """
        if stream not in self._specs:
            self._open(stream, spec)
        return self._reply(stream, batch_ms, lambda: self._next(stream))

    def next_slice(self, stream: str, spec: StreamSpec | None, part: int, parts: int, batch_ms: float = 0) -> Reply:
        """The next item whose number in the stream is `part` modulo `parts`; those of other parts are kept for them."""
        self._open(stream, spec)
        slices = self._slices.setdefault(stream, _Slices(parts))
        return self._reply(f"{stream} part {part}", batch_ms, lambda: slices.take(part, lambda: self._next(stream)))

    def call_after(self, first: str, body: Buffer, buffers: Sequence[Buffer], method: str, *args: Any) -> Any:
        """Calls a method, with arguments that are serialised, and then another one, whose result it returns.

        Raises:
            HeldCallFailed: the first one has failed; the second was not called.
        """
        try:
            first_args, first_kwargs = codec.decode(body, buffers)
            getattr(self, first)(*first_args, **first_kwargs)
        except Exception as error:
            raise HeldCallFailed(first, error) from error
        return getattr(self, method)(*args)

    def recover(self) -> None:
        """Called after a failure, before the next request: subclasses make anew what may be broken."""

    def ping(self) -> None:
        """Does nothing: its reply says that the host is there."""

    def _reply(self, asked: str, batch_ms: float, take: Callable[[], _Taken | None]) -> Reply:
        """The next item, or all within `batch_ms` milliseconds. An error waits for the items before it to be gone."""
        error = self._owed.pop(asked, None)
        if error is not None:
            raise error
        deadline = Deadline(batch_ms / 1000) if batch_ms else None
        values: list[Any] = []
        versions: list[int] = []
        while True:
            try:
                taken = take()
            except Exception as caught:
                if not values:
                    raise
                self._owed[asked] = caught
                break
            if taken is None:
                return values, versions, True, self.drain_notes()
            values.append(taken[0])
            versions.append(taken[1])
            if deadline is None or deadline.expired:
                break
        return values, versions, False, self.drain_notes()

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

    def _next(self, stream: str) -> _Taken | None:
        """The next item, and the version of the weights it was made with; None at the end."""
        token = _global_worker.set(self)
        version = self.weights_version
        try:
            if stream not in self._streams:
                self._streams[stream] = self._build(self._specs[stream])
            for value in self._streams[stream]:
                return value, version
            return None
        finally:
            _global_worker.reset(token)

    def _build(self, spec: StreamSpec) -> Iterator[Any]:
        if self._items is None:
            self._items = _Repeated(self._begin) if self._repeat else self._begin()
        chain = self._items
        for operator in spec.operators:
            chain = operator.apply(chain)
        return chain

    def _begin(self) -> Iterator[Any]:
        source = self._item_generator
        return parts_of(source() if callable(source) else source, "a ParallelIteratorWorker")

    def _drop_all(self) -> None:
        self._streams.clear()
        self._slices.clear()
        self._items, self._item_generator = None, ()


@final
class _Slices:
    """One stream dealt out to several parts, which ask at different times."""

    def __init__(self, parts: int) -> None:
        self._waiting: list[deque[_Taken]] = [deque() for _ in range(parts)]
        self._number = 0

    def take(self, part: int, following: Callable[[], _Taken | None]) -> _Taken | None:
        """The next item of a part; what comes before it is kept for the others."""
        mine = self._waiting[part]
        while not mine:
            taken = following()
            if taken is None:
                return None
            self._waiting[self._number % len(self._waiting)].append(taken)
            self._number += 1
        return mine.popleft()


@final
class Forever:
    """What a function gives, without end. Not a generator, which would be over after an error."""

    def __init__(self, give: Callable[[], Any]) -> None:
        self._give = give

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return self._give()
        except StopIteration as error:
            raise RuntimeError(
                f"{self._give.__name__}() raised StopIteration, which does not end a worker's items"
            ) from error


@final
class _Repeated:
    """The items of an iterable again and again. Not a generator, which would be over after an error."""

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin
        self._items: Iterator[Any] = iter(())
        self._fresh = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while True:
            for item in self._items:
                self._fresh = False
                return item
            if self._fresh:
                raise ValueError("there is nothing to repeat: the worker was given no items")
            self._items, self._fresh = self._begin(), True


def release(worker: ParallelIteratorWorker) -> None:
    """Drops what a host holds on to, now that nobody can call it any more: other workers, perhaps."""
    worker._drop_all()  # noqa: SLF001 - a public method could be called by clients
