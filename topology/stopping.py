"""`lp.stop()` and its relatives: in nodes, in their threads, and in the script that launched the program.

In a node they speak of the node's own program. In a script they speak of the program that the same thread launched
last and that still runs; a thread that launched none speaks of the only one that runs in the process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta

from topology.context import StopToken, try_get_context

__all__ = [
    "make_program_stopper",
    "register_run",
    "register_stop_handler",
    "stop",
    "stop_event",
    "unregister_stop_handler",
    "wait_for_stop",
]

_logger = logging.getLogger(__name__)
_lock = threading.Lock()
_runs: list[tuple[int, StopToken]] = []
_no_run = StopToken()


def register_run(token: StopToken) -> Callable[[], None]:
    """Says that this thread launched a program: for launchers. Returns a function to call when it has ended."""
    entry = (threading.get_ident(), token)
    with _lock:
        _runs.append(entry)

    def remove() -> None:
        with _lock:
            _runs[:] = [known for known in _runs if known is not entry]

    return remove


def _find_token() -> StopToken | None:
    context = try_get_context()
    if context is not None:
        return context.stop
    with _lock:
        own = [token for ident, token in _runs if ident == threading.get_ident()]
        if own:
            return own[-1]
        if len(_runs) == 1:
            return _runs[0][1]
        if not _runs:
            return None
    raise RuntimeError(
        f"{len(_runs)} programs run in this process and this thread launched none of them: use the stop() of the Run "
        "that lp.launch() returned"
    )


def stop(reason: str = "lp.stop() was called") -> None:
    """Stops the program. Returns at once. With no program running it logs a warning and does nothing."""
    token = _find_token()
    if token is None:
        _logger.warning("lp.stop() was called, but no program is running in this process: nothing to stop")
    else:
        token.request(reason)


def wait_for_stop(timeout: float | timedelta | None = None) -> bool:
    """Blocks until the program is to stop, at most `timeout` (seconds or timedelta); returns whether it is.

    Raises:
        RuntimeError: no program is running in this process.
    """
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    return _token("wait_for_stop").wait(seconds)


def stop_event() -> threading.Event:
    """The event set when the program is to stop. For waiting only.

    Raises:
        RuntimeError: no program is running in this process.
    """
    return _token("stop_event").event


def _token(name: str) -> StopToken:
    token = _find_token()
    if token is None:
        raise RuntimeError(f"lp.{name}() was called, but no program is running in this process")
    return token


def register_stop_handler(handler: Callable[[], None]) -> None:
    """Calls `handler` once when the program is to stop, however often it is registered.

    It may outlive the thread that registered it. The node, or `Run.wait()` in the script, does not end before it has
    returned, within the termination notice. Outside a program the handler is kept but nothing calls it.
    """
    token = _find_token() or _no_run
    token.discard(handler)
    token.on_stop(handler)


def unregister_stop_handler(handler: Callable[[], None]) -> None:
    """Takes `register_stop_handler` back; does nothing for a handler that is not registered."""
    (_find_token() or _no_run).discard(handler)


def make_program_stopper(launch_type: object = None) -> Callable[[], None]:
    """A picklable function that stops the program of the node that calls it. `launch_type` is not needed."""
    del launch_type
    return stop
