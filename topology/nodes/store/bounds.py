"""What can never be in a memory, and is refused rather than waited for."""

from __future__ import annotations

from topology.nodes.store.shelf import Wish

__all__ = ["check_fits", "check_reachable"]


def check_fits(steps: int, nbytes: int, max_steps: int, max_bytes: int) -> None:
    """Refuses what is larger than the whole bound.

    Raises:
        ValueError: it is.
    """
    if steps > max_steps or nbytes > max_bytes:
        raise ValueError(
            f"{steps} steps of {nbytes} bytes cannot be stored: the whole memory has max_steps={max_steps} and "
            f"max_bytes={max_bytes}; store less at a time, or open it with higher bounds"
        )


def check_reachable(wish: Wish, max_steps: int) -> None:
    """Refuses to wait for more than there may ever be.

    Raises:
        ValueError: the wish is for more.
    """
    if wish.number > max_steps:  # an episode has at least one step
        raise ValueError(f"{wish} were asked for, but the memory never holds more than max_steps={max_steps}")
