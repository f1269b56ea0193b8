"""Nodes that run a function, or an object with a `run` method."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from topology.handle import dereference
from topology.node import HandleT_co, Node, NodeDescription

__all__ = ["PyClassNode", "PyNode", "describe_call"]


def describe_call(constructor: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by parameter name, in order; by position where the signature does not name them."""
    try:
        bound = inspect.signature(constructor).bind(*args, **kwargs)
    except (TypeError, ValueError):  # builtins without a signature, or a call that will fail when the node starts
        return {**{str(i): value for i, value in enumerate(args)}, **kwargs}
    arguments: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            arguments |= {f"{name}[{i}]": part for i, part in enumerate(value)}
        elif kind is inspect.Parameter.VAR_KEYWORD:
            arguments |= dict(sorted(value.items()))  # whoever made the call, the graph is the same
        else:
            arguments[name] = value
    return arguments


class _CallNode(Node[HandleT_co]):
    """A node that calls something with arguments in which handles are dereferenced first."""

    def __init__(self, constructor: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        if not callable(constructor):
            raise TypeError(f"{type(self).__name__}() takes a callable and its arguments, got {constructor!r}")
        self._constructor = constructor
        self._args = args
        self._kwargs = kwargs

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {getattr(self._constructor, '__qualname__', self._constructor)}>"

    @property
    def constructor(self) -> Callable[..., Any]:
        """What the node calls in its own place."""
        return self._constructor

    def configure(self, *args: Any, **kwargs: Any) -> None:
        """Replaces the arguments: so that two nodes can hold each other's handles."""
        self._args = args
        self._kwargs = kwargs

    def describe(self) -> NodeDescription:
        constructor, args, kwargs = self._whole_call()
        return NodeDescription(constructor=constructor, arguments=describe_call(constructor, args, kwargs))

    def faults(self) -> list[str]:
        constructor, args, kwargs = self._whole_call()
        try:
            # As it is written, not what it wraps: a decorator may add arguments.
            signature = inspect.signature(constructor, follow_wrapped=False)
        except (TypeError, ValueError):  # it has none that Python knows
            return super().faults()
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            name = getattr(constructor, "__qualname__", constructor)
            return [f"{name}{signature} cannot be called with the given arguments: {error}", *super().faults()]
        return super().faults()

    def _whole_call(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """The call with the arguments that a `functools.partial` brings: they may hold handles like any others."""
        constructor = self._constructor
        if isinstance(constructor, functools.partial):
            return constructor.func, (*constructor.args, *self._args), {**constructor.keywords, **self._kwargs}
        return constructor, self._args, self._kwargs

    def _call(self) -> Any:
        constructor, args, kwargs = self._whole_call()
        args, kwargs = dereference((args, kwargs))
        return constructor(*args, **kwargs)


class PyNode(_CallNode[None]):
    """Runs `function(*args, **kwargs)` and ends when it returns. Has no handle.

    Args:
        function: called in the node's own place, with handles turned into clients.
    """

    def __init__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(function, args, kwargs)

    @property
    def function(self) -> Callable[..., Any]:
        """What the node runs."""
        return self._constructor

    def create_handle(self) -> None:
        return None

    def run(self) -> None:
        self._call()


class PyClassNode(_CallNode[HandleT_co]):
    """Makes an object in the node's own place and calls its `run()`.

    Args:
        constructor: a class, or any callable that returns the object.
    """

    def __init__(self, constructor: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(constructor, args, kwargs)
        self._should_run = True

    def disable_run(self) -> None:
        """Makes the object but does not call its `run()`: a test drives the object itself."""
        self._should_run = False

    def enable_run(self) -> None:
        """Takes `disable_run` back."""
        self._should_run = True

    def create_handle(self) -> HandleT_co:
        return None  # type: ignore[return-value]  # subclasses that can be called return a handle

    def run(self) -> None:
        instance = self._call()
        if self._should_run:
            instance.run()
