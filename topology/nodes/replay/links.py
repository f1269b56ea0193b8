"""How a client reaches a replay service: over a connection, or in the same process."""

from __future__ import annotations

import concurrent.futures
import functools
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol, final

from topology.errors import ConnectionBroken, ReplayDeadlineExceeded
from topology.nodes import courier
from topology.nodes.courier.begun import BegunCall
from topology.nodes.courier.calls import CallFuture
from topology.nodes.courier.client import begin
from topology.nodes.replay.checks import check_timeout
from topology.nodes.replay.forks import tell_in_child
from topology.nodes.replay.landing import Landings
from topology.nodes.replay.messages import SampleBatch, ServerStopped
from topology.nodes.replay.region_pool import RegionPool
from topology.nodes.replay.service import ReplayService
from topology.nodes.replay.stopping import reason_of

__all__ = [
    "MOST_IN_FLIGHT",
    "Link",
    "LocalLink",
    "NoAnswer",
    "RemoteLink",
    "SampleCallArguments",
    "in_time",
    "patience",
    "result_of",
    "wait_for",
]

MOST_IN_FLIGHT = 1 << 16
"""Messages of writers that may wait on one connection: so many that only their own bounds hold them back."""

_GRACE_S = 1.0  # beyond the time a sample call is given, for the server to answer so


def patience(timeout_s: float | None) -> float | None:
    """How long the caller of a sample call waits for the server to say that the time is over; None for ever."""
    timeout_s = check_timeout("timeout_s", timeout_s)
    return None if timeout_s is None else max(0.0, timeout_s) + _GRACE_S


class SampleCallArguments(NamedTuple):
    """A wish for a batch: `batch_size` items of `table`, waited for `timeout_s` seconds; each once if `distinct`.

    With `some` it is a wish for 1 to `batch_size` items: those that can be drawn when the first can. With `marked` each
    is there once, and gets the priority 1.
    """

    table: str
    batch_size: int
    timeout_s: float | None
    distinct: bool = False
    some: bool = False
    marked: bool = False

    @property
    def method(self) -> str:
        """The service's method."""
        if self.some:
            return "sample_some"
        if self.marked:
            return "sample_marked"
        return "sample_distinct" if self.distinct else "sample"

    @property
    def patience_s(self) -> float | None:
        """How long the caller waits for the server to say that the time is over; None for ever."""
        return patience(self.timeout_s)

    @property
    def arguments(self) -> tuple[str, int, float | None]:
        """Its arguments."""
        return self.table, self.batch_size, self.timeout_s


@final
class NoAnswer(ReplayDeadlineExceeded):
    """The server did not even say that the time is over."""


def in_time(future: Future[SampleBatch], patience_s: float | None, address: str) -> SampleBatch:
    """The result of a sample call, if the server answers at all.

    Raises:
        NoAnswer: it does not.
    """
    try:
        return future.result(patience_s)
    except TimeoutError as error:
        if isinstance(error, ReplayDeadlineExceeded) or future.done():
            raise
        future.cancel()
        raise NoAnswer(
            f"the replay server at {address} did not answer within {patience_s} s, not even that the time is over; "
            "is it running, and is that its address?"
        ) from None
    except BaseException:
        future.cancel()  # an interrupt: what is drawn goes to somebody who waits
        raise


def result_of(call: Future[SampleBatch] | BegunCall) -> SampleBatch:
    """The result of a sample call. Blocks for it; what ended the connection is told as the program sees it.

    Raises:
        ProgramStopped: the program stopped meanwhile.
        ConnectionBroken, ReplayError: as of the call.
    """
    try:
        batch: SampleBatch = call.result()
    except (ServerStopped, ConnectionBroken) as error:
        reason = reason_of(error)
        raise reason from reason.__cause__
    return batch


def wait_for(call: Future[SampleBatch] | BegunCall) -> None:
    """Blocks until the reply of a sample call is there; whatever it is, `result_of` says it."""
    if isinstance(call, BegunCall):
        call.wait()
    else:
        concurrent.futures.wait([call])


class Link(Protocol):
    """How a client reaches a service."""

    def call(self, method: str, *args: Any) -> Any:
        """Calls a method of the service; blocks."""

    def submit(self, method: str, *args: Any) -> Future[Any]:
        """Calls a method of the service."""

    def sample(self, request: SampleCallArguments) -> SampleBatch:
        """Draws a batch; blocks."""

    def submit_sample(self, request: SampleCallArguments) -> Future[SampleBatch]:
        """Draws a batch."""

    def begin_sample(self, request: SampleCallArguments) -> Future[SampleBatch] | BegunCall:
        """Draws a batch for one who waits for nothing else meanwhile."""

    def close(self) -> None:
        """Closes the connections; calls under way fail. Idempotent."""

    @property
    def regions(self) -> RegionPool | None:
        """Memory shared with the service's process; None where nothing is sent."""

    @property
    def visit(self) -> int:
        """What tells the service over which connection a writer's message comes; 0 where there is none."""


@final
class RemoteLink:
    """Calls a server at its address."""

    def __init__(self, address: str, secret: bytes) -> None:
        self._client = courier.Client(address, secret=secret)
        # Inserts may wait for samples, and there may be so many of them that nothing else gets through.
        self._writing = courier.Client(address, secret=secret, max_in_flight=MOST_IN_FLIGHT)
        is_near = address.startswith("unix:")
        self._regions = RegionPool(self._writing.futures.lend_memory, enabled=is_near)
        self._landing_regions = RegionPool(self._client.futures.lend_memory, enabled=is_near)
        self._landings = Landings(self._landing_regions)
        self._visit = _Visit(functools.partial(self._submit, self._writing))

    def call(self, method: str, *args: Any) -> Any:
        try:
            return getattr(self._client, method)(*args)
        except (ServerStopped, ConnectionBroken) as error:
            reason = reason_of(error)
            raise reason from reason.__cause__

    def submit(self, method: str, *args: Any) -> Future[Any]:
        return self._submit(self._writing if method == "insert" else self._client, method, *args)

    @staticmethod
    def _submit(client: courier.Client, method: str, *args: Any) -> Future[Any]:
        future: Future[Any] = getattr(client.futures, method)(*args)
        return future

    def sample(self, request: SampleCallArguments) -> SampleBatch:
        if request.patience_s is None:
            return self._landings.call(functools.partial(self.call, request.method), *request.arguments)
        try:
            return in_time(self.submit_sample(request), request.patience_s, self._client.address)
        except (ServerStopped, ConnectionBroken) as error:
            reason = reason_of(error)
            raise reason from reason.__cause__

    def submit_sample(self, request: SampleCallArguments) -> Future[SampleBatch]:
        return self._landings.submit(functools.partial(self.submit, request.method), *request.arguments)

    def begin_sample(self, request: SampleCallArguments) -> BegunCall:
        return self._landings.submit(functools.partial(begin, self._client, request.method), *request.arguments)

    def close(self) -> None:
        for client in (self._client, self._writing):
            client.close()
        for pool in (self._regions, self._landing_regions):
            pool.close()

    @property
    def regions(self) -> RegionPool:
        return self._regions

    @property
    def visit(self) -> int:
        return self._visit.number()


@final
class _Visit:
    """A call without end over the connection that writers use: its end tells the server that they are gone."""

    def __init__(self, submit: Callable[..., Future[Any]]) -> None:
        self._submit = submit
        self._begun: tuple[int, Future[Any]] | None = None
        tell_in_child(self)

    def forked(self) -> None:
        """In a forked child: the connection is the parent's."""
        self._begun = None

    def number(self) -> int:
        """Number of the visit over the connection there is now, in this process."""
        begun = self._begun
        if begun is None or _is_over(begun[1]):
            number = secrets.randbits(63) | 1
            visit = self._submit("visit", number)
            if isinstance(visit, CallFuture):
                visit.ignore()  # it ends with the connection: whoever needs that says so
            begun = self._begun = number, visit
        return begun[0]


def _is_over(future: Future[Any]) -> bool:
    # `done` would have replies read for the sake of this one, with every message of a writer.
    return future.over if isinstance(future, CallFuture) else future.done()


@final
class LocalLink:
    """Calls a service of this process directly: nothing is pickled. In a fork of the process it calls the server.

    Args:
        service: the service.
        address: of its server.
        secret: the run's secret.
    """

    def __init__(self, service: ReplayService, address: str, secret: bytes) -> None:
        self._service = service
        self._place = address, secret
        self._is_copy = False
        self._lock = threading.Lock()
        self._remote: RemoteLink | None = None
        tell_in_child(self)

    def forked(self) -> None:
        """In a forked child: the service is a copy that serves nobody; the server is in the parent."""
        self._is_copy = True
        self._lock = threading.Lock()

    def call(self, method: str, *args: Any) -> Any:
        return self.submit(method, *args).result()

    def submit(self, method: str, *args: Any) -> Future[Any]:
        if (elsewhere := self._elsewhere()) is not None:
            return elsewhere.submit(method, *args)
        future: Future[Any] = Future()
        try:
            result = getattr(self._service, method)(*args)
        except Exception as error:  # noqa: BLE001  (it reaches the caller through the future, as a remote one does)
            future.set_exception(error)
        else:
            if isinstance(result, Future):
                return result
            future.set_result(result)
        return future

    def sample(self, request: SampleCallArguments) -> SampleBatch:
        if (elsewhere := self._elsewhere()) is not None:
            return elsewhere.sample(request)
        return in_time(self.submit_sample(request), None, self._place[0])

    def submit_sample(self, request: SampleCallArguments) -> Future[SampleBatch]:
        if (elsewhere := self._elsewhere()) is not None:
            return elsewhere.submit_sample(request)
        return self.submit(request.method, *request.arguments)

    def begin_sample(self, request: SampleCallArguments) -> Future[SampleBatch] | BegunCall:
        if (elsewhere := self._elsewhere()) is not None:
            return elsewhere.begin_sample(request)
        return self.submit_sample(request)

    def close(self) -> None:
        if self._remote is not None:
            self._remote.close()

    @property
    def regions(self) -> RegionPool | None:
        elsewhere = self._elsewhere()
        return None if elsewhere is None else elsewhere.regions

    @property
    def visit(self) -> int:
        elsewhere = self._elsewhere()
        return 0 if elsewhere is None else elsewhere.visit

    def _elsewhere(self) -> RemoteLink | None:
        """The way to the server from a fork."""
        if not self._is_copy:
            return None
        with self._lock:
            if self._remote is None:
                self._remote = RemoteLink(*self._place)
        return self._remote
