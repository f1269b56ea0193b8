"""What a data store needs of the technology under it.

A medium keeps two things: bytes under names that are written once, and a record of which there is one at a time. It
replaces the record as a whole, and only by its successor. Everything else about data stores stands on this.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable, Sequence

from topology.errors import StoreError
from topology.nodes.store.codec import Buffer
from topology.nodes.store.policy_waits import Wait

__all__ = ["BlobMissing", "Medium"]


class BlobMissing(StoreError):
    """No bytes of that name are there."""


class Medium(abc.ABC):
    """The interface. Thread-safe; pickles without its connections. For errors see `DataStore`."""

    @abc.abstractmethod
    def __repr__(self) -> str:
        """Where it is, without passwords."""

    @abc.abstractmethod
    def check(self) -> None:
        """Raises what is wrong with the place, if it can be seen without writing."""

    @abc.abstractmethod
    def read(self) -> bytes | None:
        """The record, or None when there is none yet. What this process has written or read is never taken back."""

    @abc.abstractmethod
    def write(self, revision: int, record: bytes, blobs: Sequence[str]) -> bool:
        """Makes `record` the record, if that of `revision - 1` is; returns whether it did. All at once or not at all.

        Args:
            revision: of `record`, from 1.
            record: what `read` returns from now on.
            blobs: names of the bytes that it speaks of for the first time.

        Raises:
            BlobMissing: one of them is gone.
        """

    @abc.abstractmethod
    def put(self, name: str, parts: Sequence[Buffer]) -> None:
        """Keeps bytes under a new name; they are safe when this returns, and never changed."""

    @abc.abstractmethod
    def get(self, name: str) -> Buffer:
        """Bytes by name.

        Raises:
            BlobMissing: they are not there.
        """

    @abc.abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Removes bytes. Those that are not there do not matter."""

    @abc.abstractmethod
    def leftovers(self) -> list[str]:
        """Names that `delete` takes: of all bytes that are there, if nothing but `delete` ever removes them."""

    @abc.abstractmethod
    def wait_changed(self, revision: int, wait: Wait, most_s: float = math.inf) -> None:
        """Blocks until there may be a later record than that of `revision`, or `wait` is over, or for `most_s`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Lets go of connections when calls under way have ended; later ones raise `StoreClosed`. Idempotent."""
