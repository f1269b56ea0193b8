"""The end of the script: `lp.launch(program)` as the last line means that the script lasts as long as the program.

Runs before Python shuts its thread pools down, so that nodes which are threads keep working. A failure that nobody
waited for is printed, and is the exit code. After an uncaught error in the script the programs are stopped; so are, in
any case, those that were launched for a test.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - registers its own hook, which must run after ours
import os
import sys
import threading
import traceback
from typing import Protocol

from launch import script_end

__all__ = ["wait_for"]


class _Waitable(Protocol):
    @property
    def is_test(self) -> bool: ...

    def wait(self, *, raise_error: bool) -> bool: ...

    def stop(self, reason: str) -> bool: ...

    def unreported_failure(self) -> BaseException | None: ...

    def is_settled(self) -> bool: ...


_runs: list[tuple[int, _Waitable]] = []
_registered = False
_code = 0  # that a signal has asked for while a run was waited for


def wait_for(run: _Waitable) -> None:
    """Makes the end of this process wait for `run`."""
    global _registered
    _runs[:] = [(pid, known) for pid, known in _runs if not known.is_settled()]
    _runs.append((os.getpid(), run))
    if not _registered:
        _registered = True
        # Private, but what concurrent.futures uses: there is no public hook before the threads are joined.
        getattr(threading, "_register_atexit", atexit.register)(_finish)
    if not run.is_test:
        script_end.call_at_end(_end_runs)  # then its threads can still start others


def _end_runs() -> list[_Waitable]:
    """Waits for the runs of this process, or stops them; returns them."""
    global _code
    runs = [run for pid, run in _runs if pid == os.getpid()]
    for run in runs:
        _code = _end(run) or _code
    return runs


def _finish() -> None:
    runs = _end_runs()
    failures = [failure for run in runs if (failure := run.unreported_failure()) is not None]
    if (failures or _code) and not _script_failed():
        _exit_with(failures, _code or 1)


def _end(run: _Waitable) -> int:
    """Blocks until the run has ended; the exit code that a signal asks for meanwhile, or 0."""
    try:
        if _script_failed():
            run.stop("the script that launched the program failed")
        elif run.is_test:
            run.stop("the tests ended")
        elif hasattr(sys, "ps1"):  # nobody waits for a program at the end of a notebook or a prompt
            run.stop("the interactive session ended")
        else:
            run.wait(raise_error=False)
    except KeyboardInterrupt:
        return 130
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    return 0


def _script_failed() -> bool:
    return getattr(sys, "last_exc", None) is not None or getattr(sys, "last_value", None) is not None


def _exit_with(failures: list[BaseException], code: int) -> None:
    """Prints the failures and ends the process, after everybody else's exit functions."""
    for failure in failures:
        traceback.print_exception(failure)
    atexit._run_exitfuncs()  # noqa: SLF001 - what the interpreter calls at its end
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)
