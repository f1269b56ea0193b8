"""Items of an agent's replay table on their way: out of the adders of a worker, into the table of the trainer."""

from __future__ import annotations

from typing import Any, final

import jax
import numpy as np

from topology.agents.scaleout.roles import Columns
from topology.agents.scaleout.trees import named_leaves
from topology.nodes.replay import Client, Table, rate_limiters, selectors
from topology.nodes.replay.service import ReplayService
from topology.nodes.replay.writers import TrajectoryWriter

__all__ = ["Catch", "ItemWriter", "nothing_caught"]

_NOTHING = "nothing"
_MOST_ITEMS = 1 << 20  # far above what one step makes, after which they are taken out
_GATHERED_ITEMS = 256


def nothing_caught(columns: Columns) -> bool:
    """Whether they stand for no item."""
    return _NOTHING in columns


@final
class Catch:
    """What an adder takes for a replay server: keeps the items that it writes until they are taken. For one thread.

    Args:
        table: of the agent; another like it is made here.

    Attributes:
        longest: most steps that an item may reach back.
    """

    def __init__(self, table: Table) -> None:
        fifo = selectors.Fifo()
        self._name = table.name
        own = table.replace(
            sampler=fifo,
            remover=fifo,
            max_size=_MOST_ITEMS,
            rate_limiter=rate_limiters.MinSize(1),
            max_times_sampled=1,
        )
        self._service = ReplayService([own])
        self._table = self._service.tables[own.name]
        self._client = Client("local", service=self._service)
        self._caught: list[Columns] = []
        self.longest = 1

    def trajectory_writer(self, num_keep_alive_refs: int, **options: Any) -> TrajectoryWriter:
        """See `Client.trajectory_writer`."""
        self.longest = max(self.longest, num_keep_alive_refs)
        return self._client.trajectory_writer(num_keep_alive_refs, **options)

    def gather(self, at_least: int = _GATHERED_ITEMS) -> None:
        """Takes what is in the table out of it, if that is so much."""
        items = self._table.info.current_size
        if items >= at_least:
            sample = self._client.sample_batch(self._name, items, timeout_s=60.0)
            self._caught.append({name: np.array(leaf) for name, leaf in named_leaves(sample.data)})

    def take(self) -> Columns:
        """All items that were written since the last time, `[N, ...]`; where there are none, what stands for that."""
        self.gather(at_least=1)
        caught, self._caught = self._caught, []
        if not caught:
            return {_NOTHING: np.zeros(1, np.uint8)}
        return {name: np.concatenate([columns[name] for columns in caught]) for name in caught[0]}

    def close(self) -> None:
        """Ends the threads of the table."""
        self._client.close()
        self._service.close()


@final
class ItemWriter:
    """Writes items back into a table.

    Args:
        client: of its server.
        table: its name.
        like: an item, or a batch of them: what counts is its structure.
    """

    def __init__(self, client: Client, table: str, like: Any) -> None:
        self._table = table
        self._structure = jax.tree.structure(like)
        self._names = [name for name, _ in named_leaves(like)]
        self._writer = client.trajectory_writer(1)

    def write(self, row: Columns) -> None:
        """An item, from the row of each column; see `flush`.

        Raises:
            KeyError: a column is missing.
            ValueError: the item does not fit the table.
        """
        self._writer.append({name: row[name] for name in self._names})
        history = self._writer.history
        item = jax.tree.unflatten(self._structure, [history[name][-1] for name in self._names])
        self._writer.create_item(self._table, 1.0, item)

    def flush(self) -> None:
        """Blocks until all of them are in the table."""
        self._writer.flush()

    def close(self) -> None:
        """Sends what is left."""
        self._writer.close()
