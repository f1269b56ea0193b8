"""Whether nodes can travel to other processes, asked as Launchpad's programs ask it."""

from __future__ import annotations

import copyreg
import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import topology
from topology.compat.command_line import parse_flags
from topology.errors import SerializationError
from topology.node import Node
from topology.serialization import dumps, find_unpicklable

__all__ = ["check_nodes_are_serializable", "enable_lru_cache_pickling_once", "launch", "serialize_functions"]

_logger = logging.getLogger(__name__)


def check_nodes_are_serializable(label: str, nodes: Sequence[Node[Any]]) -> None:
    """Raises `SerializationError`, a `RuntimeError`, with every part of the nodes of a group that cannot be pickled."""
    faults = tuple(f"{label}/{i}: {fault}" for i, node in enumerate(nodes) for fault in find_unpicklable(node))
    if faults:
        raise _error([label], "\n".join(faults), faults)


def _error(labels: Iterable[str], text: str, faults: tuple[str, ...]) -> SerializationError:
    """In the original's words, and ours below."""
    lines = [f"The nodes associated to the label {label!r} are not serializable" for label in labels]
    return SerializationError("\n".join([*lines, text]), faults=faults)


def launch(
    programs: Any,
    launch_type: Any = None,
    xm_resources: Any = None,
    local_resources: Any = None,
    test_case: Any = None,
    terminal: str | None = None,
    *,
    serialize_py_nodes: bool | None = None,
    controller_xm_requirements: Any = None,
    **options: Any,
) -> Any:
    """`topology.launch`: of several programs the first, and the error about pickling in the original's words.

    It first reads the command line as flags, if nobody has done so.
    """
    parse_flags()
    if isinstance(programs, list | tuple) and len(programs) > 1:
        _logger.warning("of %d programs only the first is launched: call lp.launch() once for each", len(programs))
        programs = programs[0]
    try:
        return topology.launch(
            programs,
            launch_type,
            xm_resources,
            local_resources,
            test_case,
            terminal,
            serialize_py_nodes=serialize_py_nodes,
            controller_xm_requirements=controller_xm_requirements,
            **options,
        )
    except SerializationError as error:
        labels = dict.fromkeys(f.partition(": ")[0].rpartition("/")[0] for f in error.faults if _UNPICKLABLE in f)
        raise _error(labels, str(error), error.faults) from None


_UNPICKLABLE = "cannot be pickled"


@functools.cache
def enable_lru_cache_pickling_once() -> None:
    """From now on every pickle takes functions behind `functools.lru_cache`; they arrive with an empty cache."""
    copyreg.pickle(type(functools.lru_cache(_rebuild)), _reduce)


def _reduce(cached: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return _rebuild, (cached.__wrapped__, cached.cache_parameters())


def _rebuild(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    rebuilt: Callable[..., Any] = functools.lru_cache(**parameters)(function)
    return rebuilt


def serialize_functions(data_file_path: str, description: str, functions: Sequence[Callable[..., Any]]) -> None:
    """Writes functions to a file. Raises `SerializationError` with `description` when they cannot be pickled."""
    try:
        data = dumps(functions)
    except Exception as error:
        raise SerializationError(f"{description} is not serializable: {error}") from error
    Path(data_file_path).write_bytes(data)
