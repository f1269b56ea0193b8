"""What goes over the wire between writers, samplers and a replay server. All of it pickles without code of users."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from topology.errors import ReplayError
from topology.nodes.replay.layouts import LayoutSpec
from topology.nodes.replay.shared_memory import MemoryAddress
from topology.nodes.replay.storage import ColumnSpec

__all__ = [
    "Cells",
    "ItemRun",
    "LentArray",
    "Occupancy",
    "SampleBatch",
    "SampleGroup",
    "ServerStopped",
    "StreamLost",
    "WriteBatch",
    "WriteItem",
]


class ServerStopped(ReplayError):
    """The server was stopped while the call waited, or before it."""


class StreamLost(ReplayError):
    """The server does not know the writer's stream: it was restarted, or dropped it. The writer begins a new one."""


class LentArray(NamedTuple):
    """An array in a region of shared memory that the sender lends. It stays as it is until the message is answered."""

    memory: MemoryAddress
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class Cells(NamedTuple):
    """Consecutive cells of one column: `values` [n, *shape] belong to the steps from `first_step` on."""

    column: int
    first_step: int
    values: npt.NDArray[Any] | LentArray


class ItemRun(NamedTuple):
    """Items for one table, of one layout and one episode, in order.

    Attributes:
        table: name of the table.
        layout: number of the layout in the stream.
        first_steps: first step of each item, [n].
        priorities: [n].
        episode: episode they belong to.
        serial: how many items the writer made for that table before these.
    """

    table: str
    layout: int
    first_steps: npt.NDArray[np.int64]
    priorities: npt.NDArray[np.float64]
    episode: int
    serial: int


class WriteBatch(NamedTuple):
    """One message of a writer: new steps, then items over steps sent so far.

    Steps are counted from 0 over the life of the writer. A stream is a window of consecutive steps that the server
    holds for the writer, whether items refer to them or not. A writer has one stream at a time; when it is lost, the
    next one begins with the items that were not confirmed, and the table leaves out those it has taken (see `serial`).

    Attributes:
        writer: the writer, a random number other than 0.
        stream: how many streams the writer had before.
        number: how many batches of the stream came before.
        columns: the columns of its steps, when a new window begins, as with the first batch; None otherwise.
        layouts: layouts not described before; they are numbered in order over the life of the window.
        first_step: the first new step. Steps that were left out in front of it end the window before it.
        num_steps: how many new steps.
        cells: contents of the new steps, and cells of earlier steps that were open when these were sent.
        runs: the items.
        keep_from: the writer will refer to no step before this one any more.
        last: the writer needs the stream no more.
    """

    writer: int
    stream: int
    number: int
    columns: tuple[ColumnSpec, ...] | None
    layouts: tuple[LayoutSpec, ...]
    first_step: int
    num_steps: int
    cells: tuple[Cells, ...]
    runs: tuple[ItemRun, ...]
    keep_from: int
    last: bool = False


class WriteItem(NamedTuple):
    """One message of a writer whose items share no steps: an item, and the steps that are all its own.

    A stream is made of these alone, but for its end. For `writer` to `layouts` see `WriteBatch`.

    Attributes:
        values: of the one column, [n, *shape]: the item's steps.
        table: name of the table.
        layout: number of the layout in the stream. Its item takes all n steps.
        priority: of the item.
        episode: episode it belongs to.
        serial: how many items the writer made for that table before this one.
    """

    writer: int
    stream: int
    number: int
    columns: tuple[ColumnSpec, ...] | None
    layouts: tuple[LayoutSpec, ...]
    values: npt.NDArray[Any] | LentArray
    table: str
    layout: int
    priority: float
    episode: int
    serial: int


class Occupancy(NamedTuple):
    """How much has come into a table, and what of it is there.

    Attributes:
        inserts: items inserted since the table was made or reset.
        inserted_steps: steps of those of them that came in since `life` began.
        size: items in the table.
        life: a random number that is another one when its server has begun anew.
    """

    inserts: int
    inserted_steps: int
    size: int
    life: int


class SampleGroup(NamedTuple):
    """Samples of one structure and one set of shapes.

    Attributes:
        structure: the pickled structure.
        positions: which samples of the batch these are, [n]; None: all, in order.
        leaves: one array [n, ...] a leaf.
    """

    structure: bytes
    positions: npt.NDArray[np.int64] | None
    leaves: list[npt.NDArray[Any]]


class SampleBatch(NamedTuple):
    """Sampled items: fields of SampleInfo as arrays [B], and the data by group."""

    keys: npt.NDArray[np.uint64]
    probabilities: npt.NDArray[np.float64]
    table_sizes: npt.NDArray[np.int64]
    priorities: npt.NDArray[np.float64]
    times_sampled: npt.NDArray[np.int32]
    groups: list[SampleGroup]

    def __reduce__(self) -> tuple[Any, ...]:
        # The five columns as one piece of memory: one by one they cost more than all the bytes of a small batch.
        packed: Any = bytearray().join([column.data for column in self[:5]])
        if len(packed) >= _APART_BYTES:
            packed = np.frombuffer(packed, np.uint8)  # so that it is not copied again
        return _unpack, (packed, self.keys.size, self.groups)


_APART_BYTES = 16 << 10
# Of each column of info: its dtype, and how many bytes of every item come before it.
_PACKED: Any = ((np.uint64, 0), (np.float64, 8), (np.int64, 16), (np.float64, 24), (np.int32, 32))


def _unpack(packed: Any, count: int, groups: list[SampleGroup]) -> SampleBatch:
    views = [np.frombuffer(packed, dtype, count, offset * count) for dtype, offset in _PACKED]
    return SampleBatch._make([*views, groups])
