"""Tells one process from a later one that was given the same id."""

from __future__ import annotations

import psutil

__all__ = ["create_time"]


def create_time(pid: int) -> float | None:
    """When process `pid` was started, in seconds since the epoch; None when there is none, or only its remains."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except (psutil.Error, ValueError, OverflowError):  # a number that is no process id
        return None
