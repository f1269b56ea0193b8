"""`reverb.platform.checkpointers_lib`."""

from topology.nodes.replay.checkpointers import CheckpointerBase, DefaultCheckpointer, TempDirCheckpointer

__all__ = ["CheckpointerBase", "DefaultCheckpointer", "TempDirCheckpointer"]
