"""The state of a learner on disk, so that a run can go on where it ended.

A file for each state, `<step>.npz`: every array of the tree under its path. Written beside the others, and renamed when
it is whole, so that a reader, or a run that is killed, never meets half of one.

Not Orbax: its writers crashed the interpreter about once in ten runs of a program of threads (a garbage collection
inside its TensorStore threads, versions 0.12.8 and Python 3.11), and it brings an event loop and a thread pool to save
a few arrays.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import jax
import numpy as np

from topology.agents.core.saving import written_aside
from topology.errors import ProgramError

__all__ = ["Checkpointer", "leaves_by_path", "with_leaves"]


@final
class Checkpointer:
    """Keeps the newest states of a learner under a directory.

    Args:
        directory: made when the first state is saved.
        max_to_keep: older ones are deleted.
    """

    def __init__(self, directory: Path, *, max_to_keep: int = 2) -> None:
        if max_to_keep < 1:
            raise ValueError(f"max_to_keep must be at least 1, got {max_to_keep}")
        self._directory = Path(directory)
        self._max_to_keep = max_to_keep

    def save(self, step: int, state: Any) -> None:
        """Saves `state`, a tree of arrays, as that of `step`. Blocks until it is on disk.

        Raises:
            LaunchError: it cannot be written, e.g. on a full disk; the states there stay as they are.
        """
        path = self._directory / f"{step}.npz"
        with (
            written_aside(path, ".new", what="The learner's state", where=self._directory) as aside,
            aside.open("wb") as file,
        ):
            np.savez(file, allow_pickle=False, **leaves_by_path(state))
            file.flush()
            os.fsync(file.fileno())
        for old in self._steps()[: -self._max_to_keep]:
            (self._directory / f"{old}.npz").unlink(missing_ok=True)

    def restore(self, like: Any) -> Any | None:
        """The newest state, with the structure and shapes of `like`; None when there is none.

        Raises:
            ProgramError: the state on disk has another structure or other shapes, e.g. it is that of another network;
                or its file is damaged.
        """
        steps = self._steps()
        if not steps:
            return None
        path = self._directory / f"{steps[-1]}.npz"
        return with_leaves(like, _read(path), path)

    def _steps(self) -> list[int]:
        names = (path.stem for path in self._directory.glob("*.npz"))
        return sorted(int(name) for name in names if name.isdigit())


def _read(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    try:
        # Opened here: of a damaged one NumPy leaves the file open.
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return dict(file)
    except (OSError, ValueError, EOFError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise ProgramError(
            f"The learner's state in {path} cannot be read: {type(error).__name__}: {error}. Restore the file, or "
            "delete it to go on from an older state beside it, or from the beginning where there is none."
        ) from error


def leaves_by_path(tree: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The leaves of a tree as numpy arrays by path, e.g. `params.params.Dense_0.bias`, in order."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def with_leaves(like: Any, leaves: Mapping[str, np.ndarray[Any, Any]], source: object) -> Any:
    """A tree of JAX arrays of the structure and types of `like`, with the leaves that `leaves_by_path` gave.

    Args:
        like: a tree.
        leaves: by path.
        source: where they come from, for the text of the error.

    Raises:
        ProgramError: they are those of another structure, or have other shapes.
    """
    wanted = leaves_by_path(like)
    _check(source, leaves, wanted)
    typed = [_typed(leaves[name], leaf.dtype) for name, leaf in wanted.items()]
    return jax.tree.map(jax.numpy.asarray, jax.tree.unflatten(jax.tree.structure(like), typed))


def _typed(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    # NumPy stores the types of machine learning, such as bfloat16, as bytes without a name.
    return array.view(dtype) if array.dtype.kind == "V" else array.astype(dtype, copy=False)


def _check(source: object, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    shapes = [{name: np.shape(leaf) for name, leaf in leaves.items()} for leaves in (saved, wanted)]
    faults = tuple(
        f"{name}: {shapes[0].get(name, 'nothing')} there, {shapes[1].get(name, 'nothing')} here"
        for name in sorted({*saved, *wanted})
        if shapes[0].get(name) != shapes[1].get(name)
    )
    if faults:
        raise ProgramError(
            f"The learner's state in {source} does not fit this program:\n"
            + "".join(f"  - {fault}\n" for fault in faults)
            + "Go on with the settings it was made with (environment, network), or give the run another directory.",
            faults=faults,
        )
