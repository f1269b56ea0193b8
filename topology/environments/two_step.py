"""The two-step game: two agents, a choice of one of them that opens a game of both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import dm_env
import numpy as np
from dm_env import specs
from numpy.typing import NDArray

from topology.environments.multi_agent import MultiAgentEnvironment

__all__ = ["TwoStepGame"]

_STATES = 3
_PAYOFFS = np.array([[0.0, 1.0], [1.0, 8.0]], np.float32)  # of the second game, by the actions of both agents


@final
class TwoStepGame(MultiAgentEnvironment):
    """Two agents with two actions each, one shared reward at the end of two steps.

    In the first step the action of `agent_0` alone decides which game follows. The first game pays 7 whatever is done.
    The second pays 8 when both take action 1, 1 when one does, else 0. Both agents see which of the three states it
    is, one-hot. The best return is 8; the mean of random play is 4.75. Whoever learns the second game's value from a
    partner that acts at random, or as a sum of the agents' own values, settles for 7.

    Source: Rashid et al., "QMIX", 2018, arXiv:1803.11485, section 5.

    Args:
        seed: has no effect: nothing here is random.
    """

    def __init__(self, *, seed: int | None = None) -> None:
        del seed
        self._state: int | None = None

    @property
    def agents(self) -> tuple[str, ...]:
        return "agent_0", "agent_1"

    def reset(self) -> dm_env.TimeStep:
        self._state = 0
        return dm_env.restart(self._observation(0))

    def step(self, action: Mapping[str, int]) -> dm_env.TimeStep:
        if self._state is None:
            return self.reset()
        actions = [int(action[agent]) for agent in self.agents]
        if not set(actions) <= {0, 1}:
            raise ValueError(f"the two-step game takes the actions 0 and 1, got {dict(action)}")
        if self._state == 0:
            self._state = 1 + actions[0]
            return self.shared_step(0.0, self._observation(self._state), terminal=False)
        reward = 7.0 if self._state == 1 else float(_PAYOFFS[actions[0], actions[1]])
        last, self._state = self._state, None
        return self.shared_step(reward, self._observation(last), terminal=True)

    def observation_spec(self) -> dict[str, specs.Array]:
        return self.for_all(specs.BoundedArray((_STATES,), np.float32, 0.0, 1.0, name="state"))

    def action_spec(self) -> dict[str, specs.DiscreteArray]:
        return self.for_all(specs.DiscreteArray(2, name="action"))

    def _observation(self, state: int) -> dict[str, NDArray[Any]]:
        return self.for_all(np.eye(_STATES, dtype=np.float32)[state])
