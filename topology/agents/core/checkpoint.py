"""The state of a learner on disk, so that a run can go on where it ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

import numpy as np

from topology.errors import ProgramError

__all__ = ["Checkpointer"]


@final
class Checkpointer:
    """Keeps the newest states of a learner under a directory, with Orbax.

    A state is a tree of arrays. It is written beside the others and renamed when it is whole, so that a reader, or a
    run that is killed, never meets half of one.

    Args:
        directory: one folder for each state, named by its step; made when the first one is saved.
        max_to_keep: older ones are deleted.
    """

    def __init__(self, directory: Path, *, max_to_keep: int = 2) -> None:
        # Orbax takes as long to import as JAX itself, and only learners need it.
        import orbax.checkpoint as ocp

        options = ocp.CheckpointManagerOptions(
            max_to_keep=max_to_keep, enable_async_checkpointing=False, create=True, cleanup_tmp_directories=True
        )
        self._ocp = ocp
        self._directory = Path(directory).absolute()
        handler = ocp.StandardCheckpointHandler()
        self._manager = ocp.CheckpointManager(self._directory, options=options, item_handlers=handler)

    def save(self, step: int, state: Any) -> None:
        """Saves `state` as that of `step`, unless that is there already. Blocks until it is on disk."""
        if step not in self._manager.all_steps():
            self._manager.save(step, args=self._ocp.args.StandardSave(state), force=True)

    def restore(self, like: Any) -> Any | None:
        """The newest state, with the structure and shapes of `like`; None when there is none.

        Raises:
            ProgramError: the state on disk has another structure or other shapes, e.g. it is that of another network.
        """
        step = self._manager.latest_step()
        if step is None:
            return None
        self._check(step, like)
        return self._manager.restore(step, args=self._ocp.args.StandardRestore(like))

    def _check(self, step: int, like: Any) -> None:
        # Orbax finds out while it reads, and leaves its readers behind.
        import jax

        saved = {leaf.name: tuple(leaf.shape) for leaf in jax.tree.leaves(self._manager.item_metadata(step))}
        wanted = {
            jax.tree_util.keystr(path, simple=True, separator="."): tuple(np.shape(leaf))
            for path, leaf in jax.tree_util.tree_leaves_with_path(like)
        }
        faults = [
            f"{name}: {saved.get(name, 'nothing')} there, {wanted.get(name, 'nothing')} here"
            for name in sorted({*saved, *wanted})
            if saved.get(name) != wanted.get(name)
        ]
        if faults:
            raise ProgramError(
                f"The learner's state in {self._directory / str(step)} does not fit this program:\n"
                + "".join(f"  - {fault}\n" for fault in faults)
                + "Go on with the settings it was made with (environment, network), or give the run another directory.",
                faults=tuple(faults),
            )

    def close(self) -> None:
        """Ends the threads that Orbax keeps."""
        self._manager.close()
