"""Servers and clients that end with the test, on every transport; nothing may be left behind."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from topology.nodes.courier import Client, Server

_names = itertools.count()


@pytest.fixture
def closing(nothing_left_behind: None) -> Iterator[ExitStack]:
    """Ends what is pushed on it, last first."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(params=["unix", "tcp", "memory"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An address of each transport, free to be served at."""
    if request.param == "unix":
        return f"unix:{tmp_path}/s"
    return "localhost:0" if request.param == "tcp" else f"memory:test-{next(_names)}"


@pytest.fixture
def new_server(closing: ExitStack) -> Callable[..., Server]:
    """Makes servers that stop with the test; a fresh unix socket unless told otherwise."""

    def new(name: str = "test", **options: object) -> Server:
        server = Server(name, **options)
        closing.callback(server.stop)
        return server

    return new


@pytest.fixture
def new_client(closing: ExitStack) -> Callable[..., Client]:
    """Makes clients that close with the test."""

    def new(server: Server | str, **options: object) -> Client:
        return closing.enter_context(Client(server if isinstance(server, str) else server.address, **options))

    return new
