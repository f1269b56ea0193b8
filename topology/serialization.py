"""Nodes as bytes: cloudpickle, with errors that say which argument of which node does not travel."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import Any, final

import cloudpickle

from topology.handle import iterate_parts
from topology.node import Node

__all__ = ["dumps", "find_unpicklable"]


_LRU_CACHED = functools._lru_cache_wrapper  # noqa: SLF001 - the type has no public name


@final
class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    """Cloudpickle that also takes an `lru_cache`d function of `__main__`: by value, empty, shared within one pickle."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, _LRU_CACHED) and obj.__module__ == "__main__":
            return _cached, (obj.__wrapped__, obj.cache_parameters())
        return super().reducer_override(obj)


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    cached: Callable[..., Any] = functools.lru_cache(**parameters)(function)
    return cached


def dumps(value: object) -> bytes:
    """`value` as bytes for `pickle.loads`; what `__main__` defines travels by value."""
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump(value)
    return file.getvalue()


def find_unpicklable(node: Node[Any]) -> list[str]:
    """One line for every part of a node that cannot be pickled; [] when it can."""
    try:
        dumps(node)
    except Exception as error:  # noqa: BLE001 - pickling runs user code, which may raise anything
        description = node.describe()
        parts = {"constructor": description.constructor, **description.arguments}
        faults = [fault for name, part in parts.items() for fault in _faults(part, name, ())]
        inner = [f"nodes[{i}].{fault}" for i, part in enumerate(node.inner_nodes) for fault in find_unpicklable(part)]
        return faults or inner or [f"node itself cannot be pickled: {_text(error)}"]
    return []


def _faults(value: object, path: str, around: tuple[object, ...]) -> list[str]:
    if any(value is container for container in around):
        return []  # a container that holds itself
    try:
        dumps(value)
    except Exception as error:  # noqa: BLE001 - as above
        around = (*around, value)
        inner = [fault for step, part in iterate_parts(value) for fault in _faults(part, path + step, around)]
        return inner or [f"{path} = {_short(value)} cannot be pickled: {_text(error)}"]
    return []


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
