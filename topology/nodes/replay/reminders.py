"""Looks whether a writer has gone quiet with items in hand: on one thread for all writers of a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from topology.nodes.replay.alarms import Alarms
from topology.nodes.replay.forks import tell_in_child

__all__ = ["remind"]


@final
class _Reminders:
    def __init__(self) -> None:
        self.alarms = Alarms(lingers=False)
        tell_in_child(self)

    def forked(self) -> None:
        self.alarms = Alarms(lingers=False)  # the thread of the other is not here


_reminders = _Reminders()


def remind(delay_s: float, action: Callable[[], object]) -> bool:
    """Calls `action` in `delay_s` seconds; returns whether it will. It must not wait, and what it raises is logged."""
    try:
        _reminders.alarms.schedule(delay_s, action)
    except RuntimeError:  # no thread can be started any more, as when the interpreter ends: see `at_exit`
        return False
    return True
