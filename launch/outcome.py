"""How a node ended, and whether that is a failure."""

from __future__ import annotations

import contextlib
import signal
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import final

from topology.errors import CourierError, NodeFailed, ProgramStopped, ReplayError, TopologyError
from topology.executable import Executable

__all__ = [
    "CLEAN",
    "Outcome",
    "add_note",
    "describe_exit",
    "failure_of",
    "failure_text",
    "node_failed",
    "outcome_of",
]

# What a library in between keeps of it, such as TensorFlow, whose errors have no cause.
_STOPPED = f"{ProgramStopped.__module__}.{ProgramStopped.__qualname__}: "
_LONGEST_MESSAGE = 2000  # characters of a message that stands in lines and tables; the traceback has the whole


@final
@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one run of a node ended.

    Attributes:
        failed: whether that is a failure.
        message: one line: what happened.
        exit_code: of the process (negative: the signal), or what it would have been.
        remote_traceback: as Python prints it; "" when there is none.
        secondary: it failed in a remote call. If another node failed or the program stops, that is why.
        late: it did not end when it should have, and was given up.
        final: to start it again would not help: what it raised says so.
        error: the exception itself, where the node ran in this process.
    """

    failed: bool = False
    message: str = ""
    exit_code: int | None = 0
    remote_traceback: str = ""
    secondary: bool = False
    late: bool = False
    final: bool = False
    error: BaseException | None = field(default=None, compare=False)


CLEAN = Outcome()


def outcome_of(error: BaseException | None, *, stopping: bool, skip_frames: int = 0) -> Outcome:
    """Judges what a node's entry raised (None: it returned).

    A remote call, or one of replay, that fails after the stop was announced is a clean end: the other side went first.

    Args:
        error: what it raised.
        stopping: whether the stop had been announced.
        skip_frames: frames of ours to leave out at the top of the traceback.
    """
    if error is None:
        return CLEAN
    remote = any(isinstance(part, CourierError | ReplayError) or _STOPPED in _text_of(part) for part in _chain(error))
    if stopping and remote:
        return CLEAN
    if isinstance(error, SystemExit):
        return _of_exit(error)
    _skip_frames(error, skip_frames)
    return Outcome(
        failed=True,
        message=_one_line(error),
        exit_code=1,
        remote_traceback=_traceback_of(error),
        secondary=remote,
        final=isinstance(error, TopologyError) and error.is_final,
        error=error,
    )


def add_note(error: BaseException, text: str) -> None:
    """Adds a note, but to an error that refuses notes: it is worth more than the note."""
    with contextlib.suppress(Exception):
        error.add_note(text)


def _one_line(error: BaseException) -> str:
    text = " ".join(_text_of(error).split())
    if len(text) > _LONGEST_MESSAGE:
        text = f"{text[:_LONGEST_MESSAGE]}... ({len(text)} characters)"
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def _text_of(value: object) -> str:
    """`str(value)`; users' classes may raise there."""
    try:
        return str(value)
    except Exception as raised:  # noqa: BLE001 - of any type
        return f"<its str() raised {type(raised).__name__}>"


def _traceback_of(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception as raised:  # noqa: BLE001 - e.g. groups nested too deep, or notes that cannot be shown
        short = "".join(traceback.format_tb(error.__traceback__))
        return f"Traceback (most recent call last):\n{short}{_one_line(error)}\n({raised!r} while showing the rest)\n"


def _of_exit(error: SystemExit) -> Outcome:
    if error.code is None or error.code == 0:
        return CLEAN
    if isinstance(error.code, int):
        code = int(error.code) if -(2**31) <= error.code < 2**31 else -1  # as the interpreter does
        return Outcome(failed=True, message=f"it exited with code {code}", exit_code=code, error=error)
    return Outcome(failed=True, message=f"it exited: {_text_of(error.code)}", exit_code=1, error=error)


def _chain(error: BaseException) -> Iterator[BaseException]:
    waiting, seen = [error], set()
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        linked = (part.__cause__, None if part.__suppress_context__ else part.__context__)
        waiting += [link for link in linked if link is not None]
        if isinstance(part, BaseExceptionGroup):
            waiting += part.exceptions


def _skip_frames(error: BaseException, count: int) -> None:
    trace: TracebackType | None = error.__traceback__
    for _ in range(count):
        if trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
    error.with_traceback(trace)  # an assignment would go through a `__setattr__` of the user's class


def describe_exit(exit_code: int) -> str:
    """One line on the exit code of a process that did not say why it ended."""
    if exit_code >= 0:
        return f"its process exited with code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"its process was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


def node_failed(label: str, index: int, outcome: Outcome) -> NodeFailed:
    """The error that says so in the launching script."""
    return NodeFailed(
        f"Node {label}/{index} failed: {outcome.message}",
        label=label,
        index=index,
        exit_code=outcome.exit_code,
        remote_traceback=outcome.remote_traceback,
    )


def failure_of(program: str, failures: Sequence[tuple[Executable, Outcome]]) -> BaseException:
    """What is raised for these failures of a program's nodes: the first, which is told of the others."""
    (executable, outcome), *others = failures
    if isinstance(outcome.error, Exception):
        error: BaseException = outcome.error
        add_note(error, f"in node {executable.name} of the program {program!r}")
    else:
        error = node_failed(executable.label, executable.index, outcome)
    for other, its in others:
        add_note(error, f"node {other.name} failed, too: {its.message}")
    return error


def failure_text(failures: Sequence[tuple[Executable, Outcome]]) -> str | None:
    """What is written down of these failures: the first, with its traceback; None when there is none."""
    for executable, outcome in failures:
        return str(node_failed(executable.label, executable.index, outcome))
    return None
