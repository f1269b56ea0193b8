"""Handles stand for a node inside other nodes' arguments; `Deferred` delays a constructor to the receiver's process.

A handle anywhere in a node's arguments (lists, tuples, named tuples, dicts, dataclasses, `functools.partial`,
`Deferred`) is an edge of the graph, and is turned into a client in the process of the node that received it, before
its constructor is called. `find_handles` sees exactly what `dereference` replaces.
"""

from __future__ import annotations

import abc
import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

if TYPE_CHECKING:
    from topology.address import Address

__all__ = ["Deferred", "Handle", "dereference", "find_handles", "find_instances", "iterate_parts"]

ClientT = TypeVar("ClientT")
FoundT = TypeVar("FoundT")
ValueT = TypeVar("ValueT")


class Handle(abc.ABC, Generic[ClientT]):
    """Stands for a node until the program runs. Small, picklable, may be given to any number of nodes."""

    @property
    @abc.abstractmethod
    def address(self) -> Address | None:
        """Address of the node it stands for; None when it does not point at a node."""

    @abc.abstractmethod
    def dereference(self) -> ClientT:
        """A client of the node. Works in nodes, and in the launching script while the program runs."""

    if not TYPE_CHECKING:  # a type checker is to find such calls itself

        def __getattr__(self, name: str) -> Any:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            if not name.startswith("_"):
                text += (
                    ": a handle only stands for a node. In a node that was given it, it has become a client; elsewhere "
                    "its dereference() gives one while the program runs"
                )
            raise AttributeError(text, name=name)


@final
class Deferred(Generic[ValueT]):
    """A call made in the receiver's process: `Deferred(f, *args)` as an argument arrives as `f(*args)`.

    Handles among its arguments are dereferenced first.

    Example:
        >>> Deferred(sum, [1, 2]).dereference()
        3
    """

    def __init__(self, constructor: Callable[..., ValueT], *args: object, **kwargs: object) -> None:
        if not callable(constructor):
            raise TypeError(f"Deferred() takes a callable and its arguments, got {constructor!r}")
        self.constructor = constructor
        self.args = args
        self.kwargs = kwargs

    def __repr__(self) -> str:
        return f"Deferred({getattr(self.constructor, '__qualname__', self.constructor)})"

    def dereference(self) -> ValueT:
        result: ValueT = dereference(self)
        return result


def iterate_parts(value: object) -> Iterator[tuple[str, object]]:
    """The direct parts of a container that may hold handles, each with its step of the argument path."""
    if isinstance(value, Deferred | functools.partial):
        yield from ((f".args[{i}]", part) for i, part in enumerate(value.args))
        kwargs: dict[str, object] = value.kwargs if isinstance(value, Deferred) else value.keywords
        yield from ((f".{key}", part) for key, part in kwargs.items())
    elif isinstance(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from ((f".{name}", part) for name, part in zip(value._fields, value, strict=True))
    elif isinstance(value, list | tuple):
        yield from ((f"[{i}]", part) for i, part in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (field.name for field in dataclasses.fields(value))
        yield from ((f".{name}", getattr(value, name)) for name in fields if hasattr(value, name))


def find_handles(value: object, path: str = "") -> Iterator[tuple[str, Handle[Any]]]:
    """Every handle nested in `value`, with the path that leads to it, e.g. `sources[2].learner`."""
    yield from find_instances(value, Handle, path)  # type: ignore[type-abstract]  # it is only compared with


def find_instances(value: object, kind: type[FoundT], path: str = "") -> Iterator[tuple[str, FoundT]]:
    """Everything of a kind nested in `value` where a handle could be, with the path that leads to it."""
    yield from _find(value, kind, path, set())


def _find(value: object, kind: type[FoundT], path: str, open_containers: set[int]) -> Iterator[tuple[str, FoundT]]:
    if isinstance(value, kind):
        yield path, value
        return
    if id(value) in open_containers:
        return  # a container that holds itself
    open_containers.add(id(value))
    for step, part in iterate_parts(value):
        yield from _find(part, kind, path + step, open_containers)
    open_containers.discard(id(value))


def dereference(value: Any) -> Any:
    """`value` with every nested handle turned into its client and every `Deferred` called.

    One handle object becomes one client object, however often it occurs. Containers without either are returned as
    they are, not copied; containers may hold themselves.
    """
    changing = _find_changing(value)
    return _replace(value, changing, {}) if changing else value


def _find_changing(root: object) -> dict[int, object]:
    """The handles, the `Deferred` and everything on the way to them, by id (and kept, so that no id is used again)."""
    seen: dict[int, object] = {}
    holders: dict[int, list[int]] = {}
    found: list[int] = []
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, Handle | Deferred):
            found.append(id(value))
        if not isinstance(value, Handle):
            for _, part in iterate_parts(value):
                holders.setdefault(id(part), []).append(id(value))
                waiting.append(part)
    changing: dict[int, object] = {}
    while found:
        key = found.pop()
        if key not in changing:
            changing[key] = seen[key]
            found += holders.get(key, ())
    return changing


def _replace(value: Any, changing: Mapping[int, object], done: dict[int, Any]) -> Any:
    if id(value) in done:
        return done[id(value)]
    if id(value) not in changing:
        return value
    if isinstance(value, Handle):
        result: Any = value.dereference()
    elif isinstance(value, Deferred | functools.partial | tuple):
        after = [_replace(part, changing, done) for _, part in iterate_parts(value)]
        if id(value) in done:  # it holds a list that holds it, and that way it was finished already
            return done[id(value)]
        result = _rebuild(value, after)
    else:
        return _refill(value, changing, done)
    done[id(value)] = result
    return result


def _rebuild(value: Any, after: list[Any]) -> Any:
    """A value made in one piece from its new parts."""
    if isinstance(value, tuple):
        return value._make(after) if hasattr(value, "_make") else type(value)(after)
    count = len(value.args)
    if isinstance(value, Deferred):
        return value.constructor(*after[:count], **dict(zip(value.kwargs, after[count:], strict=True)))
    return type(value)(value.func, *after[:count], **dict(zip(value.keywords, after[count:], strict=True)))


def _refill(value: Any, changing: Mapping[int, object], done: dict[int, Any]) -> Any:
    """A copy (of the same type) that is known before its parts are: they may hold the value itself."""
    result = done[id(value)] = copy.copy(value)
    after = [_replace(part, changing, done) for _, part in iterate_parts(value)]
    if isinstance(value, dict):
        result.update(zip(value, after, strict=True))
    elif isinstance(value, list):
        result[:] = after
    else:
        names = (field.name for field in dataclasses.fields(value) if hasattr(value, field.name))
        for name, part in zip(names, after, strict=True):
            object.__setattr__(result, name, part)  # frozen dataclasses too
    return result
