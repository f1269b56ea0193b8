"""Datasets over replay tables, with the names and options of Reverb.

    dataset = TrajectoryDataset.from_table_signature(
        client.server_address, "replay", max_in_flight_samples_per_worker=512).batch(256)

Samples come in the order they were drawn, whatever the number of workers: a worker is so many more samples asked for
ahead, not a thread. Staleness is what is asked for ahead: up to `max_in_flight_samples_per_worker` times
`num_workers_per_iterator` samples less those in the reader's hands; with 1, a sample is drawn when it is read.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Self, final

import numpy as np

from topology.errors import ReplayDeadlineExceeded, TableNotFound
from topology.nodes.replay.chain import Dataset, Source, batched
from topology.nodes.replay.client import Client
from topology.nodes.replay.dataset import BatchIterator
from topology.nodes.replay.info import ReplaySample, SampleInfo
from topology.nodes.replay.links import SampleCallArguments, in_time, patience
from topology.nodes.replay.sharding import ShardedClient
from topology.nodes.replay.specs import Spec
from topology.nodes.replay.structure import flatten, paths, show_path, unflatten

__all__ = ["DatasetOptions", "TimestepDataset", "TrajectoryDataset", "shapes_like"]

_INFO_SPEC = SampleInfo(
    Spec((), np.uint64, "key"),
    Spec((), np.float64, "probability"),
    Spec((), np.int64, "table_size"),
    Spec((), np.float64, "priority"),
    Spec((), np.int32, "times_sampled"),
)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """Settings of a dataset, under Reverb's names; -1 stands for "not limited", and for one worker.

    Attributes:
        max_in_flight_samples_per_worker: samples asked for ahead, for each worker.
        num_workers_per_iterator: multiplies that.
        max_samples_per_stream: of Reverb's transport; checked, and without effect here.
        rate_limiter_timeout_ms: the iteration ends when the table's rate limiter lets nothing pass for so long.
        max_samples: the iteration ends after so many samples; exactly so many are drawn.

    Raises:
        ValueError: a number is out of its range.
    """

    max_in_flight_samples_per_worker: int
    num_workers_per_iterator: int = -1
    max_samples_per_stream: int = -1
    rate_limiter_timeout_ms: int = -1
    max_samples: int = -1

    def __post_init__(self) -> None:
        if self.max_in_flight_samples_per_worker < 1:
            raise ValueError(
                f"max_in_flight_samples_per_worker ({self.max_in_flight_samples_per_worker}) must be a positive integer"
            )
        for name in ("num_workers_per_iterator", "max_samples_per_stream", "max_samples"):
            value = getattr(self, name)
            if value != -1 and value < 1:
                raise ValueError(f"{name} ({value}) must be a positive integer or -1")
        if self.rate_limiter_timeout_ms < -1:
            raise ValueError(f"rate_limiter_timeout_ms ({self.rate_limiter_timeout_ms}) must be an integer >= -1")

    @property
    def in_flight(self) -> int:
        """Samples asked for ahead, at most."""
        return self.max_in_flight_samples_per_worker * max(self.num_workers_per_iterator, 1)

    @property
    def timeout_s(self) -> float | None:
        """The timeout in seconds."""
        return None if self.rate_limiter_timeout_ms < 0 else self.rate_limiter_timeout_ms / 1e3


class _ReplayDataset(Dataset):
    """What both datasets have in common.

    Args:
        server_address: of the server; several, joined by commas, are one sharded source. Or a client.
        table: name of the table.
        dtypes: structure of dtypes of the data.
        shapes: structure of shapes; None for a dimension of any length.
        max_in_flight_samples_per_worker: see `DatasetOptions`, as for all that follow.

    Raises:
        ValueError: an option is out of its range, or `dtypes` and `shapes` differ in structure.
    """

    def __init__(
        self,
        server_address: str | Client,
        table: str,
        dtypes: Any,
        shapes: Any,
        max_in_flight_samples_per_worker: int,
        num_workers_per_iterator: int = -1,
        max_samples_per_stream: int = -1,
        rate_limiter_timeout_ms: int = -1,
        max_samples: int = -1,
    ) -> None:
        self.server_address = server_address
        self.table = table
        self.options = DatasetOptions(
            max_in_flight_samples_per_worker=max_in_flight_samples_per_worker,
            num_workers_per_iterator=num_workers_per_iterator,
            max_samples_per_stream=max_samples_per_stream,
            rate_limiter_timeout_ms=rate_limiter_timeout_ms,
            max_samples=max_samples,
        )
        leaves, shape = flatten(dtypes)
        sizes = shapes_like(dtypes, shapes)
        self.data_spec = unflatten(
            shape, [Spec(size, dtype) for size, dtype in zip(sizes, map(_dtype, leaves), strict=True)]
        )
        super().__init__(self._begin_items, ReplaySample(_INFO_SPEC, self.data_spec))

    @classmethod
    def from_table_signature(
        cls,
        server_address: str | Client,
        table: str,
        max_in_flight_samples_per_worker: int,
        num_workers_per_iterator: int = -1,
        max_samples_per_stream: int = -1,
        rate_limiter_timeout_ms: int = -1,
        get_signature_timeout_secs: float | None = None,
        max_samples: int = -1,
    ) -> Self:
        """A dataset whose data has the structure of the table's signature.

        Args:
            server_address: as for the constructor.
            table: name of the table.
            max_in_flight_samples_per_worker: see `DatasetOptions`.
            num_workers_per_iterator: see `DatasetOptions`.
            max_samples_per_stream: see `DatasetOptions`.
            rate_limiter_timeout_ms: see `DatasetOptions`.
            get_signature_timeout_secs: how long to wait for the server; None for ever.
            max_samples: see `DatasetOptions`.

        Raises:
            ReplayDeadlineExceeded: the server did not answer in time.
            TableNotFound: there is no such table.
            ValueError: it has no signature, or an option is out of its range.
        """
        signature = _signature(server_address, table, get_signature_timeout_secs)
        specs, shape = flatten(signature)
        return cls(
            server_address,
            table,
            unflatten(shape, [spec.dtype for spec in specs]),
            unflatten(shape, [_Shape(spec.shape[cls._dropped_axes :]) for spec in specs]),
            max_in_flight_samples_per_worker=max_in_flight_samples_per_worker,
            num_workers_per_iterator=num_workers_per_iterator,
            max_samples_per_stream=max_samples_per_stream,
            rate_limiter_timeout_ms=rate_limiter_timeout_ms,
            max_samples=max_samples,
        )

    _dropped_axes = 0

    def _begin_items(self) -> Source:
        raise NotImplementedError

    def _checked(self, data: Any, axes: int) -> Any:
        """The data in the structure of the spec.

        Raises:
            ValueError: it does not match; names the path and both sides.
        """
        leaves, _ = flatten(data)
        specs, shape = flatten(self.data_spec)
        if len(leaves) != len(specs):
            raise ValueError(
                f"table {self.table!r}: the items have {len(leaves)} columns, the dataset was told of {len(specs)}"
            )
        for path, leaf, spec in zip(paths(shape), leaves, specs, strict=True):
            if not spec.admits(leaf.shape[axes:], leaf.dtype):
                raise ValueError(
                    f"table {self.table!r}: column {show_path(path)} is {Spec(leaf.shape[axes:], leaf.dtype)}, the "
                    f"dataset was told {spec}"
                )
        return unflatten(shape, leaves)


@final
class TrajectoryDataset(_ReplayDataset):
    """Whole items: `ReplaySample` with numbers for info, and a time axis where items have one.

    `batch` draws batches on the server, each as one message; see there for `drop_remainder`.
    """

    def batch(self, batch_size: int, drop_remainder: bool = False) -> Dataset:
        """Batches [B, T, ...], gathered by the server.

        Samples are asked for by whole batches, as many ahead as `max_in_flight_samples_per_worker` allows.

        Args:
            batch_size: B, at least 1.
            drop_remainder: whether to leave out what was drawn for a batch that is not full when the time is over or
                `max_samples` is reached. At a timeout those samples then go to the next reader.

        Raises:
            ValueError: `batch_size` is below 1.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size ({batch_size}) must be at least 1")
        spec = batched(self.element_spec, batch_size if drop_remainder else None)
        return Dataset(lambda: _Batches(self, batch_size, drop_remainder), spec)

    def _begin_items(self) -> Source:
        return _Items(_Batches(self, 1, True))

    def checked_batch(self, sample: ReplaySample) -> ReplaySample:
        """The batch in the structure of the spec."""
        return ReplaySample(sample.info, self._checked(sample.data, 1))


@final
class TimestepDataset(_ReplayDataset):
    """Items taken apart into their steps: `ReplaySample` with the data of one step, one after the other."""

    _dropped_axes = 1

    def _begin_items(self) -> Source:
        whole = TrajectoryDataset(self.server_address, self.table, (), (), **dataclasses.asdict(self.options))
        return _Steps(_Batches(whole, 1, True, check=False), self.checked_steps)

    def checked_steps(self, sample: ReplaySample) -> list[ReplaySample]:
        """The steps of an item that came as a batch of one."""
        leaves, _ = flatten(sample.data)
        if {leaf.shape[1:2] for leaf in leaves} & {()} or len({leaf.shape[1] for leaf in leaves}) != 1:
            raise ValueError(
                f"table {self.table!r}: an item with leaves of shapes {[leaf.shape[1:] for leaf in leaves]} is not a "
                "sequence of steps: use TrajectoryDataset"
            )
        data = self._checked(sample.data, 2)
        info = SampleInfo(*(field[0] for field in sample.info))
        leaves, shape = flatten(data)
        return [
            ReplaySample(info, unflatten(shape, [leaf[0, t] for leaf in leaves])) for t in range(leaves[0].shape[1])
        ]


@final
class _Batches:
    """Batches of one iteration, some of them asked for ahead."""

    def __init__(self, dataset: TrajectoryDataset, size: int, drop_remainder: bool, *, check: bool = True) -> None:
        options = dataset.options
        self._owned = not isinstance(dataset.server_address, Client)
        self._client = _client(dataset.server_address)
        self._dataset = dataset
        self._size = size
        self._check = check
        self._drop_remainder = drop_remainder
        self._left = options.max_samples
        self._closed = False
        self._was_short = False
        self._batches = BatchIterator(
            self._request,
            self._client.assemble,
            prefetch=max(options.in_flight // size - 1, 0),
            result=functools.partial(
                in_time, patience_s=patience(options.timeout_s), address=self._client.server_address
            ),
        )

    def _request(self) -> Future[Any] | None:
        size = self._size
        if self._left >= 0:
            size = min(size, self._left)
            if not size or (self._drop_remainder and size < self._size):
                return None
            self._left -= size
        request = SampleCallArguments(self._dataset.table, size, self._dataset.options.timeout_s)
        return self._client.link.submit_sample(request)

    def __next__(self) -> ReplaySample:
        try:
            sample = next(self._batches)
        except StopIteration:
            rest = self._rest() if self._batches.timed_out and not self._drop_remainder else None
            self.close()
            if rest is None:
                raise
            sample = rest
        return self._dataset.checked_batch(sample) if self._check else sample

    def _rest(self) -> ReplaySample | None:
        """What was drawn for the batch that did not become full."""
        if self._closed or self._was_short:
            return None
        self._was_short = True
        samples: list[ReplaySample] = []
        while len(samples) < self._size - 1:
            try:
                samples.append(self._client.sample_batch(self._dataset.table, 1, timeout_s=0.0))
            except ReplayDeadlineExceeded:
                break
        if not samples:
            return None
        _, shape = flatten(samples[0])
        columns = zip(*(flatten(sample)[0] for sample in samples), strict=True)
        joined: ReplaySample = unflatten(shape, [np.concatenate(column) for column in columns])
        return joined

    def close(self) -> None:
        self._closed = True
        self._batches.close()
        if self._owned:
            self._client.close()


@final
class _Items:
    """Batches of one, as items."""

    def __init__(self, batches: _Batches) -> None:
        self._batches = batches

    def __next__(self) -> ReplaySample:
        leaves, shape = flatten(next(self._batches))
        item: ReplaySample = unflatten(shape, [leaf[0] for leaf in leaves])
        return item

    def close(self) -> None:
        self._batches.close()


@final
class _Steps:
    """The steps of items that come as batches of one."""

    def __init__(self, batches: _Batches, split: Callable[[ReplaySample], list[ReplaySample]]) -> None:
        self._batches = batches
        self._split = split
        self._steps: list[ReplaySample] = []

    def __next__(self) -> ReplaySample:
        while not self._steps:
            self._steps = self._split(next(self._batches))[::-1]
        return self._steps.pop()

    def close(self) -> None:
        self._batches.close()


def _client(server: str | Client) -> Client:
    if isinstance(server, Client):
        return server
    addresses = server.split(",")
    return Client(server) if len(addresses) == 1 else ShardedClient(addresses)


def _signature(server: str | Client, table: str, timeout_s: float | None) -> Any:
    client = _client(server)
    try:
        infos = client.server_info(timeout_s)
    finally:
        if client is not server:
            client.close()
    if table not in infos:
        raise TableNotFound(f"no table {table!r} at {client.server_address}; its tables are {', '.join(sorted(infos))}")
    if infos[table].signature is None:
        raise ValueError(
            f"table {table!r} at {client.server_address} has no signature: give the table one, or make the "
            "dataset with dtypes and shapes"
        )
    return infos[table].signature


@final
class _Shape:
    """A shape as a leaf."""

    def __init__(self, sizes: tuple[int | None, ...]) -> None:
        self.sizes = sizes


def shapes_like(tree: Any, shapes: Any) -> list[tuple[int | None, ...]]:
    """For each leaf of `tree` the shape at its place: tuples and lists of sizes are leaves there."""
    found = []
    for path in paths(flatten(tree)[1]):
        place = shapes
        for key in path:
            try:
                place = (
                    getattr(place, str(key)) if hasattr(type(place), "_fields") and isinstance(key, str) else place[key]
                )
            except (KeyError, IndexError, TypeError, AttributeError) as error:
                raise ValueError(f"shapes has nothing at {show_path(path)}, where dtypes has a dtype") from error
        sizes = place.sizes if isinstance(place, _Shape) else place
        sizes = sizes.as_list() if hasattr(sizes, "as_list") else sizes  # TensorFlow has shapes of its own
        found.append(tuple(None if size is None else int(size) for size in sizes))
    return found


def _dtype(dtype: Any) -> np.dtype[Any]:
    found: np.dtype[Any] = np.dtype(getattr(dtype, "as_numpy_dtype", dtype))
    return found
