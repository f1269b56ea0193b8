"""Brings what nodes print to the terminal and to their log files: line by line, whole, with the node's name."""

from __future__ import annotations

import contextlib
import os
import selectors
import sys
import threading
import zlib
from pathlib import Path
from typing import BinaryIO, TextIO, final

from launch.aside import start_thread
from topology.clock import Deadline

__all__ = ["LineSplitter", "OutputPump", "Terminal", "prefix", "write_all"]

_CHUNK = 1 << 16
_LONGEST_LINE = 1 << 20
_COLOURS = (32, 33, 34, 35, 36, 92, 93, 94, 95, 96)


@final
class LineSplitter:
    """Cuts a stream of bytes into lines.

    A line ends with a newline or a carriage return. Of progress that overwrites itself (carriage returns in one chunk)
    only the newest is kept. A line of more than a mebibyte is cut.
    """

    def __init__(self) -> None:
        self._partial = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their ends."""
        *lines, rest = (self._partial + data).replace(b"\r\n", b"\n").split(b"\n")
        # A carriage return at the very end stays: a newline may follow it in the next chunk.
        cut = rest.rfind(b"\r", 0, -1) + 1
        if progress := _newest(rest[:cut]):
            lines.append(progress)
        self._partial = rest[cut:]
        while len(self._partial) > _LONGEST_LINE:
            lines.append(self._partial[:_LONGEST_LINE])
            self._partial = self._partial[_LONGEST_LINE:]
        return [_newest(line) for line in lines]

    def finish(self) -> list[bytes]:
        """What is left when the stream has ended."""
        rest, self._partial = _newest(self._partial), b""
        return [rest] if rest else []


def _newest(line: bytes) -> bytes:
    """What a terminal shows of a line that overwrites itself."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def prefix(name: str, *, coloured: bool) -> str:
    """What stands before every line of a node."""
    text = f"[{name}]"
    if not coloured:
        return text + " "
    return f"\x1b[{_COLOURS[zlib.crc32(name.encode()) % len(_COLOURS)]}m{text}\x1b[0m "


@final
class Terminal:
    """Writes whole lines to this process's stdout. When that has gone, output is dropped and the program goes on.

    Attributes:
        stream: where to write; None for `sys.stdout`, whatever it is at the time.
    """

    def __init__(self) -> None:
        self.stream: TextIO | None = None
        self._works = True

    def write(self, name: str, lines: list[bytes]) -> None:
        """Writes lines of one node, at once."""
        stream = self.stream or sys.stdout
        if not self._works or stream is None:
            return
        try:
            start = prefix(name, coloured=stream.isatty())
            text = "".join(f"{start}{line.decode('utf-8', 'replace')}\n" for line in lines)
            try:
                stream.write(text)
            except UnicodeEncodeError:
                encoding = stream.encoding or "ascii"
                stream.write(text.encode(encoding, "replace").decode(encoding))
            stream.flush()
        except Exception:  # noqa: BLE001 - closed, its reader gone, or a stand-in of somebody's with its own troubles
            self._works = False
            _detach(stream)


def _detach(stream: object) -> None:
    """Leads a broken stdout to nowhere, or the interpreter would fail on it once more when it exits."""
    if stream is not sys.__stdout__:
        return
    with contextlib.suppress(OSError, ValueError), open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)


def write_all(file: BinaryIO, data: bytes) -> None:
    """Writes to an unbuffered file, which takes a part when a disk is about to be full. Raises `OSError`."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


@final
class _Source:
    """One node's output."""

    def __init__(self, name: str, log: BinaryIO | None) -> None:
        self.name = name
        self.log = log
        self.lines = LineSplitter()


@final
class OutputPump:
    """One thread that reads the output of all nodes of a run.

    Args:
        terminal: gets every line; None for nobody.

    Raises:
        LaunchError: the system has no thread for it.
    """

    def __init__(self, terminal: Terminal | None) -> None:
        self._terminal = terminal
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_w, False)
        self._selector.register(self._wake_r, selectors.EVENT_READ, None)
        self._new: list[tuple[int, _Source]] = []
        self._deadline: Deadline | None = None
        self._warned = False
        self._thread = threading.Thread(target=self._run, name="output of nodes", daemon=True)
        try:
            start_thread(self._thread)
        except BaseException:
            self._release()
            raise

    def add(self, name: str, descriptor: int, log_path: Path | None) -> None:
        """Reads a pipe until its end, and closes it. The log is appended to."""
        source = _Source(name, self._open(log_path))
        with self._lock:
            self._new.append((descriptor, source))
        self._wake()

    def close(self, timeout_s: float = 2.0) -> None:
        """Reads what is there, for at most `timeout_s` (a process may have left its pipe to others), and ends."""
        self._deadline = Deadline(timeout_s)
        self._wake()
        self._thread.join(timeout_s + 1.0)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_w, b"x")

    def _open(self, path: Path | None) -> BinaryIO | None:
        if path is None:
            return None
        try:
            return open(path, "ab", buffering=0)
        except OSError as error:
            self._warn_once(f"The log {path} cannot be written: {error}")
            return None

    def _warn_once(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            with contextlib.suppress(OSError, ValueError):  # the same disk may be full under stderr
                print(f"topology: {text}. The program goes on.", file=sys.stderr)  # noqa: T201

    def _run(self) -> None:
        while self._keep_reading():
            timeout_s = None if self._deadline is None else self._deadline.remaining()
            for key, _ in self._selector.select(timeout_s):
                if key.data is None:
                    os.read(self._wake_r, _CHUNK)
                    self._adopt()
                else:
                    self._read(key.fd, key.data)
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                self._end(key.fd, key.data)
        self._release()

    def _release(self) -> None:
        self._selector.close()
        os.close(self._wake_r)
        os.close(self._wake_w)

    def _keep_reading(self) -> bool:
        if self._deadline is None:
            return True
        self._adopt()
        return len(self._selector.get_map()) > 1 and not self._deadline.expired

    def _adopt(self) -> None:
        with self._lock:
            new, self._new = self._new, []
        for descriptor, source in new:
            self._selector.register(descriptor, selectors.EVENT_READ, source)

    def _read(self, descriptor: int, source: _Source) -> None:
        try:
            data = os.read(descriptor, _CHUNK)
        except OSError:
            data = b""
        if not data:
            self._end(descriptor, source)
            return
        if source.log is not None:
            try:
                write_all(source.log, data)
            except OSError as error:
                self._warn_once(f"The log of {source.name} cannot be written any more: {error}")
                source.log.close()
                source.log = None
        self._show(source, source.lines.feed(data))

    def _end(self, descriptor: int, source: _Source) -> None:
        self._show(source, source.lines.finish())
        self._selector.unregister(descriptor)
        os.close(descriptor)
        if source.log is not None:
            source.log.close()

    def _show(self, source: _Source, lines: list[bytes]) -> None:
        if lines and self._terminal is not None:
            self._terminal.write(source.name, lines)
