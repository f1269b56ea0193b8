"""How those who learn and those who play are kept in step."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence

from topology.errors import ProgramError

__all__ = ["Synchronization", "synchronization_of", "unsupported"]


class Synchronization(enum.StrEnum):
    """How a trainer and its workers are kept in step.

    SYNC: what the trainer trains on was made by exactly the newest policy; for algorithms that learn on-policy.
    ASYNC: nobody waits for anybody while there is something to do; for algorithms that learn off-policy.
    """

    SYNC = "sync"
    ASYNC = "async"


def synchronization_of(text: str) -> Synchronization:
    """The one that is written so.

    Raises:
        ProgramError: there is none.
    """
    try:
        return Synchronization(text)
    except ValueError:
        known = ", ".join(map(repr, map(str, Synchronization)))
        raise ProgramError(f"synchronization={text!r}: one of {known}") from None


def unsupported(chosen: Synchronization, supported: Sequence[Synchronization], settings: str) -> Iterator[str]:
    """A fault, if an algorithm does not support it. `settings`: the name of its class of settings."""
    if chosen not in supported:
        agent = settings.removeprefix("ScaleOut").removesuffix("Config")
        known = ", ".join(map(str, supported))
        yield f"synchronization={str(chosen)!r}: {agent} learns from what its newest policy did, and supports {known}"
