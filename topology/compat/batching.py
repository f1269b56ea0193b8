"""Launchpad's batched handlers: ours, with what its programs were written for as the defaults."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from topology.nodes.courier import batching
from topology.nodes.courier.batching import BatchedHandler

__all__ = ["batched_handler"]

_TIMEOUT = timedelta(milliseconds=200)


def batched_handler(
    batch_size: int,
    max_parallelism: int = 1,
    timeout: float | timedelta | None = _TIMEOUT,
    pad_batch: bool = False,
) -> Callable[[Callable[..., Any]], BatchedHandler[..., Any]]:
    """Decorates a function or method that works on batches; see `topology.batched_handler`.

    Arrays are stacked; dicts and tuples keep their structure. Everything else, lists and plain numbers among it,
    arrives as a list with an entry for each caller. Results are split in the same way.
    """
    return batching.batched_handler(batch_size, max_parallelism, timeout, pad_batch, gather_lists=True)
