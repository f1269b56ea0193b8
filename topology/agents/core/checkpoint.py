"""The state of a learner on disk, so that a run can go on where it ended.

A file for each state, `<step>.npz`: every array of the tree under its path. Written beside the others, and renamed when
it is whole, so that a reader, or a run that is killed, never meets half of one.

Not Orbax: its writers crashed the interpreter about once in ten runs of a program of threads (a garbage collection
inside its TensorStore threads, versions 0.12.8 and Python 3.11), and it brings an event loop and a thread pool to save
a few arrays.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, final

import jax
import numpy as np

from topology.errors import LaunchError, ProgramError

__all__ = ["Checkpointer"]


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
        temporary = self._directory / f".{path.name}.{os.getpid()}"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                np.savez(file, allow_pickle=False, **{name: np.asarray(leaf) for name, leaf in _leaves(state).items()})
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise LaunchError(
                f"The learner's state cannot be saved in {self._directory}: {error.strerror or error}. Make room "
                "there, or give the run another directory."
            ) from error
        for old in self._steps()[: -self._max_to_keep]:
            (self._directory / f"{old}.npz").unlink(missing_ok=True)

    def restore(self, like: Any) -> Any | None:
        """The newest state, with the structure and shapes of `like`; None when there is none.

        Raises:
            ProgramError: the state on disk has another structure or other shapes, e.g. it is that of another network.
        """
        steps = self._steps()
        if not steps:
            return None
        path = self._directory / f"{steps[-1]}.npz"
        with np.load(path, allow_pickle=False) as file:
            saved = dict(file)
        wanted = _leaves(like)
        _check(path, saved, wanted)
        leaves = [_typed(saved[name], np.asarray(leaf).dtype) for name, leaf in wanted.items()]
        return jax.tree.map(jax.numpy.asarray, jax.tree.unflatten(jax.tree.structure(like), leaves))

    def _steps(self) -> list[int]:
        names = (path.stem for path in self._directory.glob("*.npz"))
        return sorted(int(name) for name in names if name.isdigit())


def _leaves(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by path, e.g. `params.params.Dense_0.bias`, in order."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _typed(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    # NumPy stores the types of machine learning, such as bfloat16, as bytes without a name.
    return array.view(dtype) if array.dtype.kind == "V" else array.astype(dtype, copy=False)


def _check(path: Path, saved: dict[str, Any], wanted: dict[str, Any]) -> None:
    shapes = [{name: np.shape(leaf) for name, leaf in leaves.items()} for leaves in (saved, wanted)]
    faults = tuple(
        f"{name}: {shapes[0].get(name, 'nothing')} there, {shapes[1].get(name, 'nothing')} here"
        for name in sorted({*saved, *wanted})
        if shapes[0].get(name) != shapes[1].get(name)
    )
    if faults:
        raise ProgramError(
            f"The learner's state in {path} does not fit this program:\n"
            + "".join(f"  - {fault}\n" for fault in faults)
            + "Go on with the settings it was made with (environment, network), or give the run another directory.",
            faults=faults,
        )
