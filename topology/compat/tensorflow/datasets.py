"""Reverb's datasets as those of `tf.data`."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Self, final

import tensorflow as tf

from topology.compat.reverb.client import Client
from topology.compat.tensorflow.elements import Elements, hasten_other_stages
from topology.compat.tensorflow.reading import read_sessions
from topology.compat.tensorflow.sessions import INFO_SPEC, Plan, SampleSession
from topology.nodes.replay import ReplaySample, Spec
from topology.nodes.replay.datasets import DatasetOptions, shapes_like
from topology.nodes.replay.structure import Shape, flatten, unflatten

__all__ = ["Structured", "TimestepDataset", "TrajectoryDataset"]

hasten_other_stages()


def _pieces(server_address: Any, table: Any, plan: Plan) -> Any:
    """A dataset of tuples of tensors [n, ...], of any n >= 0: fields of SampleInfo, then the leaves of the data.

    Args:
        server_address: a string, or a tensor of one.
        table: the same.
        plan: what it gives.
    """
    return read_sessions(functools.partial(SampleSession, plan), _strings(server_address, table), _columns(plan))


def _strings(*values: Any) -> tuple[Any, ...]:
    return tuple(tf.convert_to_tensor(value, tf.string) for value in values)


def _columns(plan: Plan) -> list[Any]:
    """Specs of the columns that a session of the plan gives."""
    return [tf.TensorSpec((None, *spec.shape), _tf_dtype(spec)) for spec in (*INFO_SPEC, *plan.specs)]


def _tf_dtype(spec: Spec) -> Any:
    return tf.string if spec.dtype == object else tf.as_dtype(spec.dtype)


class Structured(tf.compat.v1.data.Dataset):  # type: ignore[misc]
    """A dataset of flat tuples, as one of structures.

    Args:
        flat: the dataset.
        element_spec: structure of the elements.
        read: makes an iterator of the elements for programs that read them in Python; None leaves it to TensorFlow.
    """

    def __init__(self, flat: Any, element_spec: Any, read: Callable[[Any], Any] | None = None) -> None:
        self._flat = flat
        self._spec = element_spec
        self._read = read
        super().__init__()

    def __iter__(self) -> Any:
        if self._read is None or not tf.executing_eagerly():
            return super().__iter__()
        return self._read(self)

    def _as_variant_tensor(self) -> Any:
        return self._flat._variant_tensor  # noqa: SLF001  (what a subclass of tf.data.Dataset is made from)

    def _inputs(self) -> list[Any]:
        return [self._flat]

    @property
    def element_spec(self) -> Any:
        return self._spec


class _ReplayDataset(Structured):
    """What both datasets have in common. Parameters are Reverb's; see `DatasetOptions`.

    Args:
        server_address: of the server; a string or a tensor.
        table: name of the table; a string or a tensor.
        dtypes: structure of dtypes of the data.
        shapes: structure of shapes; None for a dimension of any length.
        options: the fields of `DatasetOptions`.

    Raises:
        ValueError: an option is out of its range, or `dtypes` and `shapes` differ in structure.
    """

    _steps = False

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def __init__(
        self,
        server_address: Any,
        table: Any,
        dtypes: Any,
        shapes: Any,
        max_in_flight_samples_per_worker: int,
        num_workers_per_iterator: int = -1,
        max_samples_per_stream: int = -1,
        rate_limiter_timeout_ms: int = -1,
        max_samples: int = -1,
    ) -> None:
        options = DatasetOptions(
            max_in_flight_samples_per_worker=max_in_flight_samples_per_worker,
            num_workers_per_iterator=num_workers_per_iterator,
            max_samples_per_stream=max_samples_per_stream,
            rate_limiter_timeout_ms=rate_limiter_timeout_ms,
            max_samples=max_samples,
        )
        leaves, shape = flatten(dtypes)
        specs = [
            Spec(sizes, tf.as_dtype(dtype).as_numpy_dtype)
            for sizes, dtype in zip(shapes_like(dtypes, shapes), leaves, strict=True)
        ]
        self._server_address = server_address
        self._table = table
        self._plan = Plan(options=options, specs=specs, steps=self._steps)
        self._shape = _without_lists(shape)
        super().__init__(*self._read_by(self._plan, operator.methodcaller("unbatch"), self._structure(())))

    def _read_by(self, plan: Plan, join: Callable[[Any], Any], element_spec: Any) -> tuple[Any, Any, Any]:
        """Arguments of `Structured`.

        Args:
            plan: what is read.
            join: from a dataset of columns to one of elements.
            element_spec: structure of the elements.
        """
        place = self._server_address, self._table

        def begin() -> SampleSession:
            return SampleSession(plan, *(value.numpy() for value in _strings(*place)))

        def read(elements: Any) -> Elements:
            is_whole = plan.batch_size is not None
            return Elements(elements, begin, self._composed, join, _columns(plan), is_whole=is_whole)

        return join(_pieces(*place, plan)), element_spec, read

    def _composed(self, tensors: Sequence[Any]) -> ReplaySample:
        return ReplaySample(type(INFO_SPEC)(*tensors[:5]), unflatten(self._shape, tensors[5:]))

    def _structure(self, batch_shape: tuple[int | None, ...]) -> Any:
        """The spec of elements with these axes in front."""

        def tensor_spec(spec: Spec) -> Any:
            return tf.TensorSpec((*batch_shape, *spec.shape), _tf_dtype(spec))

        data = unflatten(self._shape, [tensor_spec(spec) for spec in self._plan.specs])
        return ReplaySample(type(INFO_SPEC)(*map(tensor_spec, INFO_SPEC)), data)

    @classmethod
    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def from_table_signature(
        cls,
        server_address: str,
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
            server_address: of the server.
            table: name of the table.
            max_in_flight_samples_per_worker: see `DatasetOptions`.
            num_workers_per_iterator: see `DatasetOptions`.
            max_samples_per_stream: see `DatasetOptions`.
            rate_limiter_timeout_ms: see `DatasetOptions`.
            get_signature_timeout_secs: how long to wait for the server; None for ever.
            max_samples: see `DatasetOptions`.

        Raises:
            DeadlineExceededError: the server did not answer in time.
            ValueError: there is no such table, it has no signature, or an option is out of its range.
        """
        with Client(server_address) as client:
            infos = client.server_info(get_signature_timeout_secs)
        if table not in infos:
            raise ValueError(
                f"Server at {server_address} does not contain any table named {table}. Found: "
                f"{', '.join(sorted(infos))}."
            )
        if infos[table].signature is None:
            raise ValueError(f"Table {table} at {server_address} does not have a signature.")
        specs, shape = flatten(infos[table].signature)
        dataset: Self = cls(
            server_address=server_address,
            table=table,
            dtypes=unflatten(shape, [spec.dtype for spec in specs]),
            shapes=unflatten(shape, [spec.shape for spec in specs]),
            max_in_flight_samples_per_worker=max_in_flight_samples_per_worker,
            num_workers_per_iterator=num_workers_per_iterator,
            max_samples_per_stream=max_samples_per_stream,
            rate_limiter_timeout_ms=rate_limiter_timeout_ms,
            max_samples=max_samples,
        )
        return dataset


@final
class TimestepDataset(_ReplayDataset):
    """Items taken apart into their steps: `ReplaySample` with the data of one step, one after the other."""

    _steps = True


@final
class TrajectoryDataset(_ReplayDataset):
    """Whole items: `ReplaySample` with scalars for info, and a time axis where items have one.

    `batch`, when it is the first stage, is done by the server.
    """

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def batch(
        self,
        batch_size: Any,
        drop_remainder: Any = False,
        num_parallel_calls: Any = None,
        deterministic: Any = None,
        name: str | None = None,
    ) -> Any:
        """Batches [B, T, ...], each gathered by the server and sent as one message. Options as in `tf.data`."""
        if not isinstance(batch_size, int) or not isinstance(drop_remainder, bool) or batch_size < 1:
            return super().batch(batch_size, drop_remainder, num_parallel_calls, deterministic, name)
        plan = dataclasses.replace(self._plan, batch_size=batch_size, drop_remainder=drop_remainder)
        join = operator.methodcaller("filter", _has_samples)
        return Structured(*self._read_by(plan, join, self._structure((batch_size if drop_remainder else None,))))


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _has_samples(keys: Any, *_: Any) -> Any:
    return tf.shape(keys)[0] > 0


def _without_lists(shape: Shape) -> Shape:
    """Tuples in the place of lists, which tf.data takes for tensors."""
    if shape is None:
        return None
    kind, keys, children = shape
    return tuple if issubclass(kind, list) else kind, keys, tuple(map(_without_lists, children))
