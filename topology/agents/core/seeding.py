"""Seeds for the parts of a node."""

from __future__ import annotations

import numpy as np

__all__ = ["derive_seed"]


def derive_seed(*parts: int) -> int:
    """A 31-bit seed that is a function of `parts`, e.g. the node's seed, the configured one, and a number for the use.

    Example:
        >>> derive_seed(1, 2) == derive_seed(1, 2), derive_seed(1, 2) == derive_seed(2, 1)
        (True, False)
    """
    return int(np.random.SeedSequence(parts).generate_state(1)[0] >> 1)
