"""How a reader gets experience out of the tables of a replay service."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from typing import NamedTuple, final

import numpy as np

from topology.errors import ReplayDeadlineExceeded, StoreClosed
from topology.nodes import replay
from topology.nodes.replay.links import SampleCallArguments
from topology.nodes.replay.messages import Occupancy
from topology.nodes.store.replay_items import Item, items_of
from topology.nodes.store.shelf import Shelf

__all__ = ["Plan", "ReplayReader", "Seen"]

_ANSWER_S = 1.0  # in which a table gives what was in it a moment ago
_MOST_ITEMS = 32  # in one batch: what the reader has not asked for had better stay where it is
_NOBODY = bytes(16)  # who reads a memory that was deleted


class Plan(NamedTuple):
    """What is waited for: another number of inserts than that, and so many inserted steps."""

    inserts: int
    steps: int
    changes: int  # of the reader, until then


class Seen(NamedTuple):
    """What was in both tables after a wait."""

    there: Occupancy
    named: Occupancy
    changes: int  # of the reader, before


@final
class ReplayReader:
    """What is known of the table, and what of it was not handed out. Not thread-safe, but for `sleep`.

    Attributes:
        shelf: what was read and not handed out.

    Args:
        client: of the replay server.
        name: of the memory.
    """

    def __init__(self, client: replay.Client, name: str) -> None:
        self.shelf: Shelf[Item] = Shelf()
        self._there = Occupancy(0, 0, 0, 0)  # what was in the table when it was looked at last
        self._client = client
        self._name = name
        self._reader: bytes | None = None
        self._named = Occupancy(0, 0, 0, 0)  # what was in the table of readers when that was seen to be this one
        self._known: dict[str, tuple[int, int]] = {}  # key and steps of what is in the table and was read
        self._read_steps: tuple[int, int] | None = (
            None  # life of the table, and how many of its inserted steps were read
        )
        self._changes = 0  # how often anything of this has changed

    @property
    def is_reader(self) -> bool:
        """Whether it has ever become the reader of the memory."""
        return self._reader is not None

    @property
    def held(self) -> tuple[int, int]:
        """How many experiences are handed out and not let go of, and their steps."""
        steps = sum(steps for _, steps in self._known.values())
        return len(self._known) - len(self.shelf), steps - self.shelf.steps

    def recover(self) -> None:
        """Becomes the reader, and begins anew."""
        self._reader = secrets.token_bytes(16)
        self._name_reader(self._reader)
        self.shelf.clear()
        self._known.clear()
        self._read_all()

    def depose(self) -> None:
        """Tells the reader, whoever it is, to begin anew."""
        self._name_reader(_NOBODY)

    def _name_reader(self, reader: bytes) -> None:
        self._client.insert(np.frombuffer(reader, "u1"), {f"{self._name}.reader": 1.0})

    def read_on(self, is_enough: Callable[[], bool], missing: int = 0, seen: Seen | None = None) -> None:
        """Puts on the shelf what is new, until that is enough.

        Args:
            is_enough: whether it is.
            missing: steps without which there is no need to read anything.
            seen: what `sleep` returned.

        Raises:
            StoreClosed: another handle has become the reader.
        """
        newest = self._look(seen)
        if newest == _NOBODY:
            self.recover()
            return
        if newest != self._reader:
            raise StoreClosed(
                f"another handle has become the reader of memory {self._name!r}, and gets what was not acknowledged; a "
                "memory has one reader at a time. recover() takes it back"
            )
        unread = self._unread_steps()
        if unread is not None and unread < 0:  # somebody else has emptied the table
            self.recover()
            return
        if unread is not None and unread < missing:
            return
        size = self._there.size
        new = size - len(self._known)
        try:
            while new > 0 and not is_enough():
                items = self._sample(min(new, _MOST_ITEMS))
                self._keep(items)
                new -= len(items)
        except ReplayDeadlineExceeded:  # they are not there any more
            self.recover()
            return
        if len(self._known) == size:
            self._read_steps = self._there.life, self._there.inserted_steps
        elif not is_enough() and len(self._known) != self._size():
            # Somebody else has deleted items, the server has begun anew, or what was read was lost on the way.
            self.recover()

    def _unread_steps(self) -> int | None:
        """Steps that came into the table and were not read; None when that is not known."""
        if self._read_steps is None or self._read_steps[0] != self._there.life:
            return None
        return self._there.inserted_steps - self._read_steps[1]

    def _look(self, seen: Seen | None) -> bytes:
        """Looks at what is there; returns who reads."""
        if self._reader is None:
            return _NOBODY
        readers = f"{self._name}.reader"
        if seen is not None and seen.changes == self._changes:
            self._there, named = seen.there, seen.named
        else:
            self._there, named = self._client.occupancy(self._name, readers)
        self._changes += 1
        if named == self._named:  # nobody has named himself since
            return self._reader
        if not named.size:
            return _NOBODY  # the server has begun anew
        try:
            newest: bytes = self._client.sample_batch(readers, 1, timeout_s=_ANSWER_S).data.tobytes()
        except ReplayDeadlineExceeded:
            return _NOBODY
        if newest == self._reader:
            self._named = named
        return newest

    def _size(self) -> int:
        (self._there,) = self._client.occupancy(self._name)
        return self._there.size

    def _read_all(self) -> None:
        # What was read goes behind all else in the table, so that this ends; and what was delivered before had been
        # behind what was not, but is to go in front of it.
        items: dict[int, Item] = {}
        while (missing := self._size() - len(items)) > 0:
            with contextlib.suppress(ReplayDeadlineExceeded):  # they are not there any more
                for item in self._sample(min(missing, _MOST_ITEMS)):
                    items.setdefault(item.key, item)
        self._keep(sorted(items.values(), key=lambda item: not item.delivered))  # keeps the order of both
        self._read_steps = self._there.life, self._there.inserted_steps

    def _sample(self, count: int) -> list[Item]:
        return items_of(
            self._client, self._client.link.sample(SampleCallArguments(self._name, count, _ANSWER_S, marked=True))
        )

    def _keep(self, items: list[Item]) -> None:
        if self._read_steps is not None:
            life, steps = self._read_steps
            self._read_steps = life, steps + sum([item.steps for item in items])
        for item in items:
            if item.experience.id not in self._known:
                self._known[item.experience.id] = item.key, item.steps
                self.shelf.add(item)

    def plan(self, missing: int) -> Plan:
        """What to wait for, after `read_on`: for that many steps to be there that were not read, or for anything."""
        if self._read_steps is None or not missing:
            return Plan(self._there.inserts, 0, self._changes)
        return Plan(self._there.inserts, self._read_steps[1] + missing, self._changes)

    def sleep(self, plan: Plan, at_most_s: float) -> Seen:
        """Sleeps until what was planned is there; for so many seconds at most."""
        there, named = self._client.wait_for_inserts(
            self._name, plan.inserts, at_most_s, steps=plan.steps, also=[f"{self._name}.reader"]
        )
        return Seen(there, named, plan.changes)

    def let_go(self, ids: list[str]) -> None:
        """Deletes what was handed out; what is not known is ignored."""
        self._changes += 1
        known = [self._known.pop(id_, None) for id_ in ids]
        keys = [each[0] for each in known if each is not None]
        if keys:
            self._client.mutate_priorities(self._name, deletes=keys)
