"""Several replay servers used as one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, final

from topology.nodes.replay.client import Client
from topology.nodes.replay.mixing import MOST_SHARDS
from topology.nodes.replay.shards import ShardedLink
from topology.nodes.replay.writers import TrajectoryWriter

__all__ = ["ShardedClient"]


@final
class ShardedClient(Client):
    """A client of several servers with the same tables. Usable wherever a `Client` is.

    Writers are given to the servers in turn, and each stays with its server, so that the order of its items is kept.
    A batch has equal parts from all servers: with writers in turn the tables are of about the same size, and drawing
    so is as drawing from one large table. When a server has nothing to give for a second (nobody writes to it, or its
    rate limiter waits for inserts), batches come from the others until it has; only batches without replacement wait.
    Keys say which server an item is on, so priorities find their way; every
    client must be given the servers in the same order.

    When a server goes away, the others go on, with a warning in the log: batches come from them, new writers go to
    them, priorities of its items are ignored, until it answers again. Its own writers wait for it, as those of a
    `Client` do. When all are gone, calls raise `ConnectionBroken`.

    `max_size`, limits and counts are those of each server; `server_info` gives sizes and counts of all together, and
    `resize` sets the size on each.

    Args:
        servers: clients or addresses, at most 256, in the same order everywhere.
        secret: for addresses; the run's secret, by default that of the current node.

    Raises:
        ValueError: there is no server, or there are too many.
    """

    def __init__(self, servers: Sequence[Client | str], *, secret: bytes = b"") -> None:
        if not 1 <= len(servers) <= MOST_SHARDS:
            raise ValueError(f"a sharded client needs 1 to {MOST_SHARDS} servers, got {len(servers)}")
        self._clients = [Client(each, secret=secret) if isinstance(each, str) else each for each in servers]
        self._next_writer = itertools.count()
        addresses = [client.server_address for client in self._clients]
        self._sharded = ShardedLink([client.link for client in self._clients], addresses)
        self._set_up(",".join(addresses), self._sharded)

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardedClient, (self._clients,)

    def __repr__(self) -> str:
        return f"<replay.ShardedClient {self.server_address}>"

    def trajectory_writer(self, num_keep_alive_refs: int, *, validate_items: bool = True) -> TrajectoryWriter:
        living = self._sharded.living()
        client = self._clients[living[next(self._next_writer) % len(living)]]
        return client.trajectory_writer(num_keep_alive_refs, validate_items=validate_items)
