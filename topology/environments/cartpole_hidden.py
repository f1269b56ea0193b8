"""CartPole without its velocities: where the cart and the pole are moving must be remembered."""

from __future__ import annotations

import gymnasium
import numpy as np

from topology.environments.gymnasium import GymnasiumEnvironment

__all__ = ["cartpole_hidden"]


def cartpole_hidden(*, seed: int | None = None) -> GymnasiumEnvironment:
    """CartPole-v1 that shows the position of the cart and the angle of the pole only.

    Both are in parts of where the episode fails: it goes on while they are between -1 and 1.

    Args:
        seed: of its randomness.
    """
    environment = gymnasium.make("CartPole-v1")
    limits = {0: 2.4, 2: 12 * 2 * np.pi / 360}  # of the numbers that are shown, as CartPole has them
    shown, scale = list(limits), np.array(list(limits.values()), np.float32)
    # The space of CartPole reaches to twice the limits, and an episode ends soon beyond them.
    space = gymnasium.spaces.Box(-2.0, 2.0, (len(shown),), np.float32)
    wrapped = gymnasium.wrappers.TransformObservation(environment, lambda full: full[shown] / scale, space)
    return GymnasiumEnvironment(wrapped, seed=seed)
