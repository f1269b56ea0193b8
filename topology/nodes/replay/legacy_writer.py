"""Reverb's first writer: items are the latest n steps, all columns alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from topology.nodes.replay.checks import check_positive
from topology.nodes.replay.structure import flatten, unflatten

if TYPE_CHECKING:
    from topology.nodes.replay.writers import TrajectoryWriter

__all__ = ["Writer", "check_arguments"]


def check_arguments(max_sequence_length: int, chunk_length: int | None, max_in_flight_items: int | None) -> None:
    """Refuses arguments of `Client.writer` that make no sense.

    Raises:
        ValueError: names the argument.
    """
    check_positive("max_sequence_length", max_sequence_length)
    if chunk_length is not None and not 1 <= chunk_length <= max_sequence_length:
        raise ValueError(
            f"chunk_length ({chunk_length}) must be at least 1 and at most max_sequence_length ({max_sequence_length})"
        )
    if max_in_flight_items is not None:
        check_positive("max_in_flight_items", max_in_flight_items)


@final
class Writer:
    """See `Client.writer`. For one thread.

    Args:
        writer: what it writes with.
        max_in_flight_items: so many items may be on their way before `create_item` blocks; None for no such limit.
    """

    def __init__(self, writer: TrajectoryWriter, max_in_flight_items: int | None) -> None:
        self._writer = writer
        writer.signature_may_be_of_steps = True
        self._most = max_in_flight_items
        self._closed = False

    def __enter__(self) -> Writer:
        if self._closed:
            raise ValueError("Cannot reuse already closed Writer: make a new one")
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: object) -> None:
        self._closed = True
        self._writer.__exit__(kind, value, traceback)

    def append(self, data: Any) -> None:
        """Appends a step; every step has the same structure."""
        self._writer.append(data)

    def append_sequence(self, sequence: Any) -> None:
        """Appends the steps of a structure of arrays [T, ...]."""
        self._writer.append_batch(sequence)

    def create_item(self, table: str, num_timesteps: int, priority: float) -> None:
        """Creates an item of the latest `num_timesteps` steps, all columns with a time axis.

        Raises:
            ValueError: there are not so many steps, or the writer does not keep them.
        """
        if num_timesteps < 1:
            raise ValueError(f"num_timesteps ({num_timesteps}) must be a positive integer")
        leaves, shape = flatten(self._writer.history)
        if num_timesteps > len(leaves[0]):
            raise ValueError(f"num_timesteps ({num_timesteps}) is more than the {len(leaves[0])} steps appended")
        self._writer.create_item(table, priority, unflatten(shape, [column[-num_timesteps:] for column in leaves]))
        if self._most is not None:
            self._writer.flush(self._most)

    def flush(self) -> None:
        """Blocks until all items are in their tables."""
        self._writer.flush()

    def close(self, retry_on_unavailable: bool = True) -> None:
        """Flushes, and ends the writer. Idempotent.

        Args:
            retry_on_unavailable: False does not wait for a server that went away: it raises `ConnectionBroken`.
        """
        if self._closed:
            return
        self._closed = True
        if not retry_on_unavailable:
            self._writer.patience_s = 0.0
        try:
            self._writer.flush()
        finally:
            self._writer.close()
