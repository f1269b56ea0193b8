"""`reverb.platform.default.checkpointers`, which is `reverb.checkpointers`."""

from topology.nodes.replay.checkpointers import CheckpointerBase, DefaultCheckpointer, TempDirCheckpointer

__all__ = ["CheckpointerBase", "DefaultCheckpointer", "TempDirCheckpointer", "default_checkpointer"]


def default_checkpointer(group: str | None = None) -> CheckpointerBase:
    """A checkpointer for those who have no wish of their own."""
    return TempDirCheckpointer(group or "")
