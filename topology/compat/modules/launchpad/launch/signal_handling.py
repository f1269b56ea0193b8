"""`launchpad.launch.signal_handling`."""

import atexit
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = [
    "exit_gracefully_on_sigint",
    "exit_gracefully_on_sigquit",
    "register_exit_handler",
    "register_exit_handler_and_exit_gracefully_on_sigint",
]


def _exit(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second one must not cut the exit handlers short
    sys.stderr.write(f"{signal.Signals(number).name} received: exiting\n")
    sys.exit(0)


def exit_gracefully_on_sigint() -> None:
    """Ctrl-C ends the process with exit code 0, once its exit handlers have run."""
    signal.signal(signal.SIGINT, _exit)


def exit_gracefully_on_sigquit() -> None:
    """SIGQUIT ends the process with exit code 0, once its exit handlers have run."""
    signal.signal(signal.SIGQUIT, _exit)


def register_exit_handler(handler: Callable[..., None], *args: Any, **kwargs: Any) -> Callable[..., None]:
    """Calls `handler` when the process ends."""
    return atexit.register(handler, *args, **kwargs)


def register_exit_handler_and_exit_gracefully_on_sigint(
    handler: Callable[..., None], *args: Any, **kwargs: Any
) -> Callable[..., None]:
    """Both."""
    exit_gracefully_on_sigint()
    return register_exit_handler(handler, *args, **kwargs)
