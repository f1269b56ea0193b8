"""Fixtures for the replay service: a bench that drives tables without server, and a running server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import numpy as np
import pytest

from topology.nodes import replay
from topology.nodes.replay import rate_limiters, selectors
from topology.nodes.replay.info import RateLimiterInfo
from topology.nodes.replay.layouts import LayoutSpec, LeafPattern, Store
from topology.nodes.replay.requests import InsertRequest, Picks, SampleRequest
from topology.nodes.replay.storage import ColumnSpec


class Bench:
    """Inserts numbers into tables and samples them back: items of one step with one int64 cell."""

    def __init__(self) -> None:
        self.store = Store()
        self.group = self.store.group([ColumnSpec((), np.dtype(np.int64), ())])
        self.layout = self.store.layout(self.group, LayoutSpec((LeafPattern(0, (0,), True),), "*", b"", ((),)))

    def insert(self, table: replay.Table, values, priorities=None, episode: int = 0) -> Future:
        values = np.atleast_1d(np.asarray(values, np.int64))
        rows = self.group.take(len(values))
        self.group.columns[0].write(rows, values)
        priorities = np.ones(len(values)) if priorities is None else np.asarray(priorities, np.float64)
        future: Future = Future()

        def done(error: Exception | None) -> None:
            future.set_exception(error) if error else future.set_result(None)

        future.request = InsertRequest(self.layout, rows[:, None].astype(np.int32), priorities, episode, done)
        table.insert(future.request)
        return future

    def sample(self, table: replay.Table, count: int = 1) -> Future:
        """A future of (values, picks): picks are the fields of SampleInfo, joined."""
        future: Future = Future()

        def done(picks: list[Picks], error: Exception | None) -> None:
            future.set_exception(error) if error else future.set_result(self.read(picks))

        future.request = SampleRequest(count, done)
        table.sample(future.request)
        return future

    def read(self, picks: list[Picks]) -> tuple[list[int], Picks]:
        values = []
        for each in picks:
            got = np.empty(each.size, np.int64)
            for layout, where, rows in each.parts:
                cells = np.empty(len(rows), np.int64)
                layout.group.columns[0].read(rows[:, 0].astype(np.int64), cells)
                got[slice(None) if where is None else where] = cells
            values += got.tolist()
            each.release()
        fields = [np.concatenate([getattr(each, name) for each in picks]) for name in Picks._fields[:4]]
        return values, Picks(*fields, picks[-1].table_size, [])


@pytest.fixture(scope="session")
def make_bench() -> type[Bench]:
    return Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def make_table() -> Callable[..., replay.Table]:
    def make(name: str = "table", **options) -> replay.Table:
        defaults = {
            "sampler": selectors.Uniform(),
            "remover": selectors.Fifo(),
            "max_size": 1000,
            "rate_limiter": rate_limiters.MinSize(1),
            "seed": 0,
        }
        return replay.Table(name, **{**defaults, **options})

    return make


@pytest.fixture
def serve() -> Iterator[Callable[..., replay.Client]]:
    """Starts a server of the given tables and gives a client; ends both after the test."""
    running: list = []

    def start(*tables: replay.Table) -> replay.Client:
        server = replay.Server(tables)
        server.start()
        client = replay.Client(server.address)
        client.server = server
        running.append((client, server))
        return client

    yield start
    for client, server in running:
        client.close()
        server.stop()


class Probe:
    """Lets tests wait for a state of a table: it looks whenever a call on the table has done its work."""

    def __init__(self, table: replay.Table, timeout_s: float = 20) -> None:
        self._table = table
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        for name in ("insert", "sample", "cancel", "give_back"):
            setattr(table, name, self._noticing(getattr(table, name)))

    def _noticing(self, method: Callable) -> Callable:
        def call(*args):
            result = method(*args)
            with self._changed:
                self._changed.notify_all()
            return result

        return call

    def wait_until(self, condition: Callable[[RateLimiterInfo], bool]) -> None:
        """Blocks until the counts of the table's rate limiter satisfy `condition`."""
        with self._changed:
            reached = self._changed.wait_for(lambda: condition(self._table.info.rate_limiter_info), self._timeout_s)
        assert reached, self._table.describe()


@pytest.fixture(scope="session")
def watch() -> type[Probe]:
    return Probe
