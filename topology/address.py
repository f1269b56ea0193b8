"""Addresses: names in the graph that become places only when a program is launched.

A node owns an `Address`; handles carry it to other nodes. The launcher gives every address an endpoint (a string such
as "unix:/tmp/run/learner-0" or "localhost:43211") and hands the whole table to every node.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from typing import NamedTuple, final

from topology.context import StopToken, try_get_context
from topology.errors import ProgramError

__all__ = ["Address", "find_secret", "find_stop", "get_port_from_address", "register_endpoints"]


@final
class Address:
    """A name for a place that one node listens at. Equality and hash go by identity, also after pickling.

    Args:
        service: a name for messages, e.g. "learner".
        needs_port: the node listens on TCP itself, so the endpoint must be "host:port". Otherwise the launcher
            picks the fastest transport.
    """

    __slots__ = ("id", "needs_port", "service")

    def __init__(self, service: str | None = None, *, needs_port: bool = True) -> None:
        self.id = uuid.uuid4().hex
        self.service = service or ""
        self.needs_port = needs_port

    def __repr__(self) -> str:
        return f"<Address {self.service or self.id[:8]}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Address) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def resolve(self) -> str:
        """The endpoint of this address: in a node, or in the script that launched the program.

        Raises:
            ProgramError: no running program has this address.
        """
        context = try_get_context()
        if context is not None and self.id in context.endpoints:
            return context.endpoints[self.id]
        return self._table().endpoints[self.id]

    def secret(self) -> bytes:
        """The secret of the run that this address belongs to. Raises like `resolve`."""
        context = try_get_context()
        if context is not None and self.id in context.endpoints:
            return context.secret
        return self._table().secret

    def _table(self) -> _Table:
        with _lock:
            for table in reversed(_tables):
                if self.id in table.endpoints:
                    return table
        raise ProgramError(
            f"{self!r} was resolved, but no running program has it: launch the program that its node was added to "
            "(or call node.allocate_address(address) before launching)"
        )


class _Table(NamedTuple):
    """What the launching script knows of a running program."""

    endpoints: Mapping[str, str]
    secret: bytes
    stop: StopToken


_lock = threading.Lock()
_tables: list[_Table] = []


def register_endpoints(endpoints: Mapping[str, str], secret: bytes, stop: StopToken) -> Callable[[], None]:
    """Makes addresses resolvable in the launching script: for launchers. Returns a function that undoes it.

    Args:
        endpoints: by `Address.id`.
        secret: of the run.
        stop: set when the program is to stop: for the clients that the script makes.
    """
    table = _Table(endpoints, secret, stop)
    with _lock:
        _tables.append(table)

    def remove() -> None:
        with _lock:
            _tables[:] = [known for known in _tables if known is not table]

    return remove


def find_stop(endpoint: str) -> StopToken | None:
    """What tells a client of `endpoint` that the program stops: the node's own token, or that of the script's run."""
    context = try_get_context()
    if context is not None:
        return context.stop
    table = _table_of(endpoint)
    return None if table is None else table.stop


def find_secret(endpoint: str) -> bytes:
    """What a client of `endpoint` proves: the secret of the node's own run, or of the script's; b"" outside both."""
    context = try_get_context()
    if context is not None:
        return context.secret
    table = _table_of(endpoint)
    return b"" if table is None else table.secret


def _table_of(endpoint: str) -> _Table | None:
    with _lock:
        tables = list(_tables)
    return next((table for table in reversed(tables) if endpoint in table.endpoints.values()), None)


def get_port_from_address(address: str) -> int:
    """The port of a resolved "host:port" address.

    Example:
        >>> get_port_from_address("localhost:8001")
        8001

    Raises:
        ValueError: the address has no port, e.g. a unix socket.
    """
    port = address.rpartition(":")[2]
    if not port.isdigit():
        raise ValueError(f"{address!r} has no port: only an Address(needs_port=True) resolves to host:port")
    return int(port)
