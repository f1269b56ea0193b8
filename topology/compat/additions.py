"""What classes of ours have besides while the modules of others are provided, and only then."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

__all__ = ["add", "put_additions", "take_additions_away", "with_additions"]

_ABSENT = object()

_sources: list[Callable[[], None]] = []
_replaced: list[tuple[type, str, object]] = []  # what a class had itself before, in the order of the additions
_are_there = False


def with_additions(source: Callable[[], None]) -> None:
    """Calls `source`, which adds members with `add`: now if the modules are provided, and whenever they are again.

    Idempotent. For the modules that are provided: they are imported once, and provided as often as somebody asks.
    """
    if source in _sources:
        return
    _sources.append(source)
    if _are_there:
        source()


def add(kind: type, **members: object) -> None:
    """Adds members to a class of ours, or replaces its own. Those that it derives from stay as they are."""
    for name, member in members.items():
        _replaced.append((kind, name, vars(kind).get(name, _ABSENT)))
        setattr(kind, name, member)
    _look_again(kind)


def put_additions() -> None:
    """The modules are provided from now on. Idempotent."""
    global _are_there
    if _are_there:
        return
    _are_there = True
    for source in _sources:
        source()


def take_additions_away() -> None:
    """The modules are provided no more: each class is as it was. Idempotent."""
    global _are_there
    _are_there = False
    while _replaced:
        kind, name, before = _replaced.pop()
        if before is _ABSENT:
            delattr(kind, name)
        else:
            setattr(kind, name, before)
        _look_again(kind)


def _look_again(kind: type) -> None:
    """What a class, and those derived from it, remember of their members is found anew."""
    if isinstance(kind, abc.ABCMeta):
        untyped: Any = kind
        abc.update_abstractmethods(untyped)
        # What counts as an instance of it may have changed, and no documented way says so.
        untyped._abc_caches_clear()  # noqa: SLF001 - as above
    derived: type
    for derived in kind.__subclasses__():
        _look_again(derived)
