"""The replay service as a node."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import final

from topology.address import Address
from topology.clock import SYSTEM_CLOCK, Deadline
from topology.context import NodeContext, get_context
from topology.handle import Deferred, Handle
from topology.node import Node, NodeDescription
from topology.nodes.replay.checkpointers import CheckpointerBase, CheckpointError, DefaultCheckpointer
from topology.nodes.replay.client import Client
from topology.nodes.replay.server import Server
from topology.nodes.replay.sharding import ShardedClient
from topology.nodes.replay.table import Table

__all__ = ["ReverbHandle", "ReverbNode", "sharded"]

_logger = logging.getLogger(__name__)


@final
class ReverbHandle(Handle[Client]):
    """Stands for a replay server; dereferences to a replay `Client`."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def __repr__(self) -> str:
        return f"<ReverbHandle of {self._address!r}>"

    @property
    def address(self) -> Address:
        return self._address

    def dereference(self) -> Client:
        return Client(self._address.resolve(), secret=self._address.secret())


def sharded(handles: Sequence[ReverbHandle]) -> Deferred[ShardedClient]:
    """Several replay nodes as one: give it to a node in the place of a handle; it arrives as a `ShardedClient`."""
    return Deferred(ShardedClient, list(handles))


@final
class ReverbNode(Node[ReverbHandle]):
    """Serves replay tables until the program stops.

    A node that has a checkpointer begins with the newest checkpoint, also when it is restarted. Without
    `checkpoint_time_delta_minutes` it saves when a client asks for it (`Client.checkpoint`); with it, also every so
    many minutes, and at the stop of the program.

    Args:
        priority_tables_fn: called in the node's own place; returns the tables to serve.
        checkpoint_ctor: called there too; returns a checkpointer. By default, when a period is given, checkpoints are
            kept under `checkpoints/replay` of the run directory.
        checkpoint_time_delta_minutes: how often to save, in minutes.

    Raises:
        TypeError: `priority_tables_fn` or `checkpoint_ctor` cannot be called.
        ValueError: the period is not above 0.
    """

    def __init__(
        self,
        priority_tables_fn: Callable[[], Sequence[Table]],
        checkpoint_ctor: Callable[[], CheckpointerBase] | None = None,
        checkpoint_time_delta_minutes: float | None = None,
    ) -> None:
        super().__init__()
        if not callable(priority_tables_fn):
            raise TypeError(f"ReverbNode() takes a function that returns tables, got {priority_tables_fn!r}")
        if checkpoint_ctor is not None and not callable(checkpoint_ctor):
            raise TypeError(f"checkpoint_ctor must be a function that returns a checkpointer, got {checkpoint_ctor!r}")
        if checkpoint_time_delta_minutes is not None and not checkpoint_time_delta_minutes > 0:
            raise ValueError(f"checkpoint_time_delta_minutes must be above 0, got {checkpoint_time_delta_minutes}")
        self._priority_tables_fn = priority_tables_fn
        self._checkpoint_ctor = checkpoint_ctor
        self._period_s = None if checkpoint_time_delta_minutes is None else 60.0 * checkpoint_time_delta_minutes
        self._address = Address("replay", needs_port=False)
        self.allocate_address(self._address)

    def __repr__(self) -> str:
        return f"<ReverbNode {getattr(self._priority_tables_fn, '__qualname__', self._priority_tables_fn)}>"

    def create_handle(self) -> ReverbHandle:
        return ReverbHandle(self._address)

    def describe(self) -> NodeDescription:
        return NodeDescription(constructor=self._priority_tables_fn, arguments={})

    def run(self) -> None:
        context = get_context()
        server = Server(
            self._priority_tables_fn(),
            checkpointer=self._checkpointer(context),
            address=self._address.resolve(),
            secret=context.secret,
        )
        server.start()
        try:
            self._serve(server, context)
        finally:
            server.stop()

    def _checkpointer(self, context: NodeContext) -> CheckpointerBase | None:
        if self._checkpoint_ctor is not None:
            return self._checkpoint_ctor()
        if self._period_s is None:
            return None
        if context.run_directory is None:
            raise ValueError(
                f"{context.name}: checkpoint_time_delta_minutes is given, but this run keeps no run directory to put "
                "checkpoints in; give a checkpoint_ctor, e.g. lambda: DefaultCheckpointer('/data/replay')"
            )
        group = f"{context.label}-{context.index}"
        return DefaultCheckpointer(context.run_directory / "checkpoints" / "replay", group)

    def _serve(self, server: Server, context: NodeContext) -> None:
        """Blocks until the program stops; saves in time, and at the end."""
        if self._period_s is None:
            context.stop.wait()
            return
        due = Deadline(self._period_s, SYSTEM_CLOCK)
        while not context.stop.wait(due.remaining()):
            due = Deadline(self._period_s, SYSTEM_CLOCK)
            try:
                server.checkpoint()
            except CheckpointError:  # the data is still here, and the disk may have room the next time
                _logger.exception("replay: %s goes on without a new checkpoint", context.name)
        server.checkpoint()
