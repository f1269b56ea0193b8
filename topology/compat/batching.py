"""Launchpad's batched handlers: ours, with what its programs were written for as the defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from topology.nodes.courier import batching
from topology.nodes.courier.batching import BatchedHandler

__all__ = ["batched_handler", "build_batched_handler", "build_handler", "call_handler"]

_TIMEOUT = timedelta(milliseconds=200)


def batched_handler(
    batch_size: int,
    max_parallelism: int = 1,
    timeout: float | timedelta | None = _TIMEOUT,
    pad_batch: bool = False,
) -> Callable[[Callable[..., Any]], BatchedHandler[..., Any]]:
    """Decorates a function or method that works on batches; see `topology.batched_handler`.

    Arrays and numbers are stacked; dicts, tuples and dataclasses keep their structure. Everything else, lists among it,
    arrives as a list with an entry for each caller. Results are split in the same way.
    """
    return batching.batched_handler(batch_size, max_parallelism, timeout, pad_batch, gather_lists=True)


def build_handler(py_func: Callable[..., Any]) -> Callable[..., Any]:
    """What `Server.BindHandler` takes: the function itself."""
    return py_func


def build_batched_handler(
    name: str,
    handler: Callable[..., Any],
    batch_size: int,
    max_parallelism: int,
    timeout: float | timedelta | None,
    pad_batch: bool,
) -> BatchedHandler[..., Any]:
    """A handler that gathers its calls into batches. The name is for messages in the original."""
    del name
    return batched_handler(batch_size, max_parallelism, timeout, pad_batch)(handler)


def call_handler(
    handler: Callable[..., Any], name: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> Any:
    """Calls a handler here. Blocks until it returns, or until its batch is done."""
    del name
    return handler(*args, **(kwargs or {}))
