"""Small messages, and open files, between processes of one machine over a unix stream socket.

A frame is a 4-byte length and a JSON object. Files travel beside the frames (SCM_RIGHTS) in their order; a frame says
in "fds" how many belong to it.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, final

__all__ = ["Channel", "Message", "open_standard_files"]

Message = dict[str, Any]
_HEADER = struct.Struct("!I")
_MAX_FDS = 16


def open_standard_files() -> None:
    """Opens stdin, stdout and stderr that are closed (`python script.py >&-`), or other files would get their numbers.

    Nodes print to these numbers, whatever is there.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


@final
class Channel:
    """One end. Any thread may send; one thread at a time may receive."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = bytearray()
        self._fds: list[int] = []
        self._send_lock = threading.RLock()  # a signal handler may send while its own thread sends

    @staticmethod
    def pair() -> tuple[Channel, socket.socket]:
        """A channel, and the socket to give to another process."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return Channel(ours), theirs

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def send(self, message: Message, fds: Sequence[int] = ()) -> bool:
        """Sends one message; returns False when the other end is gone. Blocks while the other end does not read."""
        body = json.dumps({**message, "fds": len(fds)}).encode()
        data = _HEADER.pack(len(body)) + body
        try:
            with self._send_lock:
                sent = socket.send_fds(self._socket, [data], list(fds)) if fds else 0
                self._socket.sendall(data[sent:])
        except OSError:
            return False
        return True

    def receive(self) -> list[tuple[Message, list[int]]] | None:
        """Blocks for data; the messages complete by now, each with its files, or None when the other end is gone."""
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, 65536, _MAX_FDS)
        except OSError:
            data, fds = b"", []
        self._fds.extend(fds)
        if not data:
            return None
        self._buffer.extend(data)
        return list(self._complete())

    def messages(self) -> Iterator[Message]:
        """Blocks for messages until the other end is gone. For ends that are sent no files."""
        while (received := self.receive()) is not None:
            yield from (message for message, _ in received)

    def drain(self) -> list[Message]:
        """What has arrived by now; does not block. For the end of a channel that is sent no files."""
        self._socket.setblocking(False)
        messages: list[Message] = []
        while (received := self.receive()) is not None:
            messages += (message for message, _ in received)
        return messages

    def _complete(self) -> Iterable[tuple[Message, list[int]]]:
        while len(self._buffer) >= _HEADER.size:
            end = _HEADER.size + _HEADER.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                return
            message: Message = json.loads(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            count = message.pop("fds")
            fds, self._fds = self._fds[:count], self._fds[count:]
            yield message, fds

    def close(self) -> None:
        """Closes this end."""
        with self._send_lock:  # a number that a sender still holds may be another file's in a moment
            self._socket.close()
