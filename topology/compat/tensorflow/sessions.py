"""What happens in Python while TensorFlow iterates: one session an iteration, opened and read by generators.

A generator never blocks for longer than `VISIT_S`: when it has nothing to give it gives nothing, and is asked again
unless TensorFlow has been told to stop meanwhile. What the server does wakes it at once.
"""

from __future__ import annotations

import contextvars
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, final

import numpy as np

from topology.clock import SYSTEM_CLOCK, Deadline
from topology.compat.reverb.server import service_here
from topology.compat.reverb.texts import dtype_text, shape_text, signature_text
from topology.compat.tensorflow.streams import Columns, Stream, columns_of, no_answer, steps_of
from topology.compat.tensorflow.visits import OVER, close_at_exit, is_over, tracked, unless_over
from topology.errors import ReplayError
from topology.nodes.replay import Client, SampleInfo, Spec, TableInfo
from topology.nodes.replay.datasets import DatasetOptions
from topology.nodes.replay.links import patience
from topology.nodes.replay.messages import SampleBatch
from topology.nodes.replay.structure import flatten

__all__ = ["INFO_SPEC", "VISIT_S", "Plan", "SampleSession", "Session", "opener", "reader"]

VISIT_S = 0.1
"""How long, in seconds, TensorFlow may have to wait before it can cancel a reader that is blocked."""

INFO_SPEC = SampleInfo(
    Spec((), np.uint64), Spec((), np.float64), Spec((), np.int64), Spec((), np.float64), Spec((), np.int32)
)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What an iteration gives.

    Attributes:
        options: how much is asked for ahead, and when it ends.
        specs: of the leaves of the data; of one step where `steps`.
        steps: whether items are taken apart into their steps.
        batch_size: None for items, or steps; otherwise batches of so many items.
        drop_remainder: whether batches that did not become full are left out.
    """

    options: DatasetOptions
    specs: Sequence[Spec]
    steps: bool = False
    batch_size: int | None = None
    drop_remainder: bool = False


class Session(Protocol):
    """One iteration, or one call, that TensorFlow makes.

    Attributes:
        empty: what a reader is given when there is nothing to read yet.
    """

    empty: Columns

    def open(self, wait_s: float) -> str | None:
        """Why it cannot be read; empty when it can, None while that is not known."""

    def read(self, wait_s: float) -> Iterable[Columns]:
        """What comes next, in pieces; none when there is none after `wait_s`. Raises `EOFError` at the end."""

    def ask_ahead(self) -> None:
        """All that was read has been handed on."""

    def close(self) -> None:
        """Ends it, also for a reader that is blocked. Idempotent."""


@final
class SampleSession:
    """The samples of one iteration.

    Args:
        plan: what the iteration gives.
        server_address: of the server; when that is in this process, it is called directly.
        table: name of the table.
    """

    def __init__(self, plan: Plan, server_address: bytes, table: bytes) -> None:
        self._table = table.decode()
        self._plan = plan
        address = server_address.decode()
        self._client = Client(address, service=service_here(address))
        self._stream = Stream(
            self._client, self._table, plan.options, plan.batch_size, drop_remainder=plan.drop_remainder
        )
        self._infos: Future[dict[str, TableInfo]] = self._client.link.submit("server_info")
        self._patience = Deadline(patience(plan.options.timeout_s), SYSTEM_CLOCK)
        self._admitted: tuple[Any, ...] | None = None
        self.empty: Columns = [
            np.empty((0, *(size or 0 for size in spec.shape)), spec.dtype) for spec in (*INFO_SPEC, *plan.specs)
        ]

    def open(self, wait_s: float) -> str | None:
        """See `Session`.

        Raises:
            NoAnswer: the server does not answer, and the time is over.
            ValueError: the table's signature is another one.
        """
        try:
            infos = self._infos.result(wait_s)
        except TimeoutError:
            if self._infos.done():
                raise
            if not self._patience.expired:
                return None
            raise no_answer(self._client) from None
        if self._table not in infos:
            return f"Priority table {self._table} was not found"
        signature = infos[self._table].signature
        if signature is not None:
            self._check_signature([Spec.of(leaf) for leaf in flatten(signature)[0]])
        return ""

    def read(self, wait_s: float) -> Iterable[Columns]:
        """See `Session`.

        Raises:
            EOFError: there will be no more.
            ValueError: they are not as expected.
        """
        try:
            batch = self._stream.poll(wait_s)
        except StopIteration:
            raise EOFError from None
        if batch is None:
            return ()
        if self._plan.batch_size is not None and len(batch.groups) > 1:
            raise ValueError(_kinds(self._client, batch))
        if batch.keys.size == 1 or self._plan.batch_size is not None:  # one element, which goes on at once
            self.ask_ahead()
        return map(self._arranged, columns_of(batch))

    def ask_ahead(self) -> None:
        self._stream.ask_ahead()

    def close(self) -> None:
        self._stream.close()
        self._client.close()

    def _arranged(self, columns: Columns) -> Columns:
        if self._plan.steps:
            columns = steps_of(self._table, columns)
        leaves = columns[5:]
        kind = tuple((leaf.dtype, leaf.shape[1:]) for leaf in leaves)
        if kind != self._admitted:
            self._check_received([Spec(leaf.shape[1:], leaf.dtype, " ") for leaf in leaves])
            self._admitted = kind
        return columns

    def _check_signature(self, signature: Sequence[Spec]) -> None:
        told = f"Table signature: {signature_text(signature)}"
        specs = self._plan.specs
        if len(signature) != len(specs):
            raise ValueError(
                f"Inconsistent number of tensors requested from table '{self._table}'.  Requested {len(specs)} "
                f"tensors, but table signature shows {len(signature)} tensors.  {told}"
            )
        for i, (spec, its) in enumerate(zip(specs, signature, strict=True)):
            if spec.dtype != its.dtype or not _compatible(spec.shape, its.shape):
                raise ValueError(
                    f"Requested incompatible tensor at flattened index {i} from table '{self._table}'.  Requested "
                    f"(dtype, shape): {_pair(spec)}.  Signature (dtype, shape): {_pair(its)}.  {told}"
                )

    def _check_received(self, received: Sequence[Spec]) -> None:
        specs = self._plan.specs
        told = f"Table signature: {signature_text(specs)}"
        if len(received) != len(specs):
            raise ValueError(
                f"Inconsistent number of tensors received from table '{self._table}'.  Specification has {len(specs)} "
                f"tensors, but data coming from the table shows {len(received)} tensors.\n{told}.\nIncoming tensor "
                f"signature: {signature_text(received)}"
            )
        for i, (spec, its) in enumerate(zip(specs, received, strict=True)):
            if spec.dtype != its.dtype or not _compatible(spec.shape, its.shape):
                raise ValueError(
                    f"Received incompatible tensor at flattened index {i} from table '{self._table}'.  Specification "
                    f"has (dtype, shape): {_pair(spec)}.  Tensor has (dtype, shape): {_pair(its)}.\n{told}"
                )


def _pair(spec: Spec) -> str:
    return f"({dtype_text(spec.dtype)}, {shape_text(spec.shape)})"


def _compatible(shape: Sequence[int | None], other: Sequence[int | None]) -> bool:
    return len(shape) == len(other) and all(
        None in {mine, its} or mine == its for mine, its in zip(shape, other, strict=True)
    )


def _kinds(client: Client, batch: SampleBatch) -> str:
    """Why the items do not make one batch."""
    try:
        client.assemble(batch)
    except ReplayError as error:
        return f"Cannot batch tensors with different shapes: {error}"
    raise AssertionError(batch)


_numbers = itertools.count(1)
_refused = itertools.count()
_MOST_REFUSED = 100
_sessions: dict[int, tuple[Session, contextvars.Context]] = {}


def opener(begin: Callable[..., Session]) -> Callable[..., Iterator[tuple[int, bytes]]]:
    """A generator function that opens a session, and closes it when the generator is closed.

    Its generator gives (0, b"") while it is not known whether the session can be read, then once its number and why it
    cannot be read: b"" when it can. All this belongs to the node that calls `opener`.

    Args:
        begin: makes the session, of the arguments of the generator function.
    """
    context = contextvars.copy_context()

    @tracked
    def sessions(*arguments: Any) -> Iterator[tuple[int, bytes]]:
        if is_over():
            if next(_refused) >= _MOST_REFUSED:  # a stage that begins again for ever
                yield 0, OVER
            return
        place = context.copy()
        session = place.run(begin, *arguments)
        close_at_exit(session)
        number = next(_numbers)
        _sessions[number] = session, place
        try:
            over: str | None = OVER.decode()
            while (fault := unless_over(lambda: place.run(session.open, VISIT_S), over)) is None:
                yield 0, b""
            yield number, fault.encode()
        finally:
            del _sessions[number]
            session.close()

    return sessions


def reader() -> Callable[[int], Iterator[tuple[Any, ...]]]:
    """A generator function that reads the session with that number; of session 0 there is nothing to read."""

    @tracked
    def pieces(number: int) -> Iterator[tuple[Any, ...]]:
        if not number:
            return
        session, place = _sessions[int(number)]
        nothing: list[Columns] = []
        while True:
            try:
                found = unless_over(lambda: list(place.run(session.read, VISIT_S)), nothing)
            except EOFError:
                return
            yield from map(tuple, found or [session.empty])

    return pieces
