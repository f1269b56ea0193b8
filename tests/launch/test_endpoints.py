"""Endpoints of one machine."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest

from launch.endpoints import Endpoints
from topology.address import Address
from topology.errors import LaunchError
from topology.executable import Executable


def executable(*addresses: Address, label: str = "node") -> Executable:
    return Executable(label=label, index=0, group_size=1, entry=int, addresses=addresses)


def test_unix_sockets_are_private_and_short() -> None:
    addresses = [Address("a", needs_port=False) for _ in range(3)]
    endpoints = Endpoints([executable(*addresses, label="a very/long label " * 20)])
    paths = [endpoints.table[address.id] for address in addresses]
    assert len(set(paths)) == 3
    for path in paths:
        assert path.startswith("unix:/")
        assert len(path) < 104
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path.removeprefix("unix:"))
        listener.close()
    assert endpoints.directory.stat().st_mode & 0o777 == 0o700
    endpoints.release()
    assert not endpoints.directory.exists()


def test_a_long_temporary_directory_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    endpoints = Endpoints([])
    assert len(str(endpoints.directory)) <= 60
    assert list(long.iterdir()) == []
    endpoints.release()


def test_a_port_is_free_for_its_node_and_for_nobody_else() -> None:
    address = Address("tcp")
    endpoints = Endpoints([executable(address)])
    host, _, port = endpoints.table[address.id].rpartition(":")
    assert host == "localhost"
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):  # who asks for this port by chance
        stranger.bind(("localhost", int(port)))
    found = set()
    for _ in range(200):  # who asks for any port, with or without reuse
        with socket.socket() as stranger:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            stranger.bind(("localhost", 0))
            found.add(stranger.getsockname()[1])
    assert int(port) not in found
    for _ in range(2):  # its node, and its node again after a restart
        with socket.socket() as node, socket.socket() as client:
            node.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            node.bind(("localhost", int(port)))
            node.listen()
            client.connect(("localhost", int(port)))
            accepted, _ = node.accept()
            accepted.close()
    endpoints.release()


def test_nothing_is_kept_after_the_end() -> None:
    before = len(os.listdir("/dev/fd"))
    endpoints = Endpoints([executable(*[Address() for _ in range(10)])])
    assert len(os.listdir("/dev/fd")) > before
    endpoints.release()
    assert len(os.listdir("/dev/fd")) == before


def test_no_room_for_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with pytest.raises(LaunchError, match="TMPDIR"):
        Endpoints([])
