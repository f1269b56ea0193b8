"""`launchpad.nodes.reverb.node`."""

from collections.abc import Callable, Sequence

from reverb import Table
from reverb.platform.checkpointers_lib import CheckpointerBase

from topology import ReverbHandle, ReverbNode

__all__ = ["REVERB_PORT_NAME", "CheckpointerFactory", "PriorityTablesFactory", "ReverbHandle", "ReverbNode"]

CheckpointerFactory = Callable[[], CheckpointerBase]
PriorityTablesFactory = Callable[[], Sequence[Table]]
REVERB_PORT_NAME = "reverb"
