"""Reverb's server and tables: ours, with Reverb's parameters. A server serves from its construction on."""

from __future__ import annotations

import abc
import collections
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Self, final

from topology.compat.reverb.client import Client
from topology.compat.reverb.signatures import check_signature, shown_info
from topology.context import try_get_context
from topology.nodes import courier
from topology.nodes.replay import Server as OurServer
from topology.nodes.replay import Table as OurTable
from topology.nodes.replay import TableInfo, TempDirCheckpointer, rate_limiters, selectors
from topology.nodes.replay.checkpointers import CheckpointerBase
from topology.nodes.replay.layouts import Store
from topology.nodes.replay.service import ReplayService

__all__ = ["Server", "Table", "TableExtensionBase", "service_here"]


class TableExtensionBase(abc.ABC):
    """Reverb's extensions are C++ code; tables here take none. The name is for annotations."""

    @abc.abstractmethod
    def build_internal_extensions(self, table_name: str) -> Sequence[Any]:
        """Makes the C++ objects."""


@final
class Table(OurTable):
    """A table, with Reverb's parameters.

    Args:
        name: its name, unique on a server.
        sampler: chooses items to sample.
        remover: chooses the item to remove when one has come into a full table; it may be that one.
        max_size: most items it holds.
        rate_limiter: how far samples and inserts may run apart.
        max_times_sampled: an item is removed after so many samples; below 1 for never.
        extensions: none; see `TableExtensionBase`.
        signature: structure of specs that items must match; None for any.
        seed: for the sampler; not of Reverb.

    Raises:
        ValueError: an argument makes no sense, or there are extensions.
    """

    def __init__(
        self,
        name: str,
        sampler: selectors.Selector,
        remover: selectors.Selector,
        max_size: int,
        rate_limiter: rate_limiters.RateLimiter,
        max_times_sampled: int = 0,
        extensions: Sequence[TableExtensionBase] = (),
        signature: Any = None,
        *,
        seed: int | None = None,
    ) -> None:
        if not name:
            raise ValueError("name must be nonempty")
        if isinstance(max_size, int) and max_size <= 0:  # what is no int is told below
            raise ValueError(f"max_size ({max_size}) must be a positive integer")
        if extensions:
            raise ValueError(
                f"table {name!r}: extensions are C++ code of Reverb, and there are none here; Client.server_info() and "
                "Table.info tell what happens in a table"
            )
        check_signature(signature)
        super().__init__(
            name, sampler, remover, max_size, rate_limiter, max(max_times_sampled, 0), signature, seed=seed
        )

    @classmethod
    def queue(  # type: ignore[override]
        cls,
        name: str,
        max_size: int,
        extensions: Sequence[TableExtensionBase] = (),
        signature: Any = None,
        *,
        seed: int | None = None,
    ) -> Table:
        """A bounded queue: each item is sampled once, in the order of insertion; both sides wait."""
        fifo, limiter = selectors.Fifo(), rate_limiters.Queue(max_size)
        return cls(name, fifo, fifo, max_size, limiter, 1, extensions, signature, seed=seed)

    @classmethod
    def stack(  # type: ignore[override]
        cls,
        name: str,
        max_size: int,
        extensions: Sequence[TableExtensionBase] = (),
        signature: Any = None,
        *,
        seed: int | None = None,
    ) -> Table:
        """A bounded stack: each item is sampled once, the newest first; both sides wait."""
        lifo, limiter = selectors.Lifo(), rate_limiters.Stack(max_size)
        return cls(name, lifo, lifo, max_size, limiter, 1, extensions, signature, seed=seed)

    def replace(  # type: ignore[override]
        self,
        name: str | None = None,
        sampler: selectors.Selector | None = None,
        remover: selectors.Selector | None = None,
        max_size: int | None = None,
        rate_limiter: rate_limiters.RateLimiter | None = None,
        max_times_sampled: int | None = None,
        extensions: Sequence[TableExtensionBase] | None = None,
        signature: Any = None,
    ) -> Table:
        """A new, empty table with the same settings but for those that are given."""
        old = self._core.options
        return Table(
            old.name if name is None else name,
            sampler or old.sampler,
            remover or old.remover,
            old.max_size if max_size is None else max_size,
            rate_limiter or old.rate_limiter,
            old.max_times_sampled if max_times_sampled is None else max_times_sampled,
            extensions or (),
            old.signature if signature is None else signature,
            seed=old.seed,
        )

    @property
    def info(self) -> TableInfo:
        return shown_info(super().info)


@final
class _LazyCheckpointer(CheckpointerBase):
    """Checkpoints in a temporary directory that is made with the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._checkpointer: TempDirCheckpointer | None = None

    def save(self, tables: Mapping[str, OurTable]) -> str:
        with self._lock:
            if self._checkpointer is None:
                self._checkpointer = TempDirCheckpointer()
        return self._checkpointer.save(tables)

    def load_latest(self, tables: Mapping[str, OurTable], store: Store) -> None:
        del tables, store


_here: weakref.WeakValueDictionary[int, ReplayService] = weakref.WeakValueDictionary()  # by port
os.register_at_fork(after_in_child=_here.clear)  # a fork has copies of them, which serve nobody


@final
class Server(OurServer):
    """Serves tables on a TCP port of this machine, from now on.

    Args:
        tables: at least one, with distinct names.
        port: None picks a free one.
        checkpointer: None keeps checkpoints that a client asks for in a temporary directory.

    Raises:
        ValueError: no table, or two of one name.
        LaunchError: the port is taken.
        CheckpointError: the newest checkpoint is damaged, or does not fit the tables.
    """

    def __init__(
        self,
        tables: Sequence[Table] | None = None,
        port: int | None = None,
        checkpointer: CheckpointerBase | None = None,
    ) -> None:
        if not tables:
            raise ValueError("At least one table must be provided")
        names = collections.Counter(table.name for table in tables)
        twice = [name for name, count in names.items() if count > 1]
        if twice:
            raise ValueError(f"Multiple items in tables have the same name: {', '.join(twice)}")
        context = try_get_context()
        super().__init__(
            tables,
            0 if port is None else port,
            _LazyCheckpointer() if checkpointer is None else checkpointer,
            secret=context.secret if context else b"",
        )
        self.start()
        _here[self.port] = self._service
        # No __del__: that may be called when the interpreter has half gone, and of a fork's copy.
        self._forgotten = weakref.finalize(self, _stop, os.getpid(), self.port, self._service, self._courier)
        self._forgotten.atexit = False

    def __enter__(self) -> Self:
        return self  # it serves already

    def stop(self) -> None:
        self._forgotten()
        super().stop()

    def localhost_client(self) -> Client:
        """A client for this process, without a connection; pickled, it becomes one with a connection."""
        return Client(f"localhost:{self.port}", service=self._service)


def _stop(process: int, port: int, service: ReplayService, server: courier.Server) -> None:
    if process != os.getpid():
        return
    if _here.get(port) is service:
        del _here[port]
    service.close()
    server.stop()


def service_here(server_address: str) -> ReplayService | None:
    """The service of a `Server` in this process that has this address; None when there is none."""
    host, _, port = server_address.rpartition(":")
    if host not in {"localhost", "127.0.0.1", "[::1]", "::1"} or not port.isdecimal():
        return None
    return _here.get(int(port))
