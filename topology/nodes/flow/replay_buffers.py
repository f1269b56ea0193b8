"""Replay buffers of plans, on the tables of `topology.nodes.replay`. Each is for one thread."""

from __future__ import annotations

import logging
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import psutil

from topology.nodes.flow.batch import Batch, SampleBatch, check_batch
from topology.nodes.flow.checks import check_whole
from topology.nodes.replay import Client, DefaultCheckpointer, Table, rate_limiters, selectors
from topology.nodes.replay.service import ReplayService

__all__ = ["OURS", "ReplayBuffer", "SimpleReplayBuffer"]

_logger = logging.getLogger(__name__)

_TABLE = "experience"
_MIN_PRIORITY = 1e-6


@final
class ReplayBuffer:
    """The latest steps of one policy, drawn by priority.

    Args:
        size: steps kept.
        alpha: how strongly priorities decide what is drawn; 0 for not at all.
        beta: how much of the bias is weighted away; 1 for all.
        sequence_length: steps that are kept and drawn together; a batch holds a multiple of it.
        seed: of the drawing.

    Raises:
        ValueError: a size that holds no sequence, or an exponent that is negative.
    """

    def __init__(
        self, size: int, *, alpha: float = 0.0, beta: float = 0.4, sequence_length: int = 1, seed: int | None = None
    ) -> None:
        check_whole("sequence_length", sequence_length, 1)
        check_whole("size", size, 1)
        if size < sequence_length or not alpha >= 0 or not beta >= 0:
            raise ValueError(
                f"a buffer holds at least one sequence, and exponents are at least 0: got size={size}, "
                f"sequence_length={sequence_length}, alpha={alpha}, beta={beta}"
            )
        self._size = size
        self._length = sequence_length
        self._beta = beta
        sampler = selectors.Prioritized(alpha) if alpha else selectors.Uniform()
        limiter = rate_limiters.MinSize(1)
        self._table = Table(_TABLE, sampler, selectors.Fifo(), size // sequence_length, limiter, seed=seed)
        self._open(None)
        self._max_priority = 1.0
        self.num_added = 0

    def _open(self, checkpointer: DefaultCheckpointer | None) -> None:
        self._service = ReplayService([self._table.replace()], checkpointer=checkpointer)
        self._client = Client("local", service=self._service)
        self._writer = self._client.trajectory_writer(self._length)
        self._close = weakref.finalize(self, _close, self._service)

    def __len__(self) -> int:
        """Steps in it."""
        return int(self._service.tables[_TABLE].info.current_size) * self._length

    def __bool__(self) -> bool:
        return True  # an empty buffer is a buffer

    def add_batch(self, batch: Batch) -> None:
        """Keeps the steps of a batch, as copies. A column `weights` gives their priorities; else it is the largest yet.

        Raises:
            ValueError: a batch of several policies, or one that is no multiple of the sequence length; or so many such
                steps would need more memory than the machine has.
        """
        rows = _only(batch)
        if rows.count % self._length:
            raise ValueError(f"a batch of {rows.count} steps is no multiple of sequence_length={self._length}")
        if not rows.count:
            return
        if not self.num_added:
            _check_memory(sum(column.nbytes for column in rows.values()) / rows.count * self._size, self._size)
        count = rows.count // self._length
        priorities = np.full(count, self._max_priority)
        if SampleBatch.WEIGHTS in rows:
            priorities = np.asarray(rows[SampleBatch.WEIGHTS], float).reshape(count, -1).mean(axis=1)
        columns = {name: column for name, column in rows.items() if name not in OURS}
        self._writer.append_batch(columns)
        history = {name: column[-self._length :] for name, column in self._writer.history.items()}
        self._writer.create_items(_TABLE, priorities.tolist(), history, period=self._length)
        self._writer.flush()
        self.num_added += rows.count

    def sample(self, num_items: int) -> SampleBatch:
        """So many steps (sequences) drawn with replacement, with columns `weights` and `batch_indexes`.

        Raises:
            ValueError: `num_items` is below 1.
            IndexError: it is empty.
        """
        check_whole("num_items", num_items, 1)
        if not len(self):
            raise IndexError("the replay buffer is empty: store a batch first")
        sample = self._client.sample_batch(_TABLE, num_items)
        info = sample.info
        weights = (info.table_size * info.probability) ** -self._beta
        columns = {name: leaf.reshape(-1, *leaf.shape[2:]) for name, leaf in sample.data.items()}
        columns[SampleBatch.WEIGHTS] = np.repeat((weights / weights.max()).astype(np.float32), self._length)
        columns[SampleBatch.INDEXES] = np.repeat(info.key, self._length)
        return SampleBatch(columns)

    def update_priorities(self, indexes: npt.ArrayLike, priorities: npt.ArrayLike) -> None:
        """Sets priorities of steps that were drawn; of a sequence, their mean. Those that have left are passed over.

        Args:
            indexes: the column `batch_indexes` of the sample.
            priorities: one for each row, at least 0, such as absolute errors.
        """
        keys = np.asarray(indexes, np.uint64)[:: self._length]
        values = np.asarray(priorities, float).reshape(len(keys), -1).mean(axis=1) + _MIN_PRIORITY
        self._client.update_priorities(_TABLE, keys, values)
        self._max_priority = max(self._max_priority, float(values.max(initial=0.0)))

    def get_state(self) -> dict[str, Any]:
        """All that is in it, as plain data."""
        with tempfile.TemporaryDirectory() as folder:
            DefaultCheckpointer(folder).save(self._service.tables)
            files = {
                str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()
            }
        return {"files": files, "max_priority": self._max_priority, "num_added": self.num_added}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Takes `get_state` back, in the place of what is in it."""
        self.close()
        with tempfile.TemporaryDirectory() as folder:
            for name, content in state["files"].items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            self._open(DefaultCheckpointer(folder))
        self._max_priority, self.num_added = state["max_priority"], state["num_added"]

    def close(self) -> None:
        """Frees what it holds. Idempotent."""
        self._close()


OURS = (SampleBatch.WEIGHTS, SampleBatch.INDEXES)
"""Columns that a buffer adds to what it gives."""


def _close(service: ReplayService) -> None:
    service.close()


def _check_memory(needed: float, size: int) -> None:
    total = psutil.virtual_memory().total
    what = (
        f"a replay buffer of {size} such steps takes {needed / 1e9:.3g} GB of the {total / 1e9:.3g} GB of this machine"
    )
    if needed > total:
        raise ValueError(f"{what}: make it smaller")
    if needed > total / 5:
        _logger.warning("%s", what)


def _only(batch: Batch) -> SampleBatch:
    check_batch(batch, "a ReplayBuffer")
    if isinstance(batch, SampleBatch):
        return batch
    if len(batch.policy_batches) != 1:
        raise ValueError(f"a ReplayBuffer keeps the steps of one policy, got {batch!r}: use LocalReplayBuffer")
    return next(iter(batch.policy_batches.values()))


@final
class SimpleReplayBuffer:
    """A ring of whole batches, drawn with equal chances.

    Args:
        num_slots: batches kept; 0 for none.
        seed: of the drawing.

    Raises:
        ValueError: `num_slots` below 0.
    """

    def __init__(self, num_slots: int, *, seed: int | None = None) -> None:
        self._slots: list[Batch] = []
        self._most = check_whole("num_slots", num_slots, 0)
        self._next = 0
        self._random = np.random.default_rng(seed)

    def __len__(self) -> int:
        return len(self._slots)

    def __bool__(self) -> bool:
        return True

    def add_batch(self, batch: Batch) -> None:
        """Keeps a batch."""
        check_batch(batch, "a SimpleReplayBuffer")
        if not self._most:
            return
        if len(self._slots) < self._most:
            self._slots.append(batch)
        else:
            self._slots[self._next] = batch
        self._next = (self._next + 1) % self._most

    def replay(self) -> Batch:
        """One of them.

        Raises:
            IndexError: it is empty.
        """
        if not self._slots:
            raise IndexError("the replay buffer is empty: store a batch first")
        return self._slots[int(self._random.integers(len(self._slots)))]

    def get_state(self) -> dict[str, Any]:
        """All that is in it, and where the drawing is."""
        return {"slots": list(self._slots), "next": self._next, "random": self._random.bit_generator.state}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Takes `get_state` back, in the place of what is in it."""
        self._slots, self._next = list(state["slots"]), state["next"]
        self._random.bit_generator.state = state["random"]
