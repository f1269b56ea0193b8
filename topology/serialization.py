"""Nodes as bytes: cloudpickle, with errors that say which argument of which node does not travel."""

from __future__ import annotations

import functools
import io
import logging
import pickle
import sys
import types
from collections.abc import Callable
from typing import Any, final

import cloudpickle

from topology.handle import iterate_parts
from topology.node import Node

__all__ = ["dumps", "find_unpicklable"]


_logger = logging.getLogger(__name__)
_LRU_CACHED = functools._lru_cache_wrapper  # noqa: SLF001 - the type has no public name


@final
class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    """Cloudpickle that keeps file names of code, and also takes two things which scripts hold in globals.

    An `lru_cache`d function of `__main__` travels by value, empty, shared within one pickle. absl's `FLAGS` arrives as
    the `FLAGS` of the receiver, to which the flags that only the sender's script defined are added, with their values.
    """

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, _LRU_CACHED) and obj.__module__ == "__main__":
            return _cached, (obj.__wrapped__, obj.cache_parameters())
        if isinstance(obj, types.CodeType):
            # Cloudpickle leaves the file out; tracebacks of nodes are to show where the code is.
            make, arguments = self.dispatch_table[types.CodeType](obj)
            return make, tuple(obj.co_filename if part == "<dynamic-code>" else part for part in arguments)
        absl_flags = sys.modules.get("absl.flags")
        if absl_flags is not None and obj is absl_flags.FLAGS:
            return _absl_flags, (_picklable_flags(obj), obj.is_parsed())
        return super().reducer_override(obj)


def _picklable_flags(flag_values: Any) -> dict[str, bytes]:
    found = {}
    for name in flag_values:
        if flag_values.find_module_defining_flag(name) in sys.modules:
            continue  # a module that the receiver can import defines it there
        try:
            flag = flag_values[name]  # refuses pickle, but is plain data
            found[name] = dumps((type(flag), flag.__dict__))
        except Exception:  # a flag of a kind of its own: a node that reads it says that it is unknown
            _logger.debug("the flag --%s cannot travel", name, exc_info=True)
    return found


def _absl_flags(flags: dict[str, bytes], parsed: bool) -> Any:
    from absl.flags import FLAGS

    for name, pickled in flags.items():
        kind, state = pickle.loads(pickled)
        if name in FLAGS:
            FLAGS[name].__dict__.update(state)
        else:
            flag = kind.__new__(kind)
            flag.__dict__.update(state)
            FLAGS[name] = flag
    if parsed:
        FLAGS.mark_as_parsed()
    return FLAGS


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
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - of any type; the value is somebody's, and may be half made
        text = f"<a {type(value).__name__} whose repr() raised {type(error).__name__}>"
    return text if len(text) <= 80 else text[:77] + "..."
