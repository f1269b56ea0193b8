"""Gives every address of a program its endpoint on this machine, and keeps it free for its node.

Most addresses become unix sockets in a directory that only this user can enter. An address that needs a port gets one
that the kernel gives to nobody else while the run lasts: a bound socket that does not listen holds it, and since both
sides set SO_REUSEADDR, the node can still bind it and listen.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import final

from launch.run_directory import file_name
from topology.errors import LaunchError
from topology.executable import Executable

__all__ = ["Endpoints"]

# A socket's path has at most 107 bytes (103 on macOS).
_LONGEST_DIRECTORY = 60
_LONGEST_NAME = 30


@final
class Endpoints:
    """The endpoints of one run. `release` gives everything back.

    Attributes:
        table: endpoint of every address, by `Address.id`.
        directory: where the unix sockets are.
    """

    def __init__(self, executables: Iterable[Executable]) -> None:
        self.table: dict[str, str] = {}
        self._reserved: list[socket.socket] = []
        self.directory = _make_directory()
        try:
            for executable in executables:
                for position, address in enumerate(executable.addresses):
                    name = f"{file_name(executable.label)[:_LONGEST_NAME]}-{executable.index}-{position}"
                    self.table[address.id] = self._port() if address.needs_port else self._unix(name)
        except BaseException as error:
            self.release()
            if isinstance(error, OSError):
                raise LaunchError(f"No port on localhost could be reserved: {error}") from error
            raise

    def _unix(self, name: str) -> str:
        return f"unix:{self.directory / f'{len(self.table)}-{name}'}"

    def _port(self) -> str:
        reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._reserved.append(reserved)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("localhost", 0))
        return f"localhost:{reserved.getsockname()[1]}"

    def release(self) -> None:
        """Frees the ports and removes the socket directory."""
        for reserved in self._reserved:
            reserved.close()
        self._reserved.clear()
        shutil.rmtree(self.directory, ignore_errors=True)


def _make_directory() -> Path:
    try:
        directory = tempfile.mkdtemp(prefix="topology-")
        if len(directory) > _LONGEST_DIRECTORY:
            Path(directory).rmdir()
            directory = tempfile.mkdtemp(prefix="topology-", dir="/tmp")
    except OSError as error:
        raise LaunchError(
            f"No directory for the program's sockets could be made: {error}. Make room there, or set TMPDIR."
        ) from error
    return Path(directory)
