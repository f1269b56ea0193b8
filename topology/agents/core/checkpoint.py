"""The state of a learner on disk, so that a run can go on where it ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

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
        self._manager = ocp.CheckpointManager(Path(directory).absolute(), options=options)

    def save(self, step: int, state: Any) -> None:
        """Saves `state` as that of `step`, unless that is there already. Blocks until it is on disk."""
        if step not in self._manager.all_steps():
            self._manager.save(step, args=self._ocp.args.StandardSave(state), force=True)

    def restore(self, like: Any) -> Any | None:
        """The newest state, with the structure and shapes of `like`; None when there is none.

        Raises:
            ValueError: the state on disk has another structure, e.g. that of another network.
        """
        step = self._manager.latest_step()
        if step is None:
            return None
        return self._manager.restore(step, args=self._ocp.args.StandardRestore(like))

    def close(self) -> None:
        """Ends the threads that Orbax keeps."""
        self._manager.close()
