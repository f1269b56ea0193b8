"""Memory chain: what was shown first is asked for last."""

from __future__ import annotations

from typing import final

import dm_env
import numpy as np
from dm_env import specs
from numpy.typing import NDArray

__all__ = ["MemoryChain"]


@final
class MemoryChain(dm_env.Environment):  # type: ignore[misc]  # dm_env has no type information
    """A bit is shown at the first step, and asked for `length` steps later. Nothing in between says which it was.

    Observations are float32 `[3]`: the part of the chain that is left, 1 where the bit is asked for, and the bit (-1 or
    1) at the first step, else 0. Only the last of the `length + 1` actions counts: it is rewarded with 1 if it names
    the bit (0 for -1, 1 for 1), else with -1. Without a memory the mean return is 0, whatever the policy.

    Source: the memory length task of Osband et al., "Behaviour Suite for Reinforcement Learning", 2020, one bit wide.

    Args:
        length: steps from the bit to the question, at least 1.
        seed: of the bits.
    """

    def __init__(self, length: int = 10, *, seed: int | None = None) -> None:
        if length < 1:
            raise ValueError(f"a memory chain has a length of at least 1, got {length}")
        self._length = length
        self._random = np.random.default_rng(seed)
        self._bit = 0
        self._step = 0
        self._must_reset = True

    def reset(self) -> dm_env.TimeStep:
        self._bit = int(self._random.integers(2))
        self._step = 0
        self._must_reset = False
        return dm_env.restart(self._observation())

    def step(self, action: int) -> dm_env.TimeStep:
        if self._must_reset:
            return self.reset()
        if not 0 <= action < 2:
            raise ValueError(f"MemoryChain takes the actions 0 and 1, got {action}")
        if self._step < self._length:
            self._step += 1
            return dm_env.transition(reward=0.0, observation=self._observation())
        self._must_reset = True
        return dm_env.termination(reward=1.0 if action == self._bit else -1.0, observation=self._observation())

    def observation_spec(self) -> specs.BoundedArray:
        return specs.BoundedArray((3,), np.float32, [0.0, 0.0, -1.0], [1.0, 1.0, 1.0], name="observation")

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(2, name="action")

    def _observation(self) -> NDArray[np.float32]:
        shown = 2 * self._bit - 1 if self._step == 0 else 0
        return np.array([1 - self._step / self._length, self._step == self._length, shown], np.float32)
