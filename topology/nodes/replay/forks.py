"""What a forked child may not go on with: conversations that are its parent's, locks that nobody gives back.

The connections below renew themselves, see `courier`. What stands above them and remembers what was said over them is
told here: messages sent by both processes under one name, or a wait for a reply that the other one gets, would be lost
items and calls without end.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from topology.errors import ReplayError

__all__ = ["Inherited", "inherited_error", "tell_in_child"]


class Inherited(Protocol):
    """Something that must know when it finds itself in another process."""

    def forked(self) -> None:
        """Runs in a forked child, before anything else does. Its locks may be held by threads that are not there."""


_all: weakref.WeakSet[Inherited] = weakref.WeakSet()


def tell_in_child(thing: Inherited) -> None:
    """Has `thing.forked()` called in every child that is forked while `thing` lives."""
    _all.add(thing)


def inherited_error(what: str) -> ReplayError:
    """What to raise for the use of `what`, which is the parent's."""
    return ReplayError(f"{what} belongs to the process that forked this one: make a new one here")


def _tell() -> None:
    for thing in list(_all):
        thing.forked()


os.register_at_fork(after_in_child=_tell)
