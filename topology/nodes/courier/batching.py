"""Many calls, one run: stacks the arguments of concurrent calls, so that a network is applied to a batch.

class Inference:
    @batched_handler(batch_size=32)
    def act(self, observation):        # [B, ...] here, [...] in every caller
        return self._policy(observation)  # [B, ...] here, [...] in every caller
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, final, overload

from topology.clock import SYSTEM_CLOCK, Clock
from topology.errors import CourierClosed

__all__ = ["DEFAULT_TIMEOUT_S", "BatchedHandler", "batched_handler", "stack", "unstack"]

DEFAULT_TIMEOUT_S = 0.010
"""How long the first call of a batch waits for others unless told otherwise. There is no "for ever": with fewer live
callers than `batch_size`, which is how every program ends, that would block them all."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


def batched_handler(
    batch_size: int,
    max_parallelism: int = 1,
    timeout: float | datetime.timedelta | None = None,
    pad_batch: bool = False,
    *,
    gather_lists: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> Callable[[Callable[_P, _R]], BatchedHandler[_P, _R]]:
    """Decorates a function or method that works on batches so that each caller passes and gets one element.

    Arguments of concurrent calls are stacked on a new leading axis: arrays and scalars become arrays `[B, ...]`, nested
    lists, tuples, named tuples, dicts and dataclasses keep their structure, None stays None. All calls of a batch must
    have the same structure and shapes. The result is split along its leading axis. When the function raises, every
    caller of that batch gets the exception.

    Behind a `Server` a waiting call holds no thread. A direct call blocks, as a remote one does; `submit` gives the
    future.

    Args:
        batch_size: calls that make a batch full.
        max_parallelism: batches that may run at a time; each has a thread of its own.
        timeout: what the first call of a batch waits at most for more, in seconds or as timedelta; 0 runs what is
            there as soon as a thread is free; None for `DEFAULT_TIMEOUT_S`.
        pad_batch: fill an incomplete batch up to `batch_size` by repeating its last call, so that compiled functions
            see one shape only; what comes out for the padding is dropped.
        gather_lists: what is neither array nor number, lists among it, is not stacked but becomes a list with an entry
            for each call, as in Launchpad; a list among the results is split into its entries.
        clock: for tests.

    Raises:
        ValueError: a size below 1 or a negative timeout.
    """
    timeout_s = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else timeout
    timeout_s = DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s
    if batch_size < 1 or max_parallelism < 1 or timeout_s < 0:
        raise ValueError(
            f"batched_handler(batch_size={batch_size}, max_parallelism={max_parallelism}, timeout={timeout}): "
            "sizes must be at least 1 and the timeout at least 0"
        )
    settings = _Settings(batch_size, max_parallelism, timeout_s, pad_batch, gather_lists, clock)
    return lambda function: BatchedHandler(function, settings)


class _Settings(NamedTuple):
    batch_size: int
    max_parallelism: int
    timeout_s: float
    pad_batch: bool
    gather_lists: bool
    clock: Clock


@final
class BatchedHandler(Generic[_P, _R]):
    """A function that gathers its calls into batches; what `batched_handler` makes of the function below it.

    As an attribute of a class it is a method, with batches of its own for every instance.
    """

    __courier_asynchronous__ = True

    def __init__(self, function: Callable[_P, _R], settings: _Settings) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._settings = settings
        self._batcher = _Batcher(function, settings)
        self._batchers: dict[int, tuple[weakref.ref[Any], _Batcher]] = {}
        self._lock = threading.Lock()

    @overload
    def __get__(self, instance: None, owner: type) -> BatchedHandler[_P, _R]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> _BoundHandler[_R]: ...
    def __get__(self, instance: object | None, owner: type) -> BatchedHandler[_P, _R] | _BoundHandler[_R]:
        if instance is None:
            return self
        with self._lock:
            reference, batcher = self._batchers.get(id(instance), (None, None))
            if batcher is None or reference is None or reference() is not instance:
                batcher = self._new_batcher(instance)
        return _BoundHandler(self._function, instance, batcher)

    def _new_batcher(self, instance: object) -> _Batcher:
        key = id(instance)  # not the instance itself: it may be unhashable, or equal to another
        batcher = _Batcher(self._function, self._settings)
        batchers = self._batchers

        def forget(_: weakref.ref[Any]) -> None:
            batchers.pop(key, None)
            batcher.close(wait=False)

        self._batchers[key] = (weakref.ref(instance, forget), batcher)
        return batcher

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Joins a batch and blocks for this call's part of the result."""
        return self.submit(*args, **kwargs).result()

    def submit(self, *args: _P.args, **kwargs: _P.kwargs) -> Future[_R]:
        """Joins a batch; the future gives this call's part of the result."""
        return self._batcher.submit(None, args, kwargs)

    def close(self) -> None:
        """Fails the calls that wait for a batch and ends the threads. A later call starts them again."""
        self._batcher.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchedHandler, (self._function, self._settings)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and "_batcher" in self.__dict__:
            self._batcher.close(wait=False)


@final
class _BoundHandler(Generic[_R]):
    """A batched method of one instance, which it keeps alive as any bound method does."""

    __courier_asynchronous__ = True

    def __init__(self, function: Callable[..., _R], instance: object, batcher: _Batcher) -> None:
        functools.update_wrapper(self, function)
        self.__self__ = instance
        self._batcher = batcher

    def __call__(self, *args: Any, **kwargs: Any) -> _R:
        """Joins a batch and blocks for this call's part of the result."""
        return self.submit(*args, **kwargs).result()

    def submit(self, *args: Any, **kwargs: Any) -> Future[_R]:
        """Joins a batch; the future gives this call's part of the result."""
        return self._batcher.submit(self.__self__, args, kwargs)

    def close(self) -> None:
        """Fails the calls that wait for a batch and ends the threads. A later call starts them again."""
        self._batcher.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.__self__, self.__name__)  # type: ignore[attr-defined]  # set by update_wrapper


class _Call(NamedTuple):
    """One call that waits; keeps the instance it is made on alive."""

    instance: object | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    future: Future[Any]
    since: float


@final
class _Batcher:
    """The calls that wait, and the threads that run batches of them."""

    def __init__(self, function: Callable[..., Any], settings: _Settings) -> None:
        self._function = function
        self._settings = settings
        self._condition = threading.Condition()  # guards what follows
        self._calls: deque[_Call] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._era = 0  # threads of an earlier one end

    def submit(self, instance: object | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future[Any]:
        future: Future[Any] = Future()
        with self._condition:
            self._calls.append(_Call(instance, args, kwargs, future, self._settings.clock.monotonic()))
            if not self._idle and len(self._threads) < self._settings.max_parallelism:
                thread = threading.Thread(target=self._serve, args=(self._era,), name="batched handler", daemon=True)
                self._threads.append(thread)
                thread.start()
            elif len(self._calls) in {1, self._settings.batch_size}:
                self._condition.notify_all()
        return future

    def close(self, *, wait: bool = True) -> None:
        with self._condition:
            self._era += 1
            calls, self._calls = self._calls, deque()
            threads, self._threads = self._threads, []
            self._condition.notify_all()
        for call in calls:
            if call.future.set_running_or_notify_cancel():
                error = CourierClosed("the batched handler was closed while this call waited for a batch")
                call.future.set_exception(error)
        for thread in threads:
            if wait and thread is not threading.current_thread():
                thread.join(5.0)

    def _serve(self, era: int) -> None:
        while self._serve_batch(era):
            pass

    def _serve_batch(self, era: int) -> bool:
        # A function of its own, so that a waiting thread keeps no arguments and no instance alive.
        batch = self._gather(era)
        if batch:
            _run(self._function, batch, self._settings)
        return batch is not None

    def _gather(self, era: int) -> list[_Call] | None:
        """Blocks until there is a batch to run; None when this thread is to end."""
        size, timeout_s, clock = self._settings.batch_size, self._settings.timeout_s, self._settings.clock
        with self._condition:
            self._idle += 1
            try:
                clock.wait_for(self._condition, lambda: bool(self._calls) or self._era != era)
                while self._era == era and self._calls and len(self._calls) < size:
                    left = self._calls[0].since + timeout_s - clock.monotonic()
                    if left <= 0:
                        break
                    clock.wait_for(self._condition, lambda: len(self._calls) >= size or self._era != era, left)
            finally:
                self._idle -= 1
            if self._era != era:
                return None
            batch = [self._calls.popleft() for _ in range(min(size, len(self._calls)))]
        return [call for call in batch if call.future.set_running_or_notify_cancel()]


def _run(function: Callable[..., Any], batch: list[_Call], settings: _Settings) -> None:
    """Runs one batch and gives every caller its part."""
    count = len(batch)
    padding = settings.batch_size - count if settings.pad_batch else 0
    inputs = [(call.args, call.kwargs) for call in batch]
    instance = batch[0].instance
    try:
        args, kwargs = stack(inputs + inputs[-1:] * padding, gather_lists=settings.gather_lists)
        output = function(*args, **kwargs) if instance is None else function(instance, *args, **kwargs)
        results = unstack(output, count, count + padding, gather_lists=settings.gather_lists)
    except BaseException as error:  # noqa: BLE001 - whatever it is belongs to the callers
        for call in batch:
            call.future.set_exception(error)
        return
    for call, result in zip(batch, results, strict=True):
        call.future.set_result(result)


_NUMBERS = (bool, int, float)


# --- structures -----------------------------------------------------------------------------------------------------


def stack(elements: Sequence[Any], *, gather_lists: bool = False) -> Any:
    """Stacks equal structures: leaves become arrays `[len(elements), ...]`; see `batched_handler`.

    Raises:
        ValueError: they differ in structure or in the shapes of their leaves.
    """
    first = elements[0]
    children = _children(first, gather_lists)
    kinds = sorted({type(element).__name__ for element in elements})
    # Leaves may be of several types: a float here, a numpy scalar there.
    if len(kinds) > 1 and any(element is None or _children(element, gather_lists) is not None for element in elements):
        raise ValueError(f"calls of one batch differ in structure: {', '.join(kinds)}")
    if first is None:
        return None
    if children is None:
        if gather_lists and not isinstance(first, _NUMBERS) and not hasattr(first, "shape"):
            return list(elements)
        import numpy as np

        return np.stack([np.asarray(element) for element in elements])
    keys = children.keys()
    parts = [_children(element, gather_lists) for element in elements]
    for part in parts:
        if part is None or part.keys() != keys:
            found = None if part is None else list(part)
            raise ValueError(f"calls of one batch differ in structure: {list(keys)} and {found}")
    return _rebuild(
        first,
        {key: stack([part[key] for part in parts if part is not None], gather_lists=gather_lists) for key in keys},
    )


def unstack(batch: Any, count: int, size: int, *, gather_lists: bool = False) -> list[Any]:
    """Splits a structure of arrays `[size, ...]` into its first `count` elements; see `batched_handler`.

    Raises:
        TypeError: a leaf is no array with that leading axis.
    """
    if batch is None:
        return [None] * count
    children = _children(batch, gather_lists)
    if children is None:
        if isinstance(batch, list) and len(batch) == size:
            return batch[:count]
        shape = getattr(batch, "shape", None)
        if not shape or shape[0] != size:
            found = f"shape {shape}" if shape is not None else f"a {type(batch).__name__}"
            raise TypeError(f"a batched handler must return arrays with a leading axis of {size}; found {found}")
        if type(batch).__module__.startswith("jax"):
            import numpy as np

            batch = np.asarray(batch)  # one transfer instead of one for every element
        return [batch[index] for index in range(count)]
    split = {key: unstack(child, count, size, gather_lists=gather_lists) for key, child in children.items()}
    return [_rebuild(batch, {key: parts[index] for key, parts in split.items()}) for index in range(count)]


def _children(value: Any, gather_lists: bool) -> dict[Any, Any] | None:
    """The parts of a structure by key, or None for a leaf."""
    if isinstance(value, dict):
        return value
    if isinstance(value, tuple) or (isinstance(value, list) and not gather_lists):
        return dict(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _rebuild(like: Any, children: dict[Any, Any]) -> Any:
    """A structure of the type of `like` with other parts."""
    if isinstance(like, dict):
        return children if type(like) is dict else type(like)(children)
    if isinstance(like, tuple) and hasattr(like, "_fields"):
        return type(like)(*children.values())
    if isinstance(like, (list, tuple)):
        return type(like)(children.values())
    new = object.__new__(type(like))  # not the constructor: it may check or derive fields of single elements
    for name, child in children.items():
        object.__setattr__(new, name, child)
    return new
