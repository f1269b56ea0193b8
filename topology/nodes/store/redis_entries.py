"""What a memory in Redis knows of its writers and of the entries of its stream."""

from __future__ import annotations

import re
import secrets
from typing import NamedTuple, final

from topology.errors import StoreDataError
from topology.nodes.store.codec import Buffer, decode
from topology.nodes.store.experience import Experience, common_length
from topology.nodes.store.shelf import Wish

__all__ = ["Entry", "RedisWriter", "amount_of", "enough", "entry_of", "experience_of"]

_SIZES = re.compile(rb"(\d+) (\d+) ([01]) (.+)", re.DOTALL)


@final
class RedisWriter:
    """Who stores, one call at a time, and how often it has.

    Args:
        prefix: of the memory's keys.
    """

    def __init__(self, prefix: bytes) -> None:
        self.name = secrets.token_hex(8).encode()
        self.number = 0
        self.key = prefix + b"writer:" + self.name
        self.wake = prefix + b"wake:" + self.name
        self._data = prefix + b"data:" + self.name

    @property
    def data(self) -> bytes:
        """Key of the frame of what it stores now."""
        return b"%s:%d" % (self._data, self.number)


class Entry(NamedTuple):
    """One of the stream, with what we know of it."""

    id: bytes
    whole_episode: bool
    data: bytes  # key of its frame; b"": not stored by us


def entry_of(id_: bytes, sizes: bytes) -> Entry:
    """An entry, from its id and the text of its sizes."""
    match = _SIZES.fullmatch(sizes)
    return Entry(id_, False, b"") if match is None else Entry(id_, match[3] == b"1", match[4])


def experience_of(entry: Entry, frame: Buffer | None) -> Experience:
    """What an entry and its frame hold.

    Raises:
        StoreDataError, ValueError: that is no experience.
        ImportError: it was packed with a package that is not installed.
    """
    if frame is None:
        raise StoreDataError("its frame is gone")
    columns, meta = decode(frame)
    common_length(columns)
    return Experience(columns, meta, entry.whole_episode, entry.id.decode())


def amount_of(experiences: list[Experience], wish: Wish) -> int:
    """How many steps, or episodes, they have."""
    if wish.of_episodes:
        return sum(experience.whole_episode for experience in experiences)
    return sum(experience.steps for experience in experiences)


def enough(experiences: list[Experience], wish: Wish) -> int:
    """How many of them, from the first, fulfil the wish."""
    count = found = 0
    while found < wish.number:
        found += amount_of(experiences[count : count + 1], wish)
        count += 1
    return count
