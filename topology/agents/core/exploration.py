"""How much each actor explores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["epsilon_ladder"]


def epsilon_ladder(num_actors: int) -> NDArray[np.float64]:
    """One epsilon for each actor, from nearly greedy to 0.4; `[num_actors]`, growing.

    The ladder of Ape-X: 0.4 ** (1 + 7 i / (n - 1)). A lone actor gets 0.4.

    Source: Horgan et al., "Distributed Prioritized Experience Replay", 2018, arXiv:1803.00933.
    """
    if num_actors < 1:
        raise ValueError(f"There must be at least 1 actor, got {num_actors}")
    return np.flip(np.logspace(1, 8, num_actors, base=0.4), axis=0)
