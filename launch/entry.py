"""Where the console script `topology` begins: Ctrl-C is answered with one line, also while the command is imported."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

__all__ = ["end_at_ctrl_c", "main"]


def main() -> None:
    """Runs the command."""
    end_at_ctrl_c()
    from launch.cli import main as run  # takes a good part of a second

    run()


def end_at_ctrl_c() -> None:
    """From now on Ctrl-C ends this process at once, with code 130; `topology launch` has its own ways when it starts.

    Ended, not unwound: an exception could come up anywhere in an import, and be lost or printed.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # nohup stays nohup
        signal.signal(signal.SIGINT, _end)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    del number, frame
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # whatever it is in the middle of
            stream.flush()
    with contextlib.suppress(OSError):
        os.write(2, b"interrupted\n")
    os._exit(130)
