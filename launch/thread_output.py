"""Brings what nodes print to the terminal and to their log files when the nodes are threads.

Threads share `sys.stdout` and `sys.stderr`. While such a program runs, both are stand-ins that look at who writes: a
node's lines get its name and go to its log; all else passes. What a node writes past them (a C library, a stream that
was kept from before) passes, too.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO, TextIO, final

from launch.output import LineSplitter, Terminal, write_all
from topology.context import NodeContext, try_get_context

__all__ = ["ThreadOutput"]


@final
class _NodeOutput:
    """One node's lines. Several threads of it may write: each has its own line."""

    def __init__(self, name: str, terminal: Terminal | None, log: BinaryIO | None) -> None:
        self._name = name
        self._terminal = terminal
        self._log = log
        self._lock = threading.Lock()
        self._lines: dict[int, LineSplitter] = {}

    def write(self, text: str) -> None:
        with self._lock:
            splitter = self._lines.setdefault(threading.get_ident(), LineSplitter())
            self._put(splitter.feed(text.encode("utf-8", "backslashreplace")))

    def close(self) -> None:
        with self._lock:
            for splitter in self._lines.values():
                self._put(splitter.finish())
            if self._log is not None:
                self._log.close()
                self._log = None

    def _put(self, lines: list[bytes]) -> None:
        if not lines:
            return
        if self._log is not None:
            try:
                write_all(self._log, b"".join(line + b"\n" for line in lines))
            except OSError as error:
                self._log.close()
                self._log = None
                _warn(f"The log of {self._name} cannot be written any more: {error}. The program goes on.")
        if self._terminal is not None:
            self._terminal.write(self._name, lines)


def _warn(text: str) -> None:
    """Past the stand-in: what a node's thread writes to that is the node's."""
    stand_in = _stand_ins.get("stderr")
    with contextlib.suppress(OSError, ValueError):
        print(f"topology: {text}", file=sys.stderr if stand_in is None else stand_in.stream)


class _StandIn:
    """In place of `sys.stdout` or `sys.stderr`."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        context = try_get_context()
        output = None if context is None else _outputs.get(_key(context))
        if output is None:
            return self.stream.write(text)
        output.write(text)
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)


_lock = threading.Lock()
_outputs: dict[tuple[int, str], _NodeOutput] = {}  # by run and node
_users = 0
_stand_ins: dict[str, _StandIn] = {}


@final
class ThreadOutput:
    """The output of one run.

    Args:
        terminal: gets every line; None for nobody.
    """

    def __init__(self, terminal: Terminal | None) -> None:
        self._terminal = terminal
        self._attached: dict[tuple[int, str], _NodeOutput] = {}
        with _lock:
            global _users
            _users += 1
            if _users == 1:
                _install()
            if terminal is not None and "stdout" in _stand_ins:
                terminal.stream = _stand_ins["stdout"].stream

    def attach(self, context: NodeContext, log: Path) -> None:
        """From now on the lines of this node are its own. Raises `OSError` when the log cannot be written."""
        if _key(context) in self._attached:  # started again
            return
        file = open(log, "ab", buffering=0)  # noqa: SIM115 - closed with the output
        output = _NodeOutput(context.name, self._terminal, file)
        self._attached[_key(context)] = output
        _outputs[_key(context)] = output

    def write(self, context: NodeContext, text: str) -> None:
        """Writes as the node."""
        if text and (output := self._attached.get(_key(context))) is not None:
            output.write(text)

    def close(self) -> None:
        """Puts the streams back when the last run ends."""
        global _users
        for key, output in self._attached.items():
            _outputs.pop(key, None)
            output.close()
        with _lock:
            _users -= 1
            if _users == 0:
                _uninstall()


def _key(context: NodeContext) -> tuple[int, str]:
    return id(context.endpoints), context.name  # one table of endpoints belongs to one run


def _install() -> None:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None:
            _stand_ins[name] = _StandIn(stream)
            setattr(sys, name, _stand_ins[name])


def _uninstall() -> None:
    for name, stand_in in _stand_ins.items():
        if getattr(sys, name) is stand_in:  # else somebody has put another in its place
            setattr(sys, name, stand_in.stream)
    _stand_ins.clear()
