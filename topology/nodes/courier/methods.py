"""What a server exposes, and what it learns about each method while it serves."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any, TypeVar, final

__all__ = ["Method", "asynchronous", "expose_properties", "is_asynchronous", "public_methods"]

_logger = logging.getLogger(__name__)

_F = TypeVar("_F", bound=Callable[..., Any])

FAST_S = 200e-6
"""A method that usually takes less is run by the thread that read the request: handing over would cost as much."""

_WEIGHT = 0.25  # of the latest call in the average
_MOST_S = 10 * FAST_S


def asynchronous(function: _F) -> _F:
    """Marks a handler that returns a `concurrent.futures.Future`: the reply goes out when that is done.

    Waiting for it holds no thread. The handler itself must return at once. When the caller goes away or cancels, the
    future is cancelled.
    """
    function.__courier_asynchronous__ = True  # type: ignore[attr-defined]
    return function


def is_asynchronous(function: Callable[..., Any]) -> bool:
    """Whether `function`, or the function behind a bound method or partial, is marked `asynchronous`."""
    return bool(getattr(getattr(function, "func", function), "__courier_asynchronous__", False))


@final
class Method:
    """A handler, how long it takes, and whether it answers when it returns."""

    __slots__ = (
        "asynchronous", "average_s", "calls", "close", "errors", "fast", "function", "inline", "name", "prompt", "raw",
    )  # fmt: skip

    def __init__(self, name: str, function: Callable[..., Any], *, raw: bool = False) -> None:
        self.name = name
        self.function = getattr(function, "submit", function) if is_asynchronous(function) else function
        self.close: Callable[[], None] | None = None
        if raw or is_asynchronous(function):
            self.close = getattr(function, "close", None)  # ends what waits behind the handler
        self.raw = raw
        self.asynchronous = raw or is_asynchronous(function)
        self.fast = self.asynchronous  # known by contract; of others nothing is known yet
        self.prompt = not self.asynchronous  # whether the latest call was answered when its handler returned
        self.inline = False  # fast, and prompt: nothing is under way when its reply has gone out
        self.average_s: float | None = None
        self.calls = 0
        self.errors = 0

    def took(self, seconds: float) -> None:
        """Learns from one call. An outlier counts for a little: the machine may have been busy elsewhere."""
        self.calls += 1
        seconds = min(seconds, _MOST_S)
        if self.average_s is None:
            self.average_s = seconds
        else:
            self.average_s += _WEIGHT * (seconds - self.average_s)
        quick = self.average_s < FAST_S
        self.fast = self.asynchronous or quick
        self.inline = quick and self.prompt

    def blocked(self) -> None:
        """Learns at once that a call that was thought to be fast is not."""
        self.average_s = _MOST_S
        self.fast = self.inline = False


def public_methods(instance: object) -> dict[str, Callable[..., Any]]:
    """The methods of `instance` that may be called from outside: public ones, and `__call__`.

    Properties are not evaluated, but for `expose_properties`. Attributes of the instance that are callable count as
    methods, also those that its `__dir__` names and its `__getattr__` gives, as wrappers do.
    """
    found: dict[str, Callable[..., Any]] = {}
    for name in dir(instance):
        if name.startswith("_") and name != "__call__":
            continue
        static = inspect.getattr_static(instance, name, None)
        if inspect.isclass(static) or (isinstance(static, property) and not _properties_count):
            continue
        value = _evaluate(instance, name) if isinstance(static, property) else getattr(instance, name, None)
        if callable(value):
            found[name] = value
    return found


_properties_count = False


def expose_properties(wanted: bool) -> None:
    """From now on a property whose value can be called is a method, too. It is evaluated once, when it is bound."""
    global _properties_count
    _properties_count = wanted


def _evaluate(instance: object, name: str) -> Any:
    try:
        return getattr(instance, name, None)
    except Exception:  # any code may run here, and a value that is not there yet is no method
        _logger.debug("the property %s of %r cannot be evaluated, and is no method", name, instance, exc_info=True)
        return None
