"""One stream of one worker, as the driver asks for it."""

from __future__ import annotations

import itertools
import os
from typing import final

from topology.nodes.courier.calls import CallFuture
from topology.nodes.flow.actors import Actor
from topology.nodes.flow.failures import Crew
from topology.nodes.flow.items import Item, Origin
from topology.nodes.flow.shards import Reply, StreamSpec, StreamUnknown

__all__ = ["Shard", "new_stream"]

_numbers = itertools.count()


def new_stream() -> str:
    """An identity for a stream, unique among processes."""
    return f"{os.getpid()}-{os.urandom(4).hex()}-{next(_numbers)}"


@final
class Shard:
    """One stream of one worker, as the driver sees it.

    Args:
        actor: the worker.
        spec: the stream.
        crew: the worker's.
        part: which part of how many parts of the stream it asks for; None for all of it.
    """

    def __init__(self, actor: Actor, spec: StreamSpec, crew: Crew, part: tuple[int, int] | None = None) -> None:
        self.actor = actor
        self.crew = crew
        self.in_flight = 0
        self.ended = False
        self.recovers_until: float | None = None  # the time by which the worker must be back
        self.spec = spec
        self._part = part
        self._open = False

    @property
    def usable(self) -> bool:
        """Whether it may be asked for more."""
        return not self.ended and self.recovers_until is None

    def request(self, batch_ms: float = 0) -> CallFuture:
        """Asks for items."""
        self.in_flight += 1
        spec = None if self._open else self.spec
        if self._part is not None:
            return self.actor.submit_with_held("next_slice", self.spec.stream, spec, *self._part, batch_ms)
        return self.actor.submit_with_held("next_items", self.spec.stream, spec, batch_ms)

    def take(self, reply: Reply) -> list[Item]:
        """The items of a reply."""
        values, versions, ended, notes = reply
        self._open = True
        if notes:
            self.crew.on_notes(self.actor, notes)
        if ended:
            self.ended = True
        return [Item(value, (Origin(self.actor, version),)) for value, version in zip(values, versions, strict=True)]

    def recover(self, error: BaseException, until: float) -> CallFuture:
        """Begins to bring back a worker that failed; the future is done when it can be asked again."""
        self._open = False
        self.recovers_until = until
        if not isinstance(error, StreamUnknown):
            self.crew.prepare(self.actor)
        return self.actor.submit("recover")
