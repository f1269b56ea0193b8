"""The switch riddle: prisoners, one at a time in a room with a light switch, and one of them has to count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import dm_env
import numpy as np
from dm_env import specs

from topology.environments.multi_agent import ACTION_MASK, OBSERVATION, MultiAgentEnvironment

__all__ = ["SwitchRiddle"]

_ACTIONS = 3
_OFF, _ON, _TELL = range(_ACTIONS)


@final
class SwitchRiddle(MultiAgentEnvironment):
    """Each day one of n agents is in the room. It leaves the switch off or on, or tells that all have been there.

    To tell ends the episode for all: with +1 if it is true, -1 if not. After `4 n - 6` days it ends with 0. All agents
    share the reward. Who is in the room sees the switch; the others see nothing, and have no choice (action 0).
    Observations are float32 `[in the room, switch]`, with a mask of the actions: off, on, tell.

    With `everyone_visits` (the default) the order of visits is drawn from those in which each agent comes at least
    once. Then an agent that counts the days can always get 1, and one without a memory cannot: it cannot tell the days
    apart. Without, as in the original, the order is uniform, all have been there in 74 % of the episodes of three
    agents, and no policy can get more than that.

    Source: Foerster et al., "Learning to Communicate with Deep Multi-Agent Reinforcement Learning", 2016,
    arXiv:1605.06676, section 6.2.

    Args:
        num_agents: n, at least 2.
        everyone_visits: see above.
        seed: of the order of visits.
    """

    def __init__(self, num_agents: int = 3, *, everyone_visits: bool = True, seed: int | None = None) -> None:
        if num_agents < 2:
            raise ValueError(f"the switch riddle needs at least 2 agents, got {num_agents}")
        self._agents = tuple(f"agent_{i}" for i in range(num_agents))
        self._everyone_visits = everyone_visits
        self._random = np.random.default_rng(seed)
        self._days = 4 * num_agents - 6
        self._visits: list[int] = []
        self._day = 0
        self._switch = _OFF
        self._must_reset = True

    @property
    def agents(self) -> tuple[str, ...]:
        return self._agents

    def reset(self) -> dm_env.TimeStep:
        self._visits = self._draw_visits()
        self._day, self._switch, self._must_reset = 0, _OFF, False
        return dm_env.restart(self._observation())

    def step(self, action: Mapping[str, int]) -> dm_env.TimeStep:
        if self._must_reset:
            return self.reset()
        inside = self._visits[self._day]
        actions = [int(action[agent]) for agent in self._agents]
        legal = [range(_ACTIONS if index == inside else 1) for index in range(len(actions))]
        if any(act not in range_ for act, range_ in zip(actions, legal, strict=True)):
            raise ValueError(
                f"with {self._agents[inside]} in the room it takes 0 (off), 1 (on) or 2 (tell), and 0 of the others; "
                f"got {dict(action)}"
            )
        told = actions[inside] == _TELL
        reward = 0.0
        if told:
            reward = 1.0 if len(set(self._visits[: self._day + 1])) == len(self._agents) else -1.0
        else:
            self._switch = actions[inside]
        self._must_reset = told or self._day == self._days - 1
        if not self._must_reset:
            self._day += 1
        return self.shared_step(reward, self._observation(), terminal=self._must_reset)

    def observation_spec(self) -> dict[str, dict[str, specs.Array]]:
        return self.for_all(
            {
                OBSERVATION: specs.BoundedArray((2,), np.float32, 0.0, 1.0, name="in the room, switch"),
                ACTION_MASK: specs.BoundedArray((_ACTIONS,), np.int8, 0, 1, name="legal actions"),
            }
        )

    def action_spec(self) -> dict[str, specs.DiscreteArray]:
        return self.for_all(specs.DiscreteArray(_ACTIONS, name="action"))

    def _draw_visits(self) -> list[int]:
        while True:
            visits: list[int] = self._random.integers(len(self._agents), size=self._days).tolist()
            if not self._everyone_visits or len(set(visits)) == len(self._agents):
                return visits

    def _observation(self) -> dict[str, dict[str, Any]]:
        return {agent: self._view(index == self._visits[self._day]) for index, agent in enumerate(self._agents)}

    def _view(self, inside: bool) -> dict[str, Any]:
        return {
            OBSERVATION: np.array([inside, inside and self._switch], np.float32),
            ACTION_MASK: np.array([1, inside, inside], np.int8),
        }
