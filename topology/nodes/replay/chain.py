"""A small chain of steps over samples, with the names of tf.data: batch, map, take, repeat, prefetch.

    for batch in dataset.batch(256).map(augment).prefetch(2, put=jax.device_put):
        state = update(state, batch)

A `Dataset` describes; iterating over it begins. Its iterators may be closed from any thread, which wakes a reader that
is blocked; they also end when they are not referred to any more.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol, final

import numpy as np

from topology.nodes.replay.forks import inherited_error, tell_in_child
from topology.nodes.replay.specs import Spec
from topology.nodes.replay.structure import flatten, unflatten

__all__ = ["AUTOTUNE", "Dataset", "Source"]

AUTOTUNE = -1
"""As a size of `prefetch`: 2."""


class Source(Protocol):
    """An iterator that can be closed, also while another thread waits in it."""

    def __next__(self) -> Any:
        """The next element. Raises `StopIteration` at the end, and once it is closed."""

    def close(self) -> None:
        """Ends the iteration. Idempotent; from any thread."""


class Dataset:
    """Elements that can be iterated over, any number of times.

    Args:
        begin: makes a new iterator.
        element_spec: structure of `Spec` of an element; None when it is not known.
    """

    def __init__(self, begin: Callable[[], Source], element_spec: Any = None) -> None:
        self._begin = begin
        self.element_spec = element_spec

    def __iter__(self) -> DatasetIterator:
        return DatasetIterator(self._begin())

    def as_numpy_iterator(self) -> DatasetIterator:
        """The same as `iter`: elements are numpy arrays already."""
        return iter(self)

    def map(self, function: Callable[[Any], Any], **_: Any) -> Dataset:
        """Each element put through a function, in the thread that reads. Options of tf.data are ignored."""
        return Dataset(lambda: _Map(self._begin(), function))

    def batch(self, batch_size: int, drop_remainder: bool = False) -> Dataset:
        """Elements stacked by `batch_size` along a new first axis.

        Args:
            batch_size: at least 1.
            drop_remainder: whether fewer at the end are left out.

        Raises:
            ValueError: `batch_size` is below 1.
        """
        _check_at_least(1, batch_size=batch_size)
        length = batch_size if drop_remainder else None
        return Dataset(lambda: _Batch(self._begin(), batch_size, drop_remainder), batched(self.element_spec, length))

    def take(self, count: int) -> Dataset:
        """The first `count` elements; nothing is asked for beyond them, -1 takes all."""
        if count < 0:
            return self
        return Dataset(lambda: _Take(self._begin(), count), self.element_spec)

    def repeat(self, count: int | None = None) -> Dataset:
        """The elements `count` times over, or without end. Ends with a pass that gives nothing."""
        if count is not None and count < 0:
            count = None
        return Dataset(lambda: _Repeat(self._begin, count), self.element_spec)

    def prefetch(self, buffer_size: int = AUTOTUNE, *, put: Callable[[Any], Any] | None = None) -> Dataset:
        """A thread reads ahead, up to `buffer_size` elements, and puts each on the device.

        What waits in the buffer was drawn before the priorities that the reader updates meanwhile: each element adds
        one to the staleness of samples.

        Args:
            buffer_size: at least 1; `AUTOTUNE` for 2.
            put: called with each element in that thread, e.g. `jax.device_put`.

        Raises:
            ValueError: `buffer_size` is below 1.
        """
        size = 2 if buffer_size == AUTOTUNE else buffer_size
        _check_at_least(1, buffer_size=size)
        return Dataset(lambda: _Prefetch(self._begin(), size, put), None if put else self.element_spec)


@final
class DatasetIterator:
    """Reads a dataset. One reader; `close` from any thread."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._finalizer = weakref.finalize(self, source.close)

    def __iter__(self) -> DatasetIterator:
        return self

    def __next__(self) -> Any:
        return next(self._source)

    def close(self) -> None:
        """Ends the iteration; a reader that is blocked gets `StopIteration`. Idempotent."""
        self._finalizer()

    def __enter__(self) -> DatasetIterator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def batched(spec: Any, length: int | None) -> Any:
    """The spec of batches of elements of `spec`."""
    if spec is None:
        return None
    leaves, shape = flatten(spec)
    return unflatten(shape, [Spec((length, *leaf.shape), leaf.dtype, leaf.name) for leaf in leaves])


def _check_at_least(least: int, **values: int) -> None:
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name} ({value}) must be at least {least}")


class _Stage:
    """What stands on another source."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def close(self) -> None:
        self._source.close()


@final
class _Map(_Stage):
    def __init__(self, source: Source, function: Callable[[Any], Any]) -> None:
        super().__init__(source)
        self._function = function

    def __next__(self) -> Any:
        return self._function(next(self._source))


@final
class _Take(_Stage):
    def __init__(self, source: Source, count: int) -> None:
        super().__init__(source)
        self._left = count

    def __next__(self) -> Any:
        if self._left <= 0:
            self.close()
            raise StopIteration
        self._left -= 1
        return next(self._source)


@final
class _Batch(_Stage):
    def __init__(self, source: Source, size: int, drop_remainder: bool) -> None:
        super().__init__(source)
        self._size = size
        self._drop_remainder = drop_remainder

    def __next__(self) -> Any:
        elements: list[Any] = []
        for element in _iterate(self._source):
            elements.append(element)
            if len(elements) == self._size:
                break
        if not elements or (self._drop_remainder and len(elements) < self._size):
            raise StopIteration
        _, shape = flatten(elements[0])
        columns = zip(*(flatten(element)[0] for element in elements), strict=True)
        return unflatten(shape, [np.stack(column) for column in columns])


def _iterate(source: Source) -> Iterator[Any]:
    while True:
        try:
            yield next(source)
        except StopIteration:
            return


@final
class _Repeat:
    def __init__(self, begin: Callable[[], Source], count: int | None) -> None:
        self._begin = begin
        self._left = count
        self._lock = threading.Lock()
        self._source: Source | None = None
        self._closed = False

    def __next__(self) -> Any:
        fresh = False
        while True:
            source = self._source
            if source is None:
                source = self._next_pass()
                fresh = True
            try:
                return next(source)
            except StopIteration:
                source.close()
                self._source = None
                if fresh or self._closed:
                    raise

    def _next_pass(self) -> Source:
        with self._lock:
            if self._closed or self._left == 0:
                raise StopIteration
            if self._left is not None:
                self._left -= 1
            self._source = self._begin()
            return self._source

    def close(self) -> None:
        with self._lock:
            self._closed = True
            source = self._source
        if source is not None:
            source.close()


@final
class _Prefetch:
    """Elements that a thread has read ahead. The thread starts with the first read."""

    def __init__(self, source: Source, size: int, put: Callable[[Any], Any] | None) -> None:
        self._source = source
        self._size = size
        self._put = put
        self._changed = threading.Condition()
        self._ready: deque[Any] = deque()
        self._end: BaseException | None = None
        self._closed = False
        self._thread: threading.Thread | None = None
        tell_in_child(self)

    def forked(self) -> None:
        """In a forked child: the thread is not there, and what it has read is for the parent."""
        self._changed = threading.Condition()
        self._ready = deque()
        self._end = inherited_error("the iterator")
        self._thread = threading.current_thread()

    def __next__(self) -> Any:
        with self._changed:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="replay-prefetch", daemon=True)
                self._thread.start()
            self._changed.wait_for(lambda: self._ready or self._end is not None or self._closed)
            if self._closed:
                raise StopIteration
            if self._ready:
                self._changed.notify_all()
                return self._ready.popleft()
            assert self._end is not None
            raise self._end

    def _run(self) -> None:
        while True:
            try:
                element = next(self._source)
                if self._put is not None:
                    element = self._put(element)
            except BaseException as error:  # noqa: BLE001  (whatever it is belongs to the reader; StopIteration too)
                with self._changed:
                    self._end = error
                    self._changed.notify_all()
                return
            with self._changed:
                # The element in hand counts: at most `size` have left the source and not been read.
                self._changed.wait_for(lambda: self._closed or len(self._ready) < self._size)
                if self._closed:
                    return
                self._ready.append(element)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._closed or len(self._ready) < self._size)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
            thread = self._thread
        self._source.close()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
