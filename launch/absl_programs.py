"""A node's process where the launching script reads absl's flags: it is a program of absl's as well."""

from __future__ import annotations

import sys

__all__ = ["begin", "read_flags"]


def begin() -> None:
    """Lines of absl's logging, and of Python's own, are written as by a program that absl runs: from INFO on.

    To be called before anything of the user's is imported. `read_flags` may set another verbosity.
    """
    try:
        from absl import logging
    except ImportError:  # a Python of this node's own, without absl
        return
    logging.use_absl_handler()
    logging.get_absl_handler().python_handler.stream = sys.stderr  # not that of the process this one was forked from
    logging.set_verbosity(logging.INFO)


def read_flags() -> None:
    """Reads this process's own command line, once the modules that define flags are imported."""
    if (flags := sys.modules.get("absl.flags")) is not None:
        flags.FLAGS(sys.argv, known_only=True)
