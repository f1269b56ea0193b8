"""Reverb's client for programs of TensorFlow: eager, in functions, in datasets, in graphs with sessions."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from topology.compat.reverb.server import service_here
from topology.compat.tensorflow.reading import read_sessions, unless_not_found
from topology.compat.tensorflow.sessions import INFO_SPEC, VISIT_S
from topology.compat.tensorflow.streams import Columns, columns_of
from topology.compat.tensorflow.visits import OVER, close_at_exit, is_over, unless_over, visiting
from topology.errors import ReplayDeadlineExceeded, TableNotFound
from topology.nodes.replay import Client, ReplaySample, SampleInfo, TrajectoryWriter
from topology.nodes.replay.links import SampleCallArguments
from topology.nodes.replay.structure import flatten, unflatten

__all__ = ["TFClient"]


@final
class TFClient:
    """Samples, inserts and priorities as operations of TensorFlow. Connects with the first of them.

    What cannot be is reported by the operation, when it runs, as an error of `tf.errors`.

    Args:
        server_address: of the server.
        shared_name: of Reverb's resource; has no effect here.
        name: of operations.
    """

    def __init__(self, server_address: str, shared_name: str | None = None, name: str = "reverb") -> None:
        del shared_name
        self._server_address = server_address
        self._name = name
        self._client = Client(server_address, service=service_here(server_address))
        weakref.finalize(self, self._client.close)
        close_at_exit(self._client, first=True)

    @property
    def server_address(self) -> str:
        """Address of the server."""
        return self._server_address

    @property
    def dataset(self) -> Any:
        """Gone, as in Reverb."""
        raise AttributeError(
            "TFClient.dataset is not there, as in Reverb by now: use reverb.TimestepDataset or reverb.TrajectoryDataset"
        )

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def sample(self, table: Any, data_dtypes: Any, name: str | None = None) -> ReplaySample:
        """One item, or its first step when it is a sequence. Blocks until the rate limiter lets it pass.

        Args:
            table: name of the table, or a tensor of it.
            data_dtypes: structure of dtypes of the data.
            name: of the operation.

        Returns:
            `ReplaySample` of tensors, with data like `data_dtypes`.
        """
        dtypes, shape = flatten(data_dtypes)
        specs = [
            *(tf.TensorSpec((), tf.as_dtype(spec.dtype)) for spec in INFO_SPEC),
            *(tf.TensorSpec(None, tf.as_dtype(dtype)) for dtype in dtypes),
        ]
        with tf.name_scope(name or f"{self._name}_sample"):
            begin = functools.partial(_OneSample, self._client, [spec.dtype.as_numpy_dtype for spec in specs[5:]])
            table_name = tf.convert_to_tensor(table, tf.string)
            tensors = (
                _sample_now(begin, table_name, specs) or read_sessions(begin, (table_name,), specs).get_single_element()
            )
            return ReplaySample(SampleInfo(*tensors[:5]), unflatten(shape, tensors[5:]))

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def insert(self, data: Sequence[Any], tables: Any, priorities: Any, name: str | None = None) -> Any:
        """Inserts one step into several tables, each with its priority. Blocks until the rate limiters let it pass.

        Args:
            data: tensors: the columns of the step.
            tables: names of the tables, string [n].
            priorities: float64 [n].
            name: of the operation.

        Returns:
            The operation; None when it has run already.

        Raises:
            ValueError: `tables` or `priorities` is of another dtype or rank, or they differ in shape.
        """
        tables, priorities = tf.convert_to_tensor(tables), tf.convert_to_tensor(priorities)
        if tables.dtype != tf.string or tables.shape.rank != 1:
            raise ValueError("tables must be a string tensor of rank 1")
        if priorities.dtype != tf.float64 or priorities.shape.rank != 1:
            raise ValueError("priorities must be a float64 tensor of rank 1")
        if not tables.shape.is_compatible_with(priorities.shape):
            raise ValueError("priorities and tables must have the same shape")
        client = self._client

        def insert(names: npt.NDArray[Any], values: npt.NDArray[np.float64], *columns: Any) -> None:
            _insert(client, list(columns), dict(zip([each.decode() for each in names], values.tolist(), strict=True)))

        return _operation(
            insert, [tables, priorities, *map(tf.convert_to_tensor, data)], name or f"{self._name}_insert"
        )

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def update_priorities(self, table: Any, keys: Any, priorities: Any, name: str | None = None) -> Any:
        """Sets priorities of items; keys that are not in the table are ignored.

        Args:
            table: name of the table, or a tensor of it.
            keys: uint64 [n].
            priorities: float64 [n].
            name: of the operation.

        Returns:
            The operation; None when it has run already.

        Raises:
            ValueError: `keys` or `priorities` is a tensor of another dtype.
        """
        client = self._client

        def update(table_name: bytes, its_keys: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
            if its_keys.shape != values.shape:
                raise ValueError(
                    f"Tensors `keys` and `priorities` do not match in shape ({list(its_keys.shape)} vs. "
                    f"{list(values.shape)})"
                )
            client.update_priorities(table_name.decode(), its_keys.ravel(), values.ravel())

        inputs = [
            tf.convert_to_tensor(table, tf.string),
            tf.convert_to_tensor(keys, tf.uint64),
            tf.convert_to_tensor(priorities, tf.float64),
        ]
        return _operation(update, inputs, name or f"{self._name}_update_priorities")


@final
class _OneSample:
    """One item, asked for when the session begins."""

    def __init__(self, client: Client, dtypes: Sequence[Any], table: bytes) -> None:
        self.empty: Columns = []
        self._dtypes = dtypes
        self._table = table.decode()
        self._future = client.link.begin_sample(SampleCallArguments(self._table, 1, None))
        self._is_read = False

    def open(self, wait_s: float | None) -> str | None:
        try:
            self._future.result(wait_s)
        except TableNotFound:
            return f"Priority table {self._table} was not found"
        except TimeoutError:
            if not self._future.done():
                return None
            raise
        return ""

    def read(self, wait_s: float) -> Iterable[Columns]:
        del wait_s
        if self._is_read:
            raise EOFError
        self._is_read = True
        (columns,) = columns_of(self._future.result())
        if len(columns) != 5 + len(self._dtypes):
            raise ValueError(
                "Number of tensors in the replay sample did not match the expected count. Got "
                f"{len(columns)} but wanted {5 + len(self._dtypes)}"
            )
        for leaf, dtype in zip(columns[5:], self._dtypes, strict=True):
            if leaf.dtype != dtype:
                raise _WrongDtype(f"the item has a column of {leaf.dtype}, where {np.dtype(dtype)} was asked for")
        return [[*(field[0, ...] for field in columns[:5]), *(_first_step(leaf[0, ...]) for leaf in columns[5:])]]

    def ask_ahead(self) -> None:
        """There is one sample only."""

    def close(self) -> None:
        self._future.cancel()


@final
class _WrongDtype(ValueError):
    """A column is not of the dtype that was asked for."""


def _first_step(leaf: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return leaf[0, ...] if leaf.ndim else leaf


def _sample_now(begin: Callable[[bytes], _OneSample], table: Any, specs: Sequence[Any]) -> list[Any] | None:
    """The sample, when operations run as soon as they are made."""
    if not tf.executing_eagerly():
        return None
    session = begin(table.numpy())
    try:
        fault = session.open(None)
        if fault:
            raise tf.errors.NotFoundError(None, None, fault)
        (columns,) = session.read(0.0)
    except _WrongDtype as error:
        raise tf.errors.InternalError(None, None, str(error)) from error
    except ValueError as error:
        raise tf.errors.InvalidArgumentError(None, None, str(error)) from error
    finally:
        session.close()
    return [tf.constant(value, spec.dtype) for value, spec in zip(columns, specs, strict=True)]


def _insert(client: Client, columns: list[Any], priorities: dict[str, float]) -> None:
    """Inserts a step. Blocks until the rate limiters let it pass, but not when the interpreter is about to end."""
    writer = client.trajectory_writer(1)
    writer.signature_may_be_of_steps = True
    try:
        writer.append(columns)
        for table, priority in priorities.items():
            writer.create_item(table, priority, [column[-1:] for column in writer.history])
        while not _has_flushed(writer) and not is_over():
            pass
    finally:
        writer.close()


def _has_flushed(writer: TrajectoryWriter) -> bool:
    try:
        writer.flush(timeout_ms=int(1e3 * VISIT_S))
    except ReplayDeadlineExceeded:
        return False
    return True


def _operation(function: Callable[..., None], inputs: Sequence[Any], name: str) -> Any:
    """An operation that calls the function with the values of `inputs`; errors become those of TensorFlow."""

    def call(*values: Any) -> bytes:
        try:
            unless_over(lambda: function(*values), None)
        except TableNotFound as error:
            return str(error).encode()
        return OVER if is_over() else b""

    if tf.executing_eagerly():
        try:
            fault = call(*(value.numpy() for value in inputs))
        except ValueError as error:
            raise tf.errors.InvalidArgumentError(None, None, str(error)) from error
        if fault:
            raise tf.errors.NotFoundError(None, None, fault.decode())
        return None
    with tf.name_scope(name):
        fault = tf.numpy_function(visiting(call), inputs, tf.string)
        fault.set_shape(())
        outcome = unless_not_found(fault, tf.constant(0, tf.int64))
        # An operation with an effect, so that nothing leaves out the check before it.
        return tf.debugging.assert_equal(outcome, tf.constant(0, tf.int64)) or tf.no_op()
