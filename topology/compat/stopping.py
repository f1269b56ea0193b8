"""Waiting for the stop, by Launchpad's name of the parameter."""

from __future__ import annotations

from datetime import timedelta

import topology

__all__ = ["wait_for_stop"]


def wait_for_stop(timeout_secs: float | timedelta | None = None) -> bool:
    """Blocks until the program is to stop, at most so long; returns whether it is. See `topology.wait_for_stop`."""
    return topology.wait_for_stop(timeout_secs)
