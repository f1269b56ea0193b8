"""The state of a learner on disk, so that a run can go on where it ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

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
        self._manager = ocp.CheckpointManager(self._directory, options=options)

    def save(self, step: int, state: Any) -> None:
        """Saves `state` as that of `step`, unless that is there already. Blocks until it is on disk."""
        if step not in self._manager.all_steps():
            self._manager.save(step, args=self._ocp.args.StandardSave(state), force=True)

    def restore(self, like: Any) -> Any | None:
        """The newest state, with the structure and shapes of `like`; None when there is none.

        Raises:
            ProgramError: the state on disk does not fit, e.g. it is that of another network, or cannot be read.
        """
        step = self._manager.latest_step()
        if step is None:
            return None
        try:
            return self._manager.restore(step, args=self._ocp.args.StandardRestore(like))
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise ProgramError(
                f"The learner's state in {self._directory / str(step)} does not fit this program: {error}\n"
                "Go on with the settings it was made with (environment, network), or give the run another directory."
            ) from error

    def close(self) -> None:
        """Ends the threads that Orbax keeps."""
        self._manager.close()
