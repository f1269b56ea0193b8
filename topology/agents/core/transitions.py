"""Steps of an episode as n-step transitions."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple, final

import dm_env
import numpy as np

__all__ = ["NStepTransitions", "Transition"]


class Transition(NamedTuple):
    """What a value is learned from: from `o_tm1`, action `a_tm1` gave `r_t` on the way to `o_t`.

    Over several steps `r_t` is the discounted sum of the rewards, and `discount_t` the product of all discounts on the
    way, so that the target is always `r_t + discount_t * value(o_t)`. A batch has a leading axis in every field.
    """

    o_tm1: Any
    a_tm1: Any
    r_t: Any
    discount_t: Any
    o_t: Any


@final
class NStepTransitions:
    """Turns the steps of one environment into n-step transitions.

    A transition spans `n_step` steps; the last ones of an episode span fewer and end at its last step. Where the
    episode terminates their discount is 0; where it is only cut off (discount 1) the last state keeps its value.

    Args:
        n_step: steps of a transition, at least 1.
        discount: factor for each step, on top of the environment's own discount.
    """

    def __init__(self, n_step: int, discount: float) -> None:
        if n_step < 1:
            raise ValueError(f"n_step must be at least 1, got {n_step}")
        self._discount = discount
        self._steps: deque[tuple[Any, int, float, float]] = deque(maxlen=n_step)
        self._observation: Any = None

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        """Begins an episode. What is left of one that did not end is dropped."""
        self._steps.clear()
        self._observation = timestep.observation

    def observe(self, action: int, next_timestep: dm_env.TimeStep) -> list[Transition]:
        """The transitions that this step completes: at most one, and all that are left at the end of an episode."""
        discount = self._discount * next_timestep.discount
        self._steps.append((self._observation, action, next_timestep.reward, discount))
        self._observation = next_timestep.observation
        completed = []
        if len(self._steps) == self._steps.maxlen or next_timestep.last():
            completed.append(self._oldest())
            self._steps.popleft()
        while next_timestep.last() and self._steps:
            completed.append(self._oldest())
            self._steps.popleft()
        return completed

    def _oldest(self) -> Transition:
        reward, discount = 0.0, 1.0
        for _, _, step_reward, step_discount in self._steps:
            reward += discount * step_reward
            discount *= step_discount
        observation, action, _, _ = self._steps[0]
        return Transition(observation, np.int32(action), np.float32(reward), np.float32(discount), self._observation)
