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
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

if TYPE_CHECKING:
    from topology.address import Address

__all__ = ["Deferred", "Handle", "dereference", "find_handles", "iterate_parts"]

ClientT = TypeVar("ClientT")
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
        return self.constructor(*dereference(self.args), **dereference(self.kwargs))


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
    yield from _find(value, path, set())


def _find(value: object, path: str, open_containers: set[int]) -> Iterator[tuple[str, Handle[Any]]]:
    if isinstance(value, Handle):
        yield path, value
        return
    if id(value) in open_containers:
        return  # a container that holds itself
    open_containers.add(id(value))
    for step, part in iterate_parts(value):
        yield from _find(part, path + step, open_containers)
    open_containers.discard(id(value))


def dereference(value: Any) -> Any:
    """`value` with every nested handle turned into its client and every `Deferred` called.

    One handle object becomes one client object, however often it occurs. Containers without either are returned as
    they are, not copied.
    """
    return _dereference(value, {})


def _dereference(value: Any, done: dict[int, Any]) -> Any:
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, Handle):
        result: Any = value.dereference()
    elif isinstance(value, Deferred):
        arguments = _dereference(value.args, done), _dereference(value.kwargs, done)
        result = value.constructor(*arguments[0], **arguments[1])
    else:
        done[id(value)] = value  # ends the recursion of a container that holds itself
        result = _rebuild(value, done)
    done[id(value)] = result
    return result


def _rebuild(value: Any, done: dict[int, Any]) -> Any:
    before = [part for _, part in iterate_parts(value)]
    after = [_dereference(part, done) for part in before]
    if all(new is old for new, old in zip(after, before, strict=True)):
        return value
    if isinstance(value, functools.partial):
        count = len(value.args)
        return functools.partial(value.func, *after[:count], **dict(zip(value.keywords, after[count:], strict=True)))
    if isinstance(value, dict):
        result = copy.copy(value)  # keeps the type: OrderedDict, defaultdict, ...
        result.update(zip(value, after, strict=True))
        return result
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(after)
    if isinstance(value, list | tuple):
        return type(value)(after)
    result = copy.copy(value)
    names = (field.name for field in dataclasses.fields(value) if hasattr(value, field.name))
    for name, part in zip(names, after, strict=True):
        object.__setattr__(result, name, part)  # frozen dataclasses too
    return result
