"""Nested structures: taken apart into leaves, and put together again with the same types.

Containers are dicts, lists, tuples, named tuples and dataclasses; anything else, None too, is a leaf. Dicts are walked
in the order of their sorted keys, as in dm-tree and JAX. A `Shape` is what remains when the leaves are taken out:
hashable, picklable (classes by reference or by value), and comparable across processes through `describe`.
"""

from __future__ import annotations

import dataclasses
import operator
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, final

__all__ = ["Matcher", "Path", "Shape", "describe", "flatten", "leaf_count", "paths", "show_path", "unflatten"]

Path: TypeAlias = "tuple[str | int, ...]"
# None for a leaf; else (class of the container, keys, shapes of the children).
Shape: TypeAlias = "tuple[type, tuple[str | int, ...], tuple[Shape, ...]] | None"

# Whether a type is a container, for types seen so far.
_known: dict[type, bool] = {}


def flatten(tree: Any) -> tuple[list[Any], Shape]:
    """Leaves of `tree`, in order, and its shape.

    Example:
        >>> leaves, shape = flatten({"b": (1, 2), "a": 0})
        >>> leaves
        [0, 1, 2]
        >>> unflatten(shape, "xyz")
        {'a': 'x', 'b': ('y', 'z')}
    """
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves)


def _flatten(tree: Any, leaves: list[Any]) -> Shape:
    kind = type(tree)
    if kind is dict:  # by far the most frequent container: no detour for it
        keys = tuple(sorted(tree))
        shapes: list[Shape] = []
        for key in keys:
            child = tree[key]
            if _known.get(type(child), True) and _is_container(child):
                shapes.append(_flatten(child, leaves))
            else:
                leaves.append(child)
                shapes.append(None)
        return kind, keys, tuple(shapes)
    if not _is_container(tree):
        leaves.append(tree)
        return None
    kind, keys, children = _open(tree)
    return kind, keys, tuple([_flatten(child, leaves) for child in children])


def _is_container(value: Any) -> bool:
    kind = type(value)
    answer = _known.get(kind)
    if answer is None:
        answer = _known[kind] = isinstance(value, dict | list | tuple) or (
            hasattr(kind, "__dataclass_fields__") and not hasattr(kind, "__array__")
        )
    return answer


def _open(tree: Any) -> tuple[type, tuple[str | int, ...], list[Any]]:
    """Class, keys and children of a container."""
    kind = type(tree)
    if isinstance(tree, dict):
        keys = tuple(sorted(tree))
        return (OrderedDict if isinstance(tree, OrderedDict) else dict), keys, [tree[key] for key in keys]
    if hasattr(kind, "_fields"):
        return kind, tuple(kind._fields), list(tree)
    if isinstance(tree, list | tuple):
        return (list if isinstance(tree, list) else tuple), tuple(range(len(tree))), list(tree)
    keys = tuple(field.name for field in dataclasses.fields(tree))
    return kind, keys, [getattr(tree, str(key)) for key in keys]


@final
class Matcher:
    """Takes apart trees of one known shape, several times faster than `flatten`, which must find the shape out.

    Attributes:
        shape: the shape.
    """

    __slots__ = ("_children", "_kind", "_matchers", "_size", "shape")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._kind: type | None = None
        self._size: int | None = None  # None where the class implies it
        self._children: Callable[[Any], Sequence[Any]] = lambda leaf: (leaf,)
        self._matchers: list[Matcher] | None = None  # None when all children are leaves
        if shape is not None:
            self._kind, keys, shapes = shape
            self._children = _opener(self._kind, keys)
            if issubclass(self._kind, dict | list | tuple):
                self._size = len(keys)
            if any(shapes):
                self._matchers = [Matcher(child) for child in shapes]

    def leaves(self, tree: Any) -> Sequence[Any] | None:
        """The leaves of `tree`, in the order of `flatten`; None when it is of another shape."""
        if self._kind is not None and type(tree) is not self._kind:
            return None
        if self._size is not None and len(tree) != self._size:
            return None
        try:
            children = self._children(tree)
        except (KeyError, AttributeError):
            return None
        if self._matchers is not None:
            return self._descend(self._matchers, children)
        for child in children:
            if _known.get(type(child), True) and _is_container(child):
                return None
        return children

    @staticmethod
    def _descend(matchers: Sequence[Matcher], children: Sequence[Any]) -> list[Any] | None:
        leaves: list[Any] = []
        for matcher, child in zip(matchers, children, strict=True):
            some = matcher.leaves(child)
            if some is None:
                return None
            leaves.extend(some)
        return leaves


def _opener(kind: type, keys: tuple[str | int, ...]) -> Callable[[Any], Sequence[Any]]:
    """A function that gives the children of a container of that class which has these keys."""
    if issubclass(kind, list | tuple):
        return lambda tree: tree
    named = issubclass(kind, dict)
    if len(keys) > 1:
        return operator.itemgetter(*keys) if named else operator.attrgetter(*map(str, keys))
    if named:
        return lambda tree: [tree[key] for key in keys]
    return lambda tree: [getattr(tree, str(key)) for key in keys]


def unflatten(shape: Shape, leaves: Sequence[Any]) -> Any:
    """Puts `leaves` back into `shape`.

    Raises:
        ValueError: their number is not that of the shape's leaves.
    """
    expected = leaf_count(shape)
    if expected != len(leaves):
        raise ValueError(f"{describe(shape)} has {expected} leaves, got {len(leaves)}")
    return _build(shape, iter(leaves))


def _build(shape: Shape, leaves: Iterator[Any]) -> Any:
    if shape is None:
        return next(leaves)
    kind, keys, shapes = shape
    children = [_build(child, leaves) for child in shapes]
    if issubclass(kind, dict):
        return kind(zip(keys, children, strict=True))
    if kind is list or kind is tuple:
        return kind(children)
    return kind(**dict(zip(map(str, keys), children, strict=True)))


def leaf_count(shape: Shape) -> int:
    """Number of leaves of a shape."""
    return 1 if shape is None else sum(map(leaf_count, shape[2]))


def paths(shape: Shape) -> list[Path]:
    """The keys that lead to each leaf, in the order of `flatten`."""
    if shape is None:
        return [()]
    _, keys, shapes = shape
    return [(key, *rest) for key, child in zip(keys, shapes, strict=True) for rest in paths(child)]


def show_path(path: Path) -> str:
    """A path as messages name it.

    Example:
        >>> show_path(("observation", "pixels", 0))
        'observation/pixels/0'
    """
    return "/".join(map(str, path)) or "(root)"


def describe(shape: Shape) -> str:
    """A shape as text. Two processes that each have their own `__main__.Step` give the same text for it.

    Example:
        >>> describe(flatten({"a": 0, "b": (1, 2)})[1])
        'dict(a=*, b=tuple(0=*, 1=*))'
    """
    if shape is None:
        return "*"
    kind, keys, shapes = shape
    inside = ", ".join(f"{key}={describe(child)}" for key, child in zip(keys, shapes, strict=True))
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{name}({inside})"
