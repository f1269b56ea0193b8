"""States of plans on disk: JSON and arrays. Nothing in them is code, and nothing is unpickled.

A state appears whole or not at all; see `topology.nodes.replay.checkpoint_files`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np

from topology.clock import Deadline
from topology.context import try_get_context
from topology.errors import LaunchError, ProgramError
from topology.nodes.flow.actors import Actor
from topology.nodes.flow.batch import MultiAgentBatch, SampleBatch
from topology.nodes.flow.items import Item, Origin
from topology.nodes.flow.learner import LearnerOutput
from topology.nodes.replay.checkpoint_files import (
    ArrayReader,
    ArrayWriter,
    CheckpointError,
    CheckpointRoot,
    open_arrays,
    read_index,
    write_index,
)

__all__ = ["StateFiles", "files_of_node"]

_PLAIN = frozenset({str, int, float, bool, type(None)})


@final
class StateFiles:
    """The newest states of one plan, or of one replay buffer, under a directory.

    Args:
        path: made with the first state.
        period_s: seconds from one state to the next; None for whenever somebody saves.
        keep_latest: older ones are removed.
    """

    def __init__(self, path: Path, *, period_s: float | None = None, keep_latest: int = 2) -> None:
        self._path = path
        self._root = CheckpointRoot(path, keep_latest)
        self._period_s = period_s
        self._due = Deadline(period_s)

    @property
    def due(self) -> bool:
        """Whether it is time for the next state."""
        return self._due.expired

    def save(self, state: Any) -> Path:
        """Saves a state. Blocks until it is on disk.

        Raises:
            LaunchError: it cannot be written, e.g. on a full disk; those that are there stay.
            ProgramError: it holds something that is not plain data.
        """
        folder = None
        try:
            folder = self._root.begin()
            with open_arrays(folder) as file:
                frozen = _Freezer(ArrayWriter(file)).freeze(state, "the state")
                file.flush()
                os.fsync(file.fileno())
            write_index(folder, {"state": frozen})
            self._due = Deadline(self._period_s)
            return self._root.finish(folder)
        except BaseException as error:
            if folder is not None:
                self._root.abandon(folder)
            if not isinstance(error, OSError):
                raise
            raise LaunchError(
                f"The plan's state cannot be saved in {self._path}: {error.strerror or error}. Make room there, or "
                "give the run another directory."
            ) from error

    def newest(self, actors: Mapping[str, Actor] | None = None) -> Any | None:
        """The newest state; None when there is none.

        Args:
            actors: by name: those that items may come from. Origins that are none of them are dropped.

        Raises:
            ProgramError: it is damaged, or was not written here.
        """
        known = self._root.all()
        if not known:
            return None
        try:
            index, arrays = read_index(known[-1])
            try:
                return _Thawer(arrays, actors or {}).thaw(index["state"])
            finally:
                arrays.close()
        except (CheckpointError, OSError, KeyError, TypeError, ValueError) as error:
            raise ProgramError(
                f"The plan's state in {known[-1]} cannot be read: {error}. Remove that directory to go on from the "
                "state before it, if there is one, or give the run another directory."
            ) from error


def files_of_node(kind: str, period_s: float | None) -> StateFiles | None:
    """Where the node that runs this keeps its states: under `checkpoints/<kind>` of the run directory.

    Args:
        kind: of the states.
        period_s: how often the node saves; None for never, and no files.

    Raises:
        ValueError: the period is not above 0, or the run keeps no run directory.
    """
    if period_s is None:
        return None
    if not period_s > 0:
        raise ValueError(f"checkpoint_period_s must be above 0, or None for no states on disk, got {period_s}")
    context = try_get_context()
    if context is None or context.run_directory is None:
        raise ValueError(
            f"checkpoint_period_s={period_s:g}, but this run keeps no run directory to put states in: launch it with "
            "one, or give None"
        )
    path = context.run_directory / "checkpoints" / kind / f"{context.label}-{context.index}"
    return StateFiles(path, period_s=period_s)


@final
class _Freezer:
    """Makes JSON of a state; its arrays go to a file. Whatever is not text, a number or None is `[kind, content]`."""

    def __init__(self, arrays: ArrayWriter) -> None:
        self._arrays = arrays

    def freeze(self, value: Any, where: str) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is dict:
            return ["dict", [[self._key(key, where), self.freeze(v, f"{where}[{key!r}]")] for key, v in value.items()]]
        if kind in {list, tuple, deque}:
            name = "tuple" if kind is tuple else "list"
            return [name, [self.freeze(v, f"{where}[{index}]") for index, v in enumerate(value)]]
        known = self._freeze_known(value, where)
        if known is not None:
            return known
        if isinstance(value, np.ndarray | np.generic) or (hasattr(value, "__array__") and hasattr(value, "dtype")):
            return ["number" if isinstance(value, np.generic) else "array", self._array(np.asarray(value), where)]
        raise _not_plain(where, value)

    def _freeze_known(self, value: Any, where: str) -> Any:
        if isinstance(value, bytes):
            return ["bytes", self._arrays.put(np.frombuffer(value, np.uint8))]
        if isinstance(value, SampleBatch):
            return ["batch", self.freeze(dict(value), where)]
        if isinstance(value, MultiAgentBatch):
            return ["batches", [self.freeze(value.policy_batches, where), self.freeze(value.count, where)]]
        if isinstance(value, LearnerOutput):
            return ["output", self.freeze(tuple(value), where)]
        if isinstance(value, Item):
            return [
                "item",
                [self.freeze(value.value, where), [[o.actor.name, o.weights_version] for o in value.origins]],
            ]
        if isinstance(value, Actor):
            return ["actor", value.name]
        return None

    def _array(self, array: np.ndarray[Any, Any], where: str) -> Any:
        if array.dtype.hasobject:
            raise _not_plain(where, array)
        return self._arrays.put(array)

    @staticmethod
    def _key(key: Any, where: str) -> Any:
        if type(key) not in _PLAIN:
            raise _not_plain(f"a key of {where}", key)
        return key


def _not_plain(where: str, value: Any) -> ProgramError:
    what = (
        f"an array of {value.dtype}"
        if isinstance(value, np.ndarray)
        else f"{type(value).__module__}.{type(value).__qualname__}"
    )
    return ProgramError(
        f"A plan's state is numbers, text, arrays, batches, lists, tuples and dicts, but {where} holds {what}. Have "
        "its owner give something plain in get_state(), or run the plan without checkpoint_period_s."
    )


@final
class _Thawer:
    """Takes back what `_Freezer` made."""

    def __init__(self, arrays: ArrayReader, actors: Mapping[str, Actor]) -> None:
        self._arrays = arrays
        self._actors = actors
        self._kinds: dict[str, Callable[[Any], Any]] = {
            "dict": lambda content: {key: self.thaw(value) for key, value in content},
            "list": lambda content: [self.thaw(value) for value in content],
            "tuple": lambda content: tuple(self.thaw(value) for value in content),
            "array": arrays.get,
            "number": lambda content: arrays.get(content)[()],
            "bytes": lambda content: arrays.get(content).tobytes(),
            "batch": lambda content: SampleBatch(self.thaw(content)),
            "batches": lambda content: MultiAgentBatch(self.thaw(content[0]), self.thaw(content[1])),
            "output": lambda content: LearnerOutput(*self.thaw(content)),
            "item": self._item,
            "actor": actors.get,
        }

    def thaw(self, frozen: Any) -> Any:
        if not isinstance(frozen, list):
            return frozen
        kind, content = frozen
        return self._kinds[kind](content)

    def _item(self, content: Any) -> Item:
        value, origins = content
        there = [(self._actors[name], version) for name, version in origins if name in self._actors]
        return Item(self.thaw(value), tuple(Origin(actor, version) for actor, version in there))
