"""Attributes that programs may also set themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

__all__ = ["Computed"]


@final
class Computed:
    """A property that gives way to an attribute of the object: a program's own class may have one of that name."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else self._function(instance)
