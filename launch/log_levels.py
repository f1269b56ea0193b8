"""Levels in front of what is logged where nobody has configured logging: who watches a run looks for them."""

from __future__ import annotations

import logging

__all__ = ["show_levels"]


def show_levels() -> None:
    """Python's last resort writes the bare text of a warning, which in a log of a node looks like any other line."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
